"""Optimizers with an element-wise rule, applied block by block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.hyper import in_type, is_one
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import BLOCK
from singanet.optimizer.state import ParamUpdate
from singanet.types import Array, RowSparse

Block: TypeAlias = tuple[Array, Array, list[Array], Array, Array]


class ElementWise(Optimizer):
    """An `Optimizer` that applies its rule to 32,768 elements at a time.

    A block of value, gradient, state and two scratch arrays stays in the cache between the
    arithmetic steps of the rule. An update needs no memory but the scratch arrays. CuPy arrays and
    non-contiguous arrays are one block. If ``_only_with_rate`` is True, the rule uses the gradient
    only in a product with its first number; the scale is multiplied into this number, which saves
    a sweep.

    Args:
        learning_rate: A number or schedule. None if every update passes a rate.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first; if False, the default, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.
    """

    _only_with_rate: ClassVar[bool] = False

    def _sweep(self, update: ParamUpdate) -> None:
        state, value, grad, arrays, _, scalars, scale, kept = update
        # The common case first, since this runs for each parameter in each step.
        xp: Any = np if type(value) is np.ndarray else ops_for(value).xp
        regularizer = None if state.regularizer is None else update.regularizer
        # The value of an array is not read.
        bare = regularizer is None and isinstance(scale, (int, float)) and scale == 1
        if self._only_with_rate and regularizer is None and not bare:
            rate, *others = scalars
            scalars, bare = (in_type(xp, rate * scale, value.dtype), *others), True
        for w, g, parts, a, b in self._blocks(xp, value, grad, arrays):
            if not bare:
                g = prepared(xp, w, g, update, a, b)
            decay(xp, w, kept)
            self._rule(xp, w, g, parts, b, *scalars)

    @property
    def _alike(self) -> bool:
        return type(self)._sweep is ElementWise._sweep

    def _blocks(self, xp: Any, value: Array, grad: Array, arrays: list[Array]) -> Iterable[Block]:
        """Return views of value, gradient and state for each block, and two scratch arrays."""
        if xp is not np or not (value.flags.c_contiguous and grad.flags.c_contiguous):
            shaped = [array.reshape(value.shape) for array in arrays]
            return ((value, grad, shaped, xp.empty_like(value), xp.empty_like(value)),)
        w, g = value.reshape(-1), grad.reshape(-1)
        known: dict[np.dtype[Any], tuple[Array, Array]] = vars(self).setdefault("_scratch", {})
        scratch, needed = known.get(w.dtype), min(w.size, BLOCK)
        if scratch is None or scratch[0].size < needed:
            scratch = np.empty(needed, w.dtype), np.empty(needed, w.dtype)
            known[w.dtype] = scratch
        a, b = scratch
        if w.size <= BLOCK:
            return ((w, g, arrays, a[: w.size], b[: w.size]),)
        return _in_blocks(w, g, arrays, a, b)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        value, constraint, xp = update.value, update.state.constraint, ops_for(update.value).xp
        whole = [array.reshape(value.shape) for array in update.arrays]
        run = as_run(indices) if xp is np else None
        if run is not None:
            # A slice needs no copies.
            w, arrays = value[run], [array[run].reshape(-1) for array in whole]
            self._sweep(update._replace(value=w, arrays=arrays))
            if constraint is not None:
                constraint.project(w)
            return
        for rows, g in self._rows_at_a_time(xp, indices, update):
            w = xp.take(value, rows, axis=0)
            arrays = [xp.take(array, rows, axis=0).reshape(-1) for array in whole]
            self._sweep(update._replace(value=w, grad=g, arrays=arrays))
            if constraint is not None:
                constraint.project(w)
            value[rows] = w
            for array, changed in zip(whole, arrays, strict=True):
                array[rows] = changed.reshape(w.shape)

    def _rows_at_a_time(self, xp: Any, indices: Array, update: ParamUpdate) -> Iterator[RowSparse]:
        """Yield the gradient by blocks, or whole if the update of a row depends on other rows."""
        grad, count = update.grad, len(indices)
        by_element = self._alike and update.state.constraint is None
        if by_element and xp is np:
            count = max(1, BLOCK * count // max(grad.size, 1))
        for start in range(0, len(indices), max(count, 1)):
            part = slice(start, start + count)
            yield RowSparse(indices[part], grad[part])

    @abstractmethod
    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        """Change ``w`` and ``arrays`` in place, using ``s`` as scratch; ``g`` is only read."""


def as_run(rows: Array) -> slice | None:
    """Return the rising row numbers ``rows`` as a slice, or None if they have gaps.

    Often all rows of a small table are looked up.
    """
    if not len(rows):
        return None
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else None


def _in_blocks(w: Array, g: Array, arrays: list[Array], a: Array, b: Array) -> Iterator[Block]:
    for start in range(0, w.size, BLOCK):
        part = slice(start, start + BLOCK)
        rest = min(w.size - start, BLOCK)
        yield w[part], g[part], [array[part] for array in arrays], a[:rest], b[:rest]


def decay(xp: Any, w: Array, kept: float) -> None:
    """Multiply w by ``kept`` in place, unless it is 1 or True."""
    if kept != 1.0:
        xp.multiply(w, kept, out=w)


def prepared(xp: Any, w: Array, g: Array, update: ParamUpdate, out: Array, scratch: Array) -> Array:
    """Compute the scaled ``g`` plus the penalty's gradient into ``out``, or return ``g`` itself.

    ``w`` and ``g`` are parts of value and gradient of ``update``.
    """
    regularizer = update.regularizer
    if not is_one(update.scale):
        scale = in_type(xp, update.scale, w.dtype)
        g = xp.multiply(g, scale, out=out if regularizer is None else scratch)
    if regularizer is None:
        return g
    regularizer.add(xp, w, g, update.penalty, out)
    return out
