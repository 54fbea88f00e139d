"""Max pooling by functions that LLVM compiles: NaN stays, so that nobody has to look for it."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from singanet.ops.compiled.sizes import LANES
from singanet.ops.compiler import has_compiler
from singanet.ops.kernel import Route
from singanet.ops.numpy.windows import channels_first
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.compiled_plan import CompiledPlan, shared
from singanet.ops.window import Window
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

POSITIONS = 256
"""Kernel positions that can be told in a byte."""
_LEAST = 1 << 19
"""Elements from which compiling is won back in some hundred steps."""
_AXES = 3


def _max_pool(
    ops: OneDnnBase, x: Array, window: Window, keep: bool
) -> tuple[Array, Array | None] | None:
    images = ops.channels_last(x)
    n, *size, c = images.shape
    y: Array = ops.xp.empty((n, *window.out_size(*size), c), np.float32)
    where: Array | None = ops.xp.empty(y.shape, np.uint8) if keep else None
    given = [images, y] if where is None else [images, y, where]
    if not y.size or not ops.runs(_max_forward, (images.shape, window, keep), *given):
        return None
    return channels_first(y), where


def _fits(ops: OneDnnBase, x: Array, window: Window, keep: bool) -> bool:
    # oneDNN's may store bfloat16.
    return (
        x.shape[1] >= LANES
        and math.prod(window.kernel) <= POSITIONS
        and not ops.narrow
        and ops.serves(_LEAST, x)
        and has_compiler()
    )


max_pool = Route("compiled", _max_pool, _fits)


def _max_forward(build: Builder, images: Shape, window: Window, keep: bool) -> CompiledPlan:
    """Operands: images, maxima and, if they are kept, positions."""
    n, *size, c = images
    outs, before = window.out_size(*size), [pad for pad, _ in window.pads]
    numbers = [c]
    for values in (size, outs, window.kernel, window.stride, before, window.dilation):
        # Of an image the depth is 1, and has no padding.
        front = 0 if values is before else 1
        numbers += [*[front] * (_AXES - len(values)), *values]
    stages = shared(tuple(numbers), (n * math.prod(outs[:-1]),), build.threads)
    function = _function(1 if c < 2 * LANES else 2, keep)
    return CompiledPlan(build, function, stages, reads=(0,), writes=(1, 2)[: 1 + keep])


@cache
def _function(vectors: int, keep: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.max_pool, vectors, keep)
