"""Sums and products of a few rows as compiled calls, which follow others without Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from singanet.ops import Ops
from singanet.program.ir import Call, Ref
from singanet.program.narrow import bind_to
from singanet.program.trace.strides import is_packed


def with_few_lowered(calls: Sequence[Call], ops: Ops) -> list[Call]:
    """``calls``; float32 sums and products of a few rows are bound to compiled functions."""
    return [_lowered(call, ops) for call in calls]


def _lowered(call: Call, ops: Ops) -> Call:
    function, out = call.function, cast("Ref", call.keywords.get("out"))
    if type(out) is tuple and len(out) == 1:
        (out,) = out
    plain = call.bind is None and call.lane is None and not call.barrier
    if not plain or function not in (np.add, np.multiply) or call.keywords.keys() != {"out"}:
        return call
    if not _is_dense(out) or len(call.arguments) != 2:
        return call
    x, other = call.arguments
    if not _is_like(x, out):
        x, other = other, x
    number = 0.0
    if not _is_like(x, out):
        return call
    if _is_like(other, out):
        kind = "each"
    elif _is_dense(other) and other.shape == out.shape[-1:]:
        kind = "row"
    elif _is_number(other):
        kind, number, other = "number", float(other), x
    else:
        return call
    plan = ops.arithmetic(function, out.shape, kind, number)
    return (
        call if plan is None else replace(call, bind=bind_to(plan, (out, x, other)), plans=(plan,))
    )


def _is_like(value: Any, out: Ref) -> bool:
    return _is_dense(value) and value.shape == out.shape


def _is_dense(value: Any) -> bool:
    """Whether it is an array of float32 in C order with at least one axis."""
    if type(value) is not Ref or value.dtype != np.float32 or not value.shape:
        return False
    return is_packed(value.shape, value.strides, value.dtype.itemsize)


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype == np.float32
    return type(value) in (int, float)
