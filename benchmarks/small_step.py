"""A training step of a 64-64-10 net at batch 32, against the same step in plain NumPy.

What is measured is the price of layers, contexts, checks and the generator.
"""

from __future__ import annotations

import statistics

import numpy as np
from report import interleaved, publish, spread, table

import singanet
from singanet.layers import Activation, Dense

STEPS = 200
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


def build() -> singanet.FeedForwardNet:
    """The same net in layers."""
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("fc1", 64, input_sample_shape=(64,)))
    net.add(Activation("relu"))
    net.add(Dense("fc2", 10))
    return net


def main() -> None:
    """Print and keep the table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 64)).astype(np.float32)
    y = rng.integers(0, 10, 32)
    net = build()
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
        runs["PyTorch, eager"] = torch_step(x, y)
    except ImportError:
        print("PyTorch is not installed: no row for it")
    seconds = interleaved(runs, rounds=15)
    base = statistics.median(seconds["plain NumPy"])
    rows = [
        [
            name,
            f"{1e6 * statistics.median(values) / STEPS:.0f}",
            spread(values),
            f"{statistics.median(values) / base:.2f}",
        ]
        for name, values in seconds.items()
    ]
    header = ["step", "µs", "spread", "ratio to plain NumPy"]
    publish("small_step", "64-64-10 net, batch 32, one SGD step", table(header, rows))


def torch_step(x: np.ndarray, y: np.ndarray):  # noqa: ANN201 - a closure
    """The step in PyTorch with its SGD."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(tx), ty).backward()
            optimizer.step()

    return run


if __name__ == "__main__":
    main()
