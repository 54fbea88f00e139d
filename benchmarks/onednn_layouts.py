"""Layouts of oneDNN's own against channels-last ones: the kernels of a training step, one by one.

Nets of blocks of convolution, batch norm with relu, and max pooling, forward and backward, called
through the C interface one after the other on memory that is there. "Blocked" lets oneDNN choose
every layout and keeps it from kernel to kernel; "channels-last" leaves it the weights alone, as
singanet does. Both count the reorders that they need, and what the whole step takes in PyTorch and
in singanet stands beside them. One thread: in one process the idle threads of each library would
stand in the way of the next. ``--rounds N`` (15).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator


def options() -> argparse.Namespace:
    """The command line; one thread is set in the environment, which BLAS reads once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    return chosen


OPTIONS = options()

import time  # noqa: E402 - after the number of threads

import numpy as np  # noqa: E402
from report import interleaved, publish, spread, table  # noqa: E402

import singanet  # noqa: E402
from singanet.layers import (  # noqa: E402
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    MaxPooling2D,
)
from singanet.ops.onednn import OneDnnOps, find_library  # noqa: E402
from singanet.ops.onednn.binding import Algorithm, Arg, Norm, Prop, Query, dims  # noqa: E402
from singanet.ops.onednn.builder import Builder  # noqa: E402

# name, channels of the blocks, batch, size, channels of the images, kernel
CASES = [
    ("three blocks 3×3", (32, 64, 128), 48, 32, 3, 3),
    ("two blocks 5×5", (32, 64), 20, 28, 1, 5),
    ("tiny", (8, 16), 4, 12, 1, 3),
]
TRAINING, DIRECT, MAX = (
    int(x) for x in (Prop.FORWARD_TRAINING, Algorithm.CONVOLUTION_DIRECT, Algorithm.POOLING_MAX)
)
FLAGS = int(Norm.USE_SCALE | Norm.USE_SHIFT | Norm.FUSE_RELU)
HALVE = [dims(pair) for pair in ((2, 2), (2, 2), (0, 0), (0, 0), (0, 0))]


class Chain:
    """The kernels of a net, with a layout and a memory for what goes from one to the next."""

    def __init__(self, build: Builder, blocked: bool) -> None:
        self.build = build
        self.blocked = blocked
        self.operands = 0

    def memory(self, layout: object) -> int:
        """A memory in the working memory of the plan."""
        return self.build.inner(layout)

    def images(self, n: int, size: int, channels: int) -> object:
        """What a convolution is offered for images."""
        if self.blocked:
            return self.build.free((n, channels, size, size))
        return self.build.images((n, size, size, channels))

    def brought(self, layout: object, memory: int, wanted: object) -> int:
        """The memory in the layout that is wanted, reordered where it is another."""
        if self.build.same(layout, wanted):
            return memory
        target = self.memory(wanted)
        self.build.reorder(layout, memory, wanted, target)
        return target


Backward = Callable[[object, int], tuple[object, int]]


