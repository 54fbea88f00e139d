"""`Muon` beside PyTorch's: losses of 50 steps, time of an update, and memory beside the state.

    python benchmarks/muon.py

PyTorch's iteration is in bfloat16; "in float32" is the same code with that cast removed.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from report import interleaved, publish, spread, table

from singanet import FeedForwardNet, layers
from singanet.loss import SquaredError
from singanet.optimizer import AdamW, Muon

STEPS, ROUNDS, WIDTH = 50, 9, 128
SHAPES = (128, 128), (256, 256), (256, 1024), (768, 768), (768, 3072), (3072, 768)
NAMES = ("a", "b", "c", "out")


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Keep PyTorch's iteration in the type of the gradient."""
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        yield


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, and targets that a net can learn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 64)).astype(np.float32)
    return x, np.sin(x @ rng.standard_normal((64, 1)).astype(np.float32) / 8)


def made() -> FeedForwardNet:
    """Return a net of three hidden layers, of which two are square and one is tall."""
    hidden = [layers.Dense(name, WIDTH, activation="tanh") for name in "ab"]
    rest = [layers.Dense("c", WIDTH // 4, activation="tanh"), layers.Dense("out", 1)]
    net = FeedForwardNet([*hidden, *rest], loss=SquaredError(), seed=0)
    net.build((64,))
    return net


def ours() -> list[float]:
    """Return the losses here."""
    net, (x, y) = made(), data()
    muon = Muon(0.02, weight_decay=0.1, others=AdamW(0.01))
    return [float(net.step(x, y, muon)[0]) for _ in range(STEPS)]


def theirs() -> list[float]:
    """Return PyTorch's losses from the same weights."""
    net, (x, y) = made(), map(torch.tensor, data())
    parts = [torch.nn.Linear(*net[name].params["weight"].shape) for name in NAMES]
    for linear, name in zip(parts, NAMES, strict=True):
        linear.weight.data = torch.tensor(net[name].params["weight"].value.T.copy())
        linear.bias.data = torch.tensor(net[name].params["bias"].value.copy())
    rest = [*(linear.bias for linear in parts), parts[-1].weight]
    inner = [linear.weight for linear in parts[:-1]]
    rules = [torch.optim.Muon(inner, lr=0.02, weight_decay=0.1), torch.optim.AdamW(rest, lr=0.01)]
    losses = []
    for _ in range(STEPS):
        out = x
        for linear in parts[:-1]:
            out = torch.tanh(linear(out))
        loss = ((parts[-1](out) - y) ** 2).sum(dim=1).mean() / 2
        for rule in rules:
            rule.zero_grad()
        loss.backward()
        for rule in rules:
            rule.step()
        losses.append(loss.item())
    return losses


def apart(one: list[float], other: list[float]) -> str:
    """Return the largest difference of two losses of a step."""
    return f"{max(abs(a - b) for a, b in zip(one, other, strict=True)):.1e}"


def timed(shape: tuple[int, int]) -> list[str]:
    """Return a row: times of an update, and memory beside value, gradient and state."""
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((2, *shape)).astype(np.float32)
    rule = Muon(0.02)
    param = torch.nn.Parameter(torch.tensor(w.T.copy()))
    param.grad = torch.tensor(g.T.copy())
    peer = torch.optim.Muon([param], lr=0.02)

    def as_float32() -> None:
        with in_float32():
            peer.step()

    runs = {"ours": lambda: rule.update(["w"], [w], [g]), "bf16": peer.step, "f32": as_float32}
    seconds = interleaved(runs, ROUNDS, time.process_time)
    tracemalloc.start()
    runs["ours"]()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows, columns = sorted(shape)
    square = rows * rows / (rows * columns)
    row = ["x".join(map(str, shape)), f"{1e3 * statistics.median(seconds['ours']):.2f}"]
    for name in ("f32", "bf16"):
        ratios = [a / b for a, b in zip(seconds["ours"], seconds[name], strict=True)]
        row += [f"{1e3 * statistics.median(seconds[name]):.2f}"]
        row += [f"{statistics.median(ratios):.2f} {spread(ratios)}"]
    # X, the next X, X Xᵀ and its polynomial, in bfloat16.
    return [*row, f"{peak / w.nbytes:.2f}", f"{(2 + 2 * square) / 2:.2f}"]


def main() -> None:
    """Print and keep the tables."""
    torch.set_num_threads(1)
    found, narrow = ours(), theirs()
    with in_float32():
        wide = theirs()
    losses = table(
        ["losses of 50 steps", "largest difference"],
        [
            ["here and PyTorch's in float32", apart(found, wide)],
            ["here and PyTorch's", apart(found, narrow)],
            ["PyTorch's in float32 and PyTorch's", apart(wide, narrow)],
        ],
    )
    header = ["matrix", "ms", "PyTorch in float32, ms", "here by it", "PyTorch, ms", "here by it"]
    header += ["memory in matrices", "PyTorch's, computed"]
    times = table(header, [timed(shape) for shape in SHAPES])
    has = math.isfinite(found[-1]) and "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    note = f"The processor {'has' if has else 'lacks'} products in bfloat16 (avx512_bf16)."
    title = "Muon, beside torch.optim.Muon: processor time of one update of one matrix"
    publish("muon", title, f"{losses}\n\n{times}\n\n{note}")


if __name__ == "__main__":
    main()
