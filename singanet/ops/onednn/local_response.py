"""Local response normalisation by oneDNN, which divides ``alpha`` by the size of the window."""

from __future__ import annotations

from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import local_response as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Algorithm, Arg, Prop, Query
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 1024
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py."""

_ACROSS = int(Algorithm.LRN_ACROSS_CHANNELS)


def _lrn(ops: OneDnnBase, x: Array, size: int, alpha: float, beta: float, k: float) -> Array | None:
    images = ops.channels_last(x)
    y: Array = ops.xp.empty_like(images)
    done = ops.runs(_forward, (images.shape, size, alpha * size, beta, k), images, y)
    return y.transpose(0, 3, 1, 2) if done else None


def _lrn_backward(
    ops: OneDnnBase, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    dx: Array = ops.xp.empty_like(images)
    done = ops.runs(_backward, (images.shape, size, alpha * size, beta, k), dx, slopes, images)
    return dx.transpose(0, 3, 1, 2) if done else None


def _is_served(ops: OneDnnBase, x: Array, size: int, *_: float) -> bool:
    # Windows of one channel end the process in oneDNN's backward.
    return size > 1 and x.ndim == 4 and ops.serves(_LEAST, x)


def _is_served_back(ops: OneDnnBase, dy: Array, x: Array, size: int, *_: float) -> bool:
    return size > 1 and x.ndim == 4 and ops.serves(_LEAST, x, dy)


lrn = in_order(Route("onednn", _lrn, _is_served), last=by_numpy.lrn)

lrn_backward = in_order(Route("onednn", _lrn_backward, _is_served_back), last=by_numpy.lrn_backward)


def _desc(
    build: Builder, shape: Shape, prop: Prop, size: int, alpha: float, beta: float, k: float
) -> object:
    x, y = build.images(shape), build.images(shape)
    return build.primitive_desc("lrn_forward", int(prop), _ACROSS, x, y, size, alpha, beta, k)


def _forward(build: Builder, shape: Shape, size: int, alpha: float, beta: float, k: float) -> None:
    desc = _desc(build, shape, Prop.FORWARD_INFERENCE, size, alpha, beta, k)
    build.stage(desc, build.operands((Arg.SRC, Arg.DST), [build.images(shape)] * 2))


def _backward(build: Builder, shape: Shape, size: int, alpha: float, beta: float, k: float) -> None:
    """The forward runs again for what it notes, since between the calls only x is kept."""
    hint = _desc(build, shape, Prop.FORWARD_TRAINING, size, alpha, beta, k)
    x = build.images(shape)
    desc = build.primitive_desc("lrn_backward", _ACROSS, x, x, x, size, alpha, beta, k, hint)
    memories = build.operands((Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC), [x] * 3)
    noted = build.layout(hint, Query.WORKSPACE)
    if build.size(noted):
        notes = build.inner(noted)
        again = {Arg.SRC: memories[Arg.SRC], Arg.DST: build.inner(x), Arg.WORKSPACE: notes}
        build.stage(hint, again)
        memories[Arg.WORKSPACE] = notes
    build.stage(desc, memories)
