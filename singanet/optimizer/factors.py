"""Second moments of a gradient, whole or factored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from singanet.optimizer.element_wise import prepared
from singanet.optimizer.norm import BLOCK, sum_of_squares
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.scale import on_host
from singanet.types import Array


class Factors:
    """V whole, for parameters of one axis or none; the last of the three state arrays."""

    def __init__(self, xp: Any, arrays: list[Array]) -> None:
        self.xp = xp
        self.rows, self.columns, self.full = arrays

    def learn(
        self, blocks: Iterable[Any], shape: tuple[int, int], fresh: float, tiny: float
    ) -> None:
        """V += ``fresh`` (g² − V)."""
        for _, _, h, b in blocks:
            self.xp.multiply(h, h, out=b)
            b -= self.full
            b *= fresh
            self.full += b[0]

    def divide(self, part: slice, h: Array, out: Array, tiny: float) -> Array:
        """``out`` = g / √max(V, tiny²) for rows ``part``; returns the sum of its squares."""
        self.root(part, out)
        self.xp.maximum(out, tiny, out=out)
        self.xp.divide(h, out, out=out)
        return sum_of_squares(out)

    def root(self, part: slice, out: Array) -> None:
        """``out`` = √V for rows ``part``."""
        self.xp.sqrt(self.full, out=out[0])


class RowFactors(Factors):
    """V = R C / mean(R) from the means R of g² over columns and C over rows."""

    def learn(
        self, blocks: Iterable[Any], shape: tuple[int, int], fresh: float, tiny: float
    ) -> None:
        """R and C move by ``fresh`` towards the means of g²."""
        over_rows = self.xp.zeros_like(self.columns)
        for part, _, h, b in blocks:
            self.xp.multiply(h, h, out=b)
            over_rows += self.xp.sum(b, axis=0)
            self.rows[part] += fresh * (self.xp.mean(b, axis=1) - self.rows[part])
        over_rows /= shape[0]
        self.columns += fresh * (over_rows - self.columns)
        # The root of a product is the product of roots, of which there are few.
        self._root_rows = self.xp.sqrt(self.rows)
        self._root_columns = self.xp.sqrt(
            self.columns / self.xp.maximum(self.xp.mean(self.rows), tiny)
        )

    def root(self, part: slice, out: Array) -> None:
        self.xp.multiply(self._root_rows[part, None], self._root_columns, out=out)


def factors_of(xp: Any, value: Array, arrays: list[Array]) -> Factors:
    """The second moments of the parameter ``value`` with the state ``arrays``."""
    return RowFactors(xp, arrays) if value.ndim > 1 else Factors(xp, arrays)


def as_matrix(xp: Any, value: Array) -> Array:
    """``value`` as (shape[0], the rest), a vector as one row; a copy where it has gaps."""
    return xp.ascontiguousarray(value).reshape((len(value), -1) if value.ndim > 1 else (1, -1))


def row_blocks(xp: Any, w: Array, g: Array, update: ParamUpdate) -> Any:
    """Rows of about a block: which, of the value, of the prepared gradient, and scratch.

    ``w`` and ``g`` are value and gradient of ``update`` as matrices.
    """
    count = max(1, BLOCK // w.shape[1]) if on_host(xp) else len(w)
    a = xp.empty((min(count, len(w)), w.shape[1]), w.dtype)
    b = xp.empty_like(a)
    for start in range(0, len(w), count):
        part = slice(start, start + count)
        rows = w[part]
        out, scratch = a[: len(rows)], b[: len(rows)]
        yield part, rows, prepared(xp, rows, g[part], update, out, scratch), scratch


def sweep_rows(sweep: Callable[[ParamUpdate], None], indices: Array, update: ParamUpdate) -> None:
    """``sweep`` over the rows ``indices``; columns learn from them alone.

    The last three state arrays are those of `Factors`, any before them have a number an element.
    """
    value, constraint = update.value, update.state.constraint
    *means, rows, columns, full = update.arrays
    own = full if value.ndim == 1 else rows
    whole = [value, own, *(mean.reshape(value.shape) for mean in means)]
    w, part, *parts = [array[indices] for array in whole]
    moments = [rows, columns, part] if value.ndim == 1 else [part, columns, full]
    arrays = [*(mean.reshape(-1) for mean in parts), *moments]
    sweep(update._replace(value=w, arrays=arrays))
    if constraint is not None:
        constraint.project(w)
    for array, changed in zip(whole, (w, part, *parts), strict=True):
        array[indices] = changed
