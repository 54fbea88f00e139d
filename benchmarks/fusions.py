"""Rows of `singanet.engine.fusion.FUSIONS`: what those that are there save, and candidates would.

A candidate does an activation in the memory of the output of the product or convolution before it,
or a sum and the layer norm after it block by block, so that the norm finds the sum in the cache.
Steps take turns with the same step whose table lacks the row; times are processor seconds, the
lower quintile of many. Memory is the arena of the program, or by the layers what Python's
allocator held at most. Where a candidate as it stands here becomes a Python step, none is told.

    python benchmarks/fusions.py
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
from report import introduction, publish, table

from singanet import FeedForwardNet
from singanet.engine import fusion
from singanet.engine.fusion import FUSIONS, Fusion
from singanet.engine.plan import NodeStep
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Context,
    Conv2D,
    Dense,
    Flatten,
    Input,
    Layer,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import cpu_ops
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.eltwise import _sum
from singanet.ops.onednn.normalise import _rows
from singanet.optimizer import SGD
from singanet.types import Array

ROUNDS = 30
MB = 1 << 20
MODES = ("relu", "tanh", "sigmoid")
BLOCKS = (64, 256)
"""Rows of a block."""


class InPlace(Layer):
    """A layer and the activation after it, which takes the memory of the layer's output."""

    pure = True

    def __init__(self, layer: Layer, activation: Activation) -> None:
        super().__init__(layer.name)
        self.inner, self.mode, self.params = layer, activation.mode, layer.params

    @property
    def shared(self) -> object:
        """As the layer's."""
        return self.inner.shared

    def forward(self, ctx: Context, x: Array) -> Array:
        """The activation's output, which is kept."""
        y = self.inner.forward(ctx, x)
        if self.mode == "sigmoid":
            ctx.ops.exp(ctx.ops.minimum(y, 30.0, out=y), out=y)
            ctx.ops.divide(y, ctx.ops.add(y, 1.0), out=y)
        else:
            ctx.ops.maximum(y, 0.0, out=y) if self.mode == "relu" else ctx.ops.tanh(y, out=y)
        ctx.save(activated=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The layer's, from the gradient of its output."""
        return self.inner.backward(
            ctx, ctx.ops.activation_backward(self.mode, dy, ctx.saved["activated"])
        )


def _is_product(step: NodeStep) -> bool:
    return type(step.layer) in (Dense, Conv2D)


def _is_activation(step: NodeStep) -> bool:
    return type(step.layer) is Activation and step.layer.mode in MODES


CANDIDATE = Fusion((_is_product, _is_activation), lambda a, b: InPlace(a.layer, b.layer))


def dense(mode: str) -> FeedForwardNet:
    """Four dense layers of 1,024 units with an activation each."""
    x = y = Input("x", (512,))
    for k in range(4):
        y = Activation(f"act{k}", mode)(Dense(f"fc{k}", 1024)(y))
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=Dense("out", 10)(y), seed=0)


def convolutions(mode: str) -> FeedForwardNet:
    """Four convolutions of 32 channels with an activation each."""
    x = y = Input("x", (16, 32, 32))
    for k in range(4):
        y = Activation(f"act{k}", mode)(Conv2D(f"conv{k}", 32, 3)(y))
    out = Dense("out", 10)(Flatten("flat")(y))
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=out, seed=0)


def residual(mode: str) -> FeedForwardNet:
    """Three blocks of convolution, normalisation, activation, sum and activation."""
    x = Input("x", (16, 32, 32))
    y = Conv2D("first", 32, 3)(x)
    for k in range(3):
        z = BatchNormalization(f"norm{k}")(Conv2D(f"conv{k}", 32, 3)(y))
        z = Conv2D(f"second{k}", 32, 3)(Activation(f"act{k}", mode)(z))
        y = Activation(f"out{k}", mode)(Add(f"add{k}")(y, z))
    out = Dense("out", 10)(Flatten("flat")(y))
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=out, seed=0)


