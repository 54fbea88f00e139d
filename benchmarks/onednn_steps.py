"""Whole training steps with oneDNN's and with NumPy's kernels, against PyTorch eager.

``--threads N`` (1) and ``--rounds N`` (9), and a process for each rival, as for
``onednn_kernels.py``. The nets are the same, SGD with momentum; PyTorch's in both memory formats.
Its columns are left out where it is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics


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
from apart import Run, apart  # noqa: E402
from report import publish, spread, table  # noqa: E402

import singanet  # noqa: E402
from singanet import models  # noqa: E402
from singanet.device import Device  # noqa: E402
from singanet.layers import Activation, Dense  # noqa: E402
from singanet.ops import NumpyOps, numpy_ops  # noqa: E402
from singanet.ops.onednn import OneDnnOps, find_library  # noqa: E402

# name, sample shape, batch
CASES = [
    ("64-64-10", (64,), 32),
    ("lenet", (1, 28, 28), 1),
    ("lenet", (1, 28, 28), 32),
    ("resnet20", (3, 32, 32), 1),
    ("resnet20", (3, 32, 32), 32),
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


def block(before: int, after: int, stride: int):  # noqa: ANN201 - PyTorch may be missing
    """A block of resnet20, with the shortcut of its paper (padded, no parameters)."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.one_bn = nn.BatchNorm2d(after)
            self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.two_bn = nn.BatchNorm2d(after)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.one_bn(self.one(x)))
            y = self.two_bn(self.two(y))
            if after > before:
                x = x[:, :, ::stride, ::stride]
                x = nn.functional.pad(x, (0, 0, 0, 0, 0, after - before))
            return torch.relu(y + x)

    return Block()


def peer(name: str):  # noqa: ANN201 - PyTorch may be missing
    """The same net in PyTorch."""
    from torch import nn

    if name == "64-64-10":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if name == "lenet":
        first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        last = [nn.Dropout(0.5), nn.Linear(3136, 256), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*first, *second, *last, nn.Linear(256, 10))
    parts = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for k in range(3):
            parts.append(block(before, width, 2 if stage and not k else 1))
            before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def peer_step(name: str, x: np.ndarray, y: np.ndarray, last: bool) -> Run:
    """A training step of PyTorch, in one of its memory formats."""
    import torch
    from torch import nn

    torch.set_num_threads(OPTIONS.threads)
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


def make(name: str, row: int) -> Run:
    """A step of the rival in the row."""
    model, shape, batch = CASES[row]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((batch, *shape), np.float32), rng.integers(0, 10, batch)
    if name.startswith("PyTorch"):
        return peer_step(model, x, y, name.endswith("NHWC"))
    kernels = numpy_ops if name == "NumPy" else OneDnnOps(find_library(), required=True)
    net, sgd = ours(model, shape, kernels), singanet.optimizer.SGD(lr=0.01, momentum=0.9)
    return lambda: net.step(x, y, sgd)


def main() -> None:
    """Print and keep the table."""
    if find_library() is None:
        raise SystemExit("no oneDNN library: pip install 'singanet[onednn]'")
    peers = ["PyTorch NCHW", "PyTorch NHWC"] if importlib.util.find_spec("torch") else []
    names = ["NumPy", "oneDNN", *peers]
    rows = []
    measured = apart(make, names, len(CASES), OPTIONS.rounds)
    for (model, _, batch), seconds in zip(CASES, measured, strict=True):
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        cells = [f"{1e3 * middle[name]:.3g} {spread(seconds[name])}" for name in names]
        ratio = min(middle[name] for name in peers or ["NumPy"]) / middle["oneDNN"]
        rows.append([model, str(batch), *cells, f"{ratio:.2f}"])
    note = (
        "Milliseconds a step, median round. Ratio: the time of PyTorch's faster format (of NumPy "
        f"without PyTorch) by oneDNN's. Load of the machine at the end {os.getloadavg()[0]:.1f}."
    )
    title = f"Training steps with oneDNN, {OPTIONS.threads} thread(s)"
    body = table(["net", "batch", *names, "ratio"], rows)
    publish(f"onednn_steps_{OPTIONS.threads}t", title, f"{body}\n\n{note}")


if __name__ == "__main__":
    main()