def block(
    chain: Chain, x: tuple[object, int], n: int, size: int, c: int, f: int, k: int, first: bool
) -> tuple[tuple[object, int], Backward]:
    """One block forward; the pooled images, and what runs it backward."""
    build = chain.build
    window = [dims(pair) for pair in ((1, 1), (0, 0), (k // 2, k // 2), (k // 2, k // 2))]
    plain, vector = build.rows((f, c, k, k)), build.rows((f,))
    weight = chain.memory(plain)
    conv = build.primitive_desc(
        "convolution_forward", TRAINING, DIRECT, chain.images(n, size, c),
        build.free((f, c, k, k)), None, chain.images(n, size, f), *window,
    )  # fmt: skip
    source, inner = build.layout(conv, Query.SRC), build.layout(conv, Query.DST)
    images = chain.brought(*x, source)
    packed = chain.brought(plain, weight, build.layout(conv, Query.WEIGHTS))
    y, z = chain.memory(inner), chain.memory(inner)
    build.stage(conv, {Arg.SRC: images, Arg.WEIGHTS: packed, Arg.DST: y})
    norm = build.primitive_desc("batch_normalization_forward", TRAINING, inner, inner, 1e-5, FLAGS)
    mask = chain.memory(build.layout(norm, Query.WORKSPACE))
    statistics_ = {a: chain.memory(vector) for a in (Arg.MEAN, Arg.VARIANCE, Arg.SCALE, Arg.SHIFT)}
    build.stage(norm, {Arg.SRC: y, Arg.DST: z, Arg.WORKSPACE: mask, **statistics_})
    half = chain.images(n, size // 2, f)
    pool = build.primitive_desc("pooling_forward", TRAINING, MAX, inner, half, *HALVE)
    outer, where = (build.layout(pool, query) for query in (Query.DST, Query.WORKSPACE))
    pooled, noted = chain.memory(outer), chain.memory(where)
    build.stage(pool, {Arg.SRC: z, Arg.DST: pooled, Arg.WORKSPACE: noted})

    def back(layout: object, dy: int) -> tuple[object, int]:
        dy = chain.brought(layout, dy, outer)
        unpool = build.primitive_desc("pooling_backward", MAX, inner, outer, *HALVE, pool)
        dz, dn = chain.memory(inner), chain.memory(inner)
        build.stage(unpool, {Arg.DIFF_SRC: dz, Arg.DIFF_DST: dy, Arg.WORKSPACE: noted})
        kind, prop = "batch_normalization_backward", int(Prop.BACKWARD)
        desc = build.primitive_desc(kind, prop, inner, inner, inner, 1e-5, FLAGS, norm)
        given = {a: m for a, m in statistics_.items() if a != Arg.SHIFT}
        given |= {a: chain.memory(vector) for a in (Arg.DIFF_SCALE, Arg.DIFF_SHIFT)}
        given |= {Arg.SRC: y, Arg.DIFF_DST: dz, Arg.DIFF_SRC: dn, Arg.WORKSPACE: mask}
        build.stage(desc, given)
        inputs, outputs = chain.images(n, size, c), chain.images(n, size, f)
        free = build.free((f, c, k, k))
        desc = build.primitive_desc(
            "convolution_backward_weights", DIRECT, inputs, free, None, outputs, *window, conv
        )
        made = build.layout(desc, Query.DIFF_WEIGHTS)
        dw = chain.memory(made)
        slopes = chain.brought(inner, dn, build.layout(desc, Query.DIFF_DST))
        again = chain.brought(source, images, build.layout(desc, Query.SRC))
        build.stage(desc, {Arg.SRC: again, Arg.DIFF_DST: slopes, Arg.DIFF_WEIGHTS: dw})
        chain.brought(made, dw, plain)
        if first:
            return layout, dy
        free = build.free((f, c, k, k))
        desc = build.primitive_desc(
            "convolution_backward_data", DIRECT, inputs, free, outputs, *window, conv
        )
        given_w = chain.brought(plain, weight, build.layout(desc, Query.WEIGHTS))
        slopes = chain.brought(inner, dn, build.layout(desc, Query.DIFF_DST))
        below = build.layout(desc, Query.DIFF_SRC)
        dx = chain.memory(below)
        build.stage(desc, {Arg.DIFF_DST: slopes, Arg.WEIGHTS: given_w, Arg.DIFF_SRC: dx})
        return below, dx

    return (outer, pooled), back


def kernels(build: Builder, row: int, blocked: bool) -> None:
    """All kernels of a step, in working memory; the one operand is the batch."""
    _, widths, n, size, c, k = CASES[row]
    chain, ways = Chain(build, blocked), []
    layout = build.images((n, size, size, c))
    x = (layout, build.operand(0, layout))
    for number, f in enumerate(widths):
        x, back = block(chain, x, n, size, c, f, k, number == 0)
        ways.append(back)
        size, c = size // 2, f
    slopes = (x[0], chain.memory(x[0]))
    for back in reversed(ways):
        slopes = back(*slopes)


def alone(row: int, blocked: bool) -> Callable[[], object]:
    """The kernels of a step as one call."""
    ops = OneDnnOps(find_library(), required=True)
    _, _, n, size, c, _ = CASES[row]
    x = np.random.default_rng(0).standard_normal((n, size, size, c), np.float32)
    runtime = ops.runtime()
    plan = runtime.plan(kernels, (row, blocked), x.size * (1 << 10))
    scratch = np.zeros(plan.scratch + 4096, np.uint8)
    start = scratch.ctypes.data
    call = plan.bound([x.ctypes.data], start + -start % 4096)
    return lambda: (call(), x, scratch)


def layers(row: int) -> Iterator[object]:
    """The layers of the whole net."""
    _, widths, _, size, c, k = CASES[row]
    for number, f in enumerate(widths):
        shape = {} if number else {"input_shape": (c, size, size)}
        yield Conv2D(f"conv{number}", f, k, use_bias=False, **shape)
        yield BatchNormalization(f"norm{number}")
        yield Activation(f"relu{number}", "relu")
        yield MaxPooling2D(f"pool{number}", 2, 2)
    yield Flatten("flat")
    yield Dense("fc", 10)


def ours(row: int) -> Callable[[], object]:
    """A step of singanet."""
    _, _, n, size, c, _ = CASES[row]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((n, c, size, size), np.float32), rng.integers(0, 10, n)
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    for layer in layers(row):
        net.add(layer)
    sgd = singanet.optimizer.SGD(lr=0.01, momentum=0.9)
    return lambda: net.step(x, y, sgd)


def theirs(row: int, last: bool) -> Callable[[], object]:
    """A step of PyTorch, in one of its memory formats."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    _, widths, n, size, c, k = CASES[row]
    parts: list[nn.Module] = []
    for f in widths:
        parts += [nn.Conv2d(c, f, k, padding=k // 2, bias=False), nn.BatchNorm2d(f), nn.ReLU()]
        parts.append(nn.MaxPool2d(2))
        c, size = f, size // 2
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(c * size * size, 10))
    _, _, n, size, c, _ = CASES[row]
    x, y = torch.randn(n, c, size, size), torch.randint(0, 10, (n,))
    if last:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        sgd.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        sgd.step()

    return step


def main() -> None:
    """Print and keep the table."""
    rows = []
    for row, (name, _, batch, *_) in enumerate(CASES):
        runs = {"channels-last": alone(row, False), "blocked": alone(row, True), "step": ours(row)}
        if importlib.util.find_spec("torch"):
            runs |= {"PyTorch NCHW": theirs(row, False), "PyTorch NHWC": theirs(row, True)}
        for run in runs.values():
            run(), run()
        # The thread's own time: what other processes take of the core does not count.
        seconds = interleaved(runs, OPTIONS.rounds, time.thread_time)
        middle = {key: statistics.median(values) for key, values in seconds.items()}
        cells = [f"{1e3 * middle[key]:.3g} {spread(seconds[key])}" for key in runs]
        peers = [middle[key] for key in runs if key.startswith("PyTorch")]
        best = min(peers) if peers else float("nan")
        ratios = [f"{middle[key] / best:.2f}" for key in ("channels-last", "blocked", "step")]
        rows.append([name, str(batch), *cells, *ratios])
    shares = ["channels-last by PyTorch", "blocked by PyTorch", "step by PyTorch"]
    body = table(["net", "batch", *runs, *shares], rows)
    note = (
        "Milliseconds, median round; then shares of PyTorch's faster step. The first two columns "
        "are oneDNN's kernels and reorders alone, the third is singanet's whole step. "
        f"Load of the machine at the end {os.getloadavg()[0]:.1f}."
    )
    title = "Layouts of oneDNN's kernels in a training step, 1 thread"
    publish("onednn_layouts_1t", title, f"{body}\n\n{note}")


if __name__ == "__main__":
    main()