def step_row(
    title: str, net_of: Callable[[], FeedForwardNet], batch: int, rows: Sequence[Fusion]
) -> list[str]:
    """A line of the table: the step without ``rows``, and with them."""
    made = [title]
    for recorded in (True, False):
        seconds: list[list[float]] = [[], []]
        memory = [0.0, 0.0]
        nets = [net_of() for _ in seconds]
        rng, shape = np.random.default_rng(0), nets[0].nodes()[0].layer.in_shapes
        x = rng.standard_normal((batch, *shape), np.float32)
        labels = rng.integers(0, 10, batch)
        optimizers = [SGD(lr=0.01) for _ in nets]
        for net in nets:
            net.programs.enabled = recorded
        for turn in range(ROUNDS + 3):
            for k, net in enumerate(nets):
                fusion.FUSIONS = tuple(rows) if k else ()
                if turn == 1 and not recorded:
                    tracemalloc.start()
                start = time.process_time()
                net.step(x, labels, optimizers[k])
                seconds[k].append(time.process_time() - start)
                if turn == 1 and not recorded:
                    memory[k] = tracemalloc.get_traced_memory()[1] / MB
                    tracemalloc.stop()
        if recorded:
            memory = [net.programs.reports()[0].layout.nbytes / MB for net in nets]
        before, after = (1e3 * float(np.quantile(values[3:], 0.2)) for values in seconds)
        if any(net.programs.notes for net in nets if recorded):
            made += ["–", "–"]
            continue
        made += [f"{before:.1f} → {after:.1f} ms", f"{memory[0]:.1f} → {memory[1]:.1f} MB"]
    fusion.FUSIONS = FUSIONS
    return made


def norm_row(rows: int, width: int) -> list[str]:
    """A sum and its layer norm: one after the other, and block by block."""
    ops, rng = cpu_ops(), np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, width), np.float32) for _ in range(2))
    gamma, beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def apart() -> object:
        return ops.layer_norm(ops.combine("add", [a, b], a.shape), gamma, beta, 1e-5)

    def by_blocks(count: int) -> object:
        total, y = np.empty_like(a), np.empty_like(a)
        mean, other = (np.empty((rows, 1), np.float32) for _ in range(2))
        for first in range(0, rows, count):
            part = slice(first, first + count)
            t = total[part]
            if isinstance(ops, OneDnnOps):
                ops.runs(_sum, (t.size, False), t, a[part], b[part])
                given = (t, y[part], mean[part], other[part], gamma, beta)
                ops.runs(_rows, (t.shape, 1e-5, True), *given)
            else:
                np.add(a[part], b[part], out=t)
                np.subtract(t, np.mean(t, 1, keepdims=True, out=mean[part]), out=y[part])
                variance = np.square(y[part]).mean(1, keepdims=True)
                np.divide(1.0, np.sqrt(variance + 1e-5), out=other[part])
                for function, factor in (
                    (np.multiply, other[part]), (np.multiply, gamma), (np.add, beta),
                ):  # fmt: skip
                    function(y[part], factor, out=y[part])
        return total, y

    runs: list[Callable[[], object]] = [apart]
    runs += [lambda count=count: by_blocks(count) for count in BLOCKS]  # type: ignore[misc]
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(2 * ROUNDS):
        for run, values in zip(runs, seconds, strict=True):
            start = time.process_time()
            run()
            values.append(time.process_time() - start)
    micros = [f"{1e6 * float(np.quantile(values, 0.2)):,.0f} µs" for values in seconds]
    return [f"{rows:,} × {width}", *micros]


def main() -> None:
    """Print and keep the tables."""
    steps = [step_row("there: BN + relu, Add + relu", lambda: residual("relu"), 32, FUSIONS)]
    steps += [
        step_row(f"{name} + {mode}, in place", lambda n=net, m=mode: n(m), batch, [CANDIDATE])
        for name, net, batch in (("Dense", dense, 256), ("Conv2D", convolutions, 32))
        for mode in MODES
    ]
    header = ["row", "recorded", "arena", "by the layers", "most held"]
    sizes = [(1024, 256), (4096, 512), (8192, 768)]
    norms = table(
        ["Add + LayerNorm", "apart", *(f"blocks of {count} rows" for count in BLOCKS)],
        [norm_row(*size) for size in sizes],
    )
    ops = os.environ.get("SINGANET_OPS", "onednn")
    body = f"{introduction(__doc__)}\n\nKernels: {ops}.\n\n{table(header, steps)}\n\n{norms}"
    publish(f"fusions_{ops}", "Rows of the table of fusions", body)


if __name__ == "__main__":
    main()
