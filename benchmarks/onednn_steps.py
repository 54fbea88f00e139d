"""Whole training steps with oneDNN's and with NumPy's kernels, against PyTorch eager.

``--threads N`` (1) and ``--rounds N`` (9), as for ``onednn_kernels.py``. The nets are the same, SGD
with momentum; PyTorch's in both memory formats. Its columns are left out where it is missing.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable


def options() -> argparse.Namespace:
    """The command line; the threads are set in the environment, which BLAS reads once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    return chosen


OPTIONS = options()

import numpy as np  # noqa: E402 - after the number of threads
from report import interleaved, publish, spread, table  # noqa: E402

import singanet  # noqa: E402
from singanet import models  # noqa: E402
from singanet.device import Device  # noqa: E402
from singanet.layers import Activation, Dense  # noqa: E402
from singanet.ops import NumpyOps, numpy_ops  # noqa: E402
from singanet.ops.onednn import OneDnnOps, find_library  # noqa: E402

try:
    import torch
    from torch import nn
except ImportError:
    torch = nn = None

# name, sample shape, batch, steps a round
CASES = [
    ("64-64-10", (64,), 32, 100),
    ("lenet", (1, 28, 28), 1, 20),
    ("lenet", (1, 28, 28), 32, 3),
    ("resnet20", (3, 32, 32), 1, 3),
    ("resnet20", (3, 32, 32), 32, 1),
]


def ours(name: str, shape: tuple[int, ...], kernels: NumpyOps) -> singanet.FeedForwardNet:
    """The net with these kernels."""
    if name == "64-64-10":
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
        net.add(Dense("fc1", 64, input_sample_shape=shape))
        net.add(Activation("relu"))
        net.add(Dense("fc2", 10))
    else:
        net = models.build(name, shape, 10)
    net.to_device(Device("cpu", kernels))
    return net


if nn is not None:

    class Block(nn.Module):
        """A block of resnet20, with the shortcut of its paper (padded, no parameters)."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.one_bn = nn.BatchNorm2d(after)
            self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.two_bn = nn.BatchNorm2d(after)
            self.stride, self.more = stride, after - before

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The sum of both ways."""
            y = torch.relu(self.one_bn(self.one(x)))
            y = self.two_bn(self.two(y))
            if self.more:
                x = x[:, :, :: self.stride, :: self.stride]
                x = nn.functional.pad(x, (0, 0, 0, 0, 0, self.more))
            return torch.relu(y + x)


def peer(name: str) -> nn.Module:
    """The same net in PyTorch."""
    if name == "64-64-10":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if name == "lenet":
        first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        last = [nn.Dropout(0.5), nn.Linear(3136, 256), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*first, *second, *last, nn.Linear(256, 10))
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            parts.append(Block(before, width, 2 if stage and not block else 1))
            before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def peer_step(name: str, x: np.ndarray, y: np.ndarray, last: bool) -> Callable[[], object]:
    """A training step of PyTorch, in one of its memory formats."""
    torch.manual_seed(0)
    net, tx, ty = peer(name), torch.from_numpy(x), torch.from_numpy(y)
    if last and x.ndim == 4:
        net = net.to(memory_format=torch.channels_last)
        tx = tx.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(tx), ty).backward()
        optimizer.step()

    return step


def repeated(step: Callable[[], object], times: int) -> Callable[[], None]:
    """``times`` steps."""

    def run() -> None:
        for _ in range(times):
            step()

    return run


def main() -> None:
    """Print and keep the table."""
    path = find_library()
    if path is None:
        raise SystemExit("no oneDNN library: pip install 'singanet[onednn]'")
    sources = {"NumPy": numpy_ops, "oneDNN": OneDnnOps(path, required=True)}
    rows = []
    for name, shape, batch, steps in CASES:
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((batch, *shape), np.float32), rng.integers(0, 10, batch)
        runs = {}
        for source, kernels in sources.items():
            net, sgd = ours(name, shape, kernels), singanet.optimizer.SGD(lr=0.01, momentum=0.9)
            runs[source] = repeated(lambda n=net, o=sgd, x=x, y=y: n.step(x, y, o), steps)
        if torch is not None:
            torch.set_num_threads(OPTIONS.threads)
            runs["PyTorch NCHW"] = repeated(peer_step(name, x, y, False), steps)
            runs["PyTorch NHWC"] = repeated(peer_step(name, x, y, True), steps)
        seconds = interleaved(runs, OPTIONS.rounds)
        middle = {key: statistics.median(values) for key, values in seconds.items()}
        cells = [f"{1e3 * middle[key] / steps:.3g} {spread(seconds[key])}" for key in runs]
        best = min(value for key, value in middle.items() if key not in ("oneDNN",))
        rivals = [value for key, value in middle.items() if key.startswith("PyTorch")]
        ratio = f"{min(rivals or [best]) / middle['oneDNN']:.2f}"
        rows.append([name, str(batch), *cells, ratio])
    header = ["net", "batch", *runs, "ratio"]
    note = (
        "Milliseconds a step, median round. Ratio: the time of PyTorch's faster format (of NumPy "
        f"without PyTorch) by oneDNN's. Load of the machine at the end {os.getloadavg()[0]:.1f}."
    )
    title = f"Training steps with oneDNN, {OPTIONS.threads} thread(s)"
    publish(f"onednn_steps_{OPTIONS.threads}t", title, f"{table(header, rows)}\n\n{note}")


if __name__ == "__main__":
    main()
