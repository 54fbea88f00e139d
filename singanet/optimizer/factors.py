"""Second moments of a gradient, whole or factored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from singanet.optimizer.norm import sum_of_squares
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


class Rows(Factors):
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
        """As `Factors.root`."""
        self.xp.multiply(self._root_rows[part, None], self._root_columns, out=out)
