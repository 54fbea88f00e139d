"""In which order the axes of an array lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.engine.plan import Plan
from singanet.types import Array, Shape

Order = tuple[int, ...] | None
"""The axes from the one with the longest strides on; None for C order."""


def order_of(array: Array) -> Order:
    """How ``array`` lies; of one with gaps its strides, which are no axes."""
    if array.flags.c_contiguous:
        return None
    axes = tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    return axes if array.transpose(axes).flags.c_contiguous else (-1, *array.strides)


def is_dense(order: Order) -> bool:
    """Whether an array that lies so has no gaps."""
    return order is None or -1 not in order


def zeros_in(order: Order, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Zeros that lie so, or in C order for an order with gaps."""
    if order is None or not is_dense(order):
        return np.zeros(shape, dtype)
    made = np.zeros([shape[axis] for axis in order], dtype)
    return made.transpose(np.argsort(order))


def output_slots(plan: Plan) -> list[int]:
    """The slots of the plan's outputs, in their order."""
    return [slot for name in plan.outputs for slot in plan.by_name[name].out_slots]
