"""Arithmetic, activations, copies and reductions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from singanet.ops.threads import changes
from singanet.types import Array, Shape


class Elementwise:
    """Kernels that treat every element alike, and the reductions over them.

    ``prepared`` says that each call is readied once and then made often, and may differ from other
    kernels' by rounding: so it is in predictors, where a library costs little to call.
    ``drops_nan`` says then that a kernel has passed over NaN, which is shown once at the end.
    """

    prepared = False
    drops_nan = False

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        # Bound once: calling them costs no more than calling the array module itself.
        self.add, self.subtract = xp.add, xp.subtract
        self.multiply, self.divide = xp.multiply, xp.divide
        self.maximum, self.minimum = xp.maximum, xp.minimum
        self.exp, self.log, self.log1p = xp.exp, xp.log, xp.log1p
        self.sqrt, self.square, self.tanh = xp.sqrt, xp.square, xp.tanh
        self.absolute, self.negative, self.sign = xp.abs, xp.negative, xp.sign
        self.power, self.greater, self.where = xp.power, xp.greater, xp.where
        self.sum, self.mean, self.copyto = xp.sum, xp.mean, xp.copyto

    def settings(self) -> Hashable:
        """What else than the arrays decides which kernels run, so that a program knows.

        The number of threads may have been set anew.
        """
        return changes()

    def remarks(self) -> list[str]:
        """What users should know of how kernels are chosen, a phrase each."""
        return []

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """Show in each sample of ``y`` a NaN of the same sample of ``x``.

        For kernels that pass over NaN, which here none does.
        """

    def empty(self, shape: Shape, like: Array) -> Array:
        """An unfilled array of the type of ``like``."""
        return self.xp.empty(shape, like.dtype)

    def zeros(self, shape: Shape, like: Array) -> Array:
        """A zero array of the type of ``like``."""
        return self.xp.zeros(shape, like.dtype)

    def add_all(self, arrays: Sequence[Array]) -> Array:
        """The sum of at least two arrays of one shape, as a new array."""
        total: Array = self.xp.add(arrays[0], arrays[1])
        for array in arrays[2:]:
            self.xp.add(total, array, out=total)
        return total

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays end to end along ``axis``."""
        return self.xp.concatenate(arrays, axis=axis)
