"""NumPy's laws of views, memory order and result types, computed without arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from singanet.errors import ShapeError
from singanet.types import Shape


@lru_cache(maxsize=4096)
def packed(shape: Shape, itemsize: int, order: Sequence[int] | None = None) -> Shape:
    """Return the strides without gaps of ``shape``; ``order`` lists axes from the outermost."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


@lru_cache(maxsize=4096)
def is_packed(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether elements are contiguous in C order, as NumPy's flag."""
    if 0 in shape:
        return True
    step = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return the first byte of an array with elements, counted from its first element, and the end.

    The first byte is below 0 if strides are.
    """
    first = last = 0
    for size, step in zip(shape, strides, strict=True):
        if step < 0:
            first += (size - 1) * step
        else:
            last += (size - 1) * step
    return first, last + itemsize


def indexed(shape: Shape, strides: Shape, index: Any) -> tuple[Shape, Shape, int]:
    """Return shape, strides and offset of the view of a basic index."""
    parts = index if isinstance(index, tuple) else (index,)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > len(shape) or sum(part is Ellipsis for part in parts) > 1:
        raise IndexError(f"index {index} of an array with {len(shape)} axes")
    sizes: list[int] = []
    steps: list[int] = []
    offset = axis = 0
    for part in parts:
        if part is None:
            sizes.append(1)
            steps.append(0)
            continue
        if part is Ellipsis:
            after = axis + len(shape) - taken
            sizes += shape[axis:after]
            steps += strides[axis:after]
            axis = after
            continue
        size, stride = shape[axis], strides[axis]
        axis += 1
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            count = len(range(start, stop, step))
            sizes.append(count)
            steps.append(stride * step)
            offset += stride * start if count else 0
            continue
        place = operator.index(part)
        if not -size <= place < size:
            raise IndexError(f"index {place} is out of bounds for axis {axis - 1} of size {size}")
        offset += stride * (place % size)
    return (*sizes, *shape[axis:]), (*steps, *strides[axis:]), offset


def completed(shape: Shape, wanted: Sequence[int]) -> Shape:
    """Return ``wanted`` with −1 replaced by the size that gives as many elements as ``shape``."""
    size, known = math.prod(shape), abs(math.prod(wanted))
    unknown = wanted.count(-1)
    if unknown == 1 and known and size % known == 0 and min(wanted) == -1:
        return tuple([size // known if n == -1 else n for n in wanted])
    if unknown or known != size or min(wanted, default=0) < 0:
        raise ShapeError(
            "reshape",
            expected=f"a shape of {size} elements",
            received=f"{tuple(wanted)}",
            advice="keep the number of elements; at most one size may be -1",
        )
    return tuple(wanted)


@lru_cache(maxsize=4096)
def reshaped(shape: Shape, strides: Shape, wanted: Shape, itemsize: int) -> Shape | None:
    """Return the strides of a view of ``wanted`` in C order, or None if there is no view.

    The rule is NumPy's ``_attempt_nocopy_reshape``.
    """
    if is_packed(shape, strides, itemsize):
        return packed(wanted, itemsize)
    old = [pair for pair in zip(shape, strides, strict=True) if pair[0] != 1]
    made = [0] * len(wanted)
    at = new = 0
    while at < len(old) and new < len(wanted):
        here, there = at + 1, new + 1
        have, want = old[at][0], wanted[new]
        while have != want:
            if want < have:
                want *= wanted[there]
                there += 1
            else:
                have *= old[here][0]
                here += 1
        for k in range(at, here - 1):
            if old[k][1] != old[k + 1][0] * old[k + 1][1]:
                return None
        made[there - 1] = old[here - 1][1]
        for k in range(there - 1, new, -1):
            made[k - 1] = made[k] * wanted[k]
        at, new = here, there
    last = made[new - 1] if new else itemsize
    made[new:] = [last] * (len(wanted) - new)
    return tuple(made)


@lru_cache(maxsize=4096)
def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape of an element-wise result. Errors: `ValueError` as NumPy's."""
    return np.broadcast_shapes(*shapes)


@lru_cache(maxsize=4096)
def order_of_operands(operands: tuple[tuple[Shape, Shape], ...], ndim: int) -> tuple[int, ...]:
    """Return the axes of the iteration over (shape, strides) pairs, from the outermost.

    The rule is ``nditer``'s in order K: an insertion sort by strides, in which C order wins if
    operands disagree. Broadcast axes have stride 0 and are not compared.
    """
    steps = []
    for shape, strides in operands:
        own = [abs(s) if n != 1 else 0 for n, s in zip(shape, strides, strict=True)]
        steps.append([0] * (ndim - len(own)) + own)
    # From the innermost axis outwards.
    order = [*range(ndim)][::-1]
    for first in range(1, ndim):
        axis, place = order[first], first
        for before in range(first - 1, -1, -1):
            swap = _is_inside(steps, axis, order[before])
            if swap is None:
                continue
            if not swap:
                break
            place = before
        order.insert(place, order.pop(first))
    return tuple(order[::-1])


def _is_inside(steps: Sequence[Sequence[int]], axis: int, other: int) -> bool | None:
    """Whether ``axis`` is iterated inside of ``other``; None if no operand has both."""
    compared = [(own[axis], own[other]) for own in steps if own[axis] and own[other]]
    return all(mine < theirs for mine, theirs in compared) if compared else None


@lru_cache(maxsize=4096)
def order_of_copy(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, ...]:
    """Return the axes of a copy in order K, from the outermost."""
    axes = range(len(shape))
    if is_packed(shape, strides, itemsize):
        return tuple(axes)
    if is_packed(shape[::-1], strides[::-1], itemsize):
        return tuple(axes[::-1])
    return tuple(sorted(axes, key=lambda axis: -abs(strides[axis])))


def order_of_join(parts: Sequence[tuple[Shape, Shape]]) -> tuple[int, ...]:
    """Return the axes of the concatenation of (shape, strides) pairs, from the outermost."""
    order = [*range(len(parts[0][0]))]
    for first in range(1, len(order)):
        axis, place = order[first], first
        for before in range(first - 1, -1, -1):
            other = order[before]
            pairs = [
                (abs(strides[axis]), abs(strides[other]))
                for shape, strides in parts
                if shape[axis] != 1 and shape[other] != 1
            ]
            if not pairs:
                continue
            if not all(mine > theirs for mine, theirs in pairs):
                break
            place = before
        order.insert(place, order.pop(first))
    return tuple(order)


@lru_cache(maxsize=4096)
def normalized(axis: int | tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Return ``axis`` as a tuple of axes from 0 on."""
    return tuple(np.lib.array_utils.normalize_axis_tuple(axis, ndim))


Form = tuple[Shape, Shape, np.dtype[Any]]
"""Shape, strides and type of an array."""


@lru_cache(maxsize=4096)
def element_wise_layout(forms: tuple[Form, ...]) -> tuple[Shape, tuple[int, ...] | None]:
    """Return shape and order of an element-wise result; the order is None for C order."""
    shape = broadcast(tuple([form[0] for form in forms]))
    if all(own == shape and is_packed(own, at, kind.itemsize) for own, at, kind in forms):
        return shape, None
    return shape, order_of_operands(tuple([form[:2] for form in forms]), len(shape))


@lru_cache(maxsize=4096)
def element_wise(
    ufunc: np.ufunc, dtype: Any, *operands: Any
) -> tuple[Shape, tuple[int, ...] | None, tuple[np.dtype[Any], ...]]:
    """Return shape, order and types of the results of an element-wise ``ufunc``.

    ``operands`` are forms of arrays, and types of numbers as in `result_types`; ``dtype`` is the
    keyword.
    """
    kinds = [form[2] if isinstance(form, tuple) else form for form in operands]
    layout = element_wise_layout(tuple([form for form in operands if isinstance(form, tuple)]))
    given = None if dtype is None else (np.dtype(dtype),) * ufunc.nout
    return *layout, given or result_types(ufunc, *kinds)


@lru_cache(maxsize=4096)
def result_types(ufunc: np.ufunc, *kinds: Any) -> tuple[np.dtype[Any], ...]:
    """Return the types of the results of ``ufunc``.

    ``kinds`` are dtypes of arrays, and `int`, `float` or `complex` for Python's numbers, which do
    not widen arrays. Errors: `TypeError` if the function has no loop for them.
    """
    resolved: tuple[np.dtype[Any], ...] = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))
    return resolved[ufunc.nin :]


@lru_cache(maxsize=4096)
def reduced_type(ufunc: np.ufunc, kind: np.dtype[Any], dtype: Any) -> np.dtype[Any]:
    """Return the type of a reduction of an array of ``kind``, with the keyword ``dtype``."""
    found: np.dtype[Any] = np.asarray(ufunc.reduce(np.ones(1, kind), dtype=dtype)).dtype
    return found
