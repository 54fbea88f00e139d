"""A training step of a 64-64-10 net, against the same step in plain NumPy and in PyTorch.

What is measured is the price of everything but the arithmetic: calls, checks, lookups. Times are
those of the processor, so set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from cases import build
from report import interleaved, publish, spread, table

import singanet

NET = "64-64-10"
STEPS = 200
BATCHES = (1, 32, 128)
LR = 0.1


def plain(x: np.ndarray, y: np.ndarray, params: list[np.ndarray]) -> float:
    """The step in bare NumPy; returns the loss."""
    w1, b1, w2, b2 = params
    h = np.maximum(x @ w1 + b1, 0)
    z = h @ w2 + b2
    z -= z.max(1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    p /= len(y)
    dh = (p @ w2.T) * (h > 0)
    w2 -= LR * (h.T @ p)
    b2 -= LR * p.sum(0)
    w1 -= LR * (x.T @ dh)
    b1 -= LR * dh.sum(0)
    return float(loss)


def main() -> None:
    """Print and keep the table."""
    rows = [row for batch in BATCHES for row in measured(batch)]
    header = ["batch", "step", "µs", "spread", "plain NumPy by it", "by singanet"]
    publish("small_step", "64-64-10 net, one SGD step", table(header, rows))


def measured(batch: int) -> list[list[str]]:
    """The rows of one size of batch."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 64)).astype(np.float32)
    y = rng.integers(0, 10, batch)
    net = build(NET)
    params = [value.copy() for value in net.param_values()]
    optimizer = singanet.optimizer.SGD(lr=LR)
    start = [plain(x, y, params), net.step(x, y, optimizer)[0]]
    if not np.allclose(*start, rtol=1e-5):
        raise SystemExit(f"the two steps differ: {start}")

    def run_plain() -> None:
        for _ in range(STEPS):
            plain(x, y, params)

    def run_net() -> None:
        for _ in range(STEPS):
            net.step(x, y, optimizer)

    runs = {"plain NumPy": run_plain, "singanet": run_net}
    try:
        runs["PyTorch, eager"] = torch_step(x, y, compiled=False)
        runs["PyTorch, compiled"] = torch_step(x, y, compiled=True)
    except ImportError:
        print("PyTorch is not installed: no rows for it")
    seconds = interleaved(runs, rounds=15, clock=time.process_time)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        [
            str(batch),
            name,
            f"{1e6 * median[name] / STEPS:.0f}",
            spread(values),
            f"{median['plain NumPy'] / median[name]:.2f}",
            f"{median[name] / median['singanet']:.2f}",
        ]
        for name, values in seconds.items()
    ]


def torch_step(x: np.ndarray, y: np.ndarray, *, compiled: bool):  # noqa: ANN201 - a closure
    """The step in PyTorch with its SGD, the loss read as singanet's step returns it."""
    import torch

    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, fused=True)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    called = torch.compile(net) if compiled else net

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(called(tx), ty)
            loss.backward()
            optimizer.step()
            loss.item()

    return run


if __name__ == "__main__":
    main()
