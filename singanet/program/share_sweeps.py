"""Element-wise calls on many values, which threads share where kernels are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from singanet.ops import cpu_ops
from singanet.ops.numpy.lanes import SWEEP
from singanet.ops.workers import side_by_side
from singanet.program.bind_call import Ready, ready_call
from singanet.program.ir import Call, Ref, refs_of
from singanet.types import Array


def ready_in_parts(call: Call, array_of: Callable[[Ref], Array]) -> Ready:
    """`ready_call`, or such calls side by side, each on a part of what is filled; same bits."""
    filled = _filled(call)
    if filled is None:
        return ready_call(call, array_of)
    axis = max(range(len(filled.shape)), key=lambda k: (filled.shape[k] > 1) * filled.strides[k])
    # Counted from behind, as shapes are met by each other.
    axis -= len(filled.shape)
    parts = [*cpu_ops().lanes(filled.shape[axis], prod(filled.shape) * SWEEP)]
    if len(parts) < 2 or not _made_apart(call, filled):
        return ready_call(call, array_of)

    def on(part: slice) -> Ready:
        return ready_call(call, lambda ref: _part(array_of(ref), axis, part))

    return partial(side_by_side, [[on(part)] for part in parts])


def _filled(call: Call) -> Ref | None:
    """The array that an element-wise call fills, None for other calls."""
    function = call.function
    if call.bind is not None:
        return None
    if function is np.copyto:
        out = call.arguments[0]
    elif isinstance(function, np.ufunc) and function.signature is None and function.nout == 1:
        out = call.keywords.get("out")
    else:
        return None
    out = out[0] if type(out) is tuple else out
    if type(out) is not Ref or not out.shape or min(out.strides) < 0:
        return None
    return out


def _made_apart(call: Call, out: Ref) -> bool:
    """Whether each value of ``out`` is made of those at its place alone."""
    return all(ref == out or ref.token != out.token for ref in refs_of(call))


def _part(array: Array, axis: int, part: slice) -> Array:
    """The part along an axis, counted from behind; all of what is repeated there."""
    axis += array.ndim
    if axis < 0 or array.shape[axis] == 1:
        return array
    return array[(slice(None),) * axis + (part,)]
