"""Several arrays combined element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Combining:
    """The arrays have equally many axes; an axis of extent 1 spreads over the others' extent."""

    xp: Any

    def combine(
        self, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
    ) -> Array:
        """The "add", "multiply" or "maximum" of at least two arrays, as an array of ``shape``.

        With ``relu`` its maximum with zero.
        """
        function = getattr(self.xp, mode)
        # Ordered in memory as an input is: images lie channels-last, and stay so.
        whole = next((array for array in arrays if array.shape == shape), None)
        y: Array = (
            self.xp.empty(shape, arrays[0].dtype) if whole is None else self.xp.empty_like(whole)
        )
        function(arrays[0], arrays[1], out=y)
        for array in arrays[2:]:
            function(y, array, out=y)
        return self.xp.maximum(y, 0, out=y) if relu else y

    def first_equal(self, y: Array, arrays: Sequence[Array]) -> Array:
        """For each element of ``y`` the number of the first array that holds it."""
        where: Array = self.xp.zeros(y.shape, np.min_scalar_type(len(arrays) - 1))
        for k in range(len(arrays) - 1, -1, -1):
            self.xp.copyto(where, where.dtype.type(k), where=self.xp.equal(arrays[k], y))
        return where

    def select(self, dy: Array, where: Array, k: int) -> Array:
        """``dy`` where ``where`` is ``k``, else zero."""
        return self.xp.where(where == k, dy, 0)

    def sum_to(self, array: Array, shape: Shape) -> Array:
        """``array`` summed along the axes whose extent in ``shape`` is 1; itself where none."""
        axes = tuple(k for k, size in enumerate(shape) if size == 1 and array.shape[k] != 1)
        return array.sum(axis=axes, keepdims=True) if axes else array
