"""Constants: parameters of a predictor, kept as they are or as kernels want them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from singanet.initializer import Constant
from singanet.params.param import Param, ParamSpec
from singanet.program.array_tree import root_of
from singanet.program.prediction.order import LoopNest, order_of
from singanet.types import Array, Shape

_NONE = Constant(0.0)
"""The initializer, which nobody asks."""


class ConstantParam(Param):
    """A read-only array under a parameter's name.

    Where a program has the same numbers in another order, the array need not be there as well:
    `let_go` drops it, and the next one who asks for `value` has it put together again. What is
    ``pinned`` is read as it is.
    """

    __slots__ = ("_laid_out", "_order", "pinned")

    def __init__(self, spec: ParamSpec, shape: Shape) -> None:
        super().__init__(spec, shape, _NONE, trainable=False)
        self._laid_out: Array | None = None
        self._order: LoopNest | None = None
        self.pinned = False

    @classmethod
    def like(cls, param: Param) -> ConstantParam:
        """One under the name of ``param``, with a copy of its array where that is filled."""
        made = cls(param.spec, param.shape)
        if param.filled:
            made.fill(param.peek().copy())
        return made

    def fill(self, array: Array) -> None:
        """Take ``array`` for the constant's own."""
        array = np.ascontiguousarray(array)
        array.flags.writeable = False
        self._value, self.dtype = array, array.dtype

    def retype(self, array: Array) -> None:
        self.fill(array)

    @property
    def filled(self) -> bool:
        """Whether there is an array, in whatever order."""
        return self._value is not None or self._laid_out is not None

    @property
    def value(self) -> Array:
        """The array."""
        # Another thread may let go of it at any time.
        value = self._value
        return self.filled_by(self.name) if value is None else value

    @value.setter
    def value(self, array: Array) -> None:
        self.fill(array)

    def filled_by(self, name: str) -> Array:
        """The array, put together from where a program has it."""
        value = self._value
        if value is None:
            assert self._laid_out is not None
            assert self._order is not None
            value = self._order.array(self._laid_out).reshape(self.shape)
            self.fill(value)
        return value

    @property
    def arrays(self) -> list[Array]:
        """What is held."""
        return [array for array in (self._value, self._laid_out) if array is not None]

    def is_among(self, roots: Collection[int]) -> bool:
        """Whether the array, as it is, has one of these ids."""
        return self._value is not None and id(root_of(self._value)) in roots

    def found(self, memory: Array, numbers: Array) -> None:
        """Know that ``memory`` may hold the elements whose `numbered` ones are ``numbers``."""
        order = None if self._laid_out is not None else order_of(numbers, self.value.size)
        if order is not None:
            laid_out, bits = memory.view(self.dtype), np.dtype(np.uint32)
            again = order.array(laid_out).view(bits)
            if np.array_equal(again, self.value.view(bits).reshape(-1)):
                self._laid_out, self._order = laid_out, order

    def let_go(self) -> None:
        """Drop the array if it can be put together again; of a pinned one drop the other order."""
        if self.pinned:
            self._laid_out = None
        elif self._laid_out is not None:
            self._value = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ConstantParam:
        return _refilled(*self.__reduce__()[1])

    def __reduce__(self) -> Any:
        return _refilled, (self.spec, self.shape, self.value.copy())


def _refilled(spec: ParamSpec, shape: Shape, array: Array) -> ConstantParam:
    made = ConstantParam(spec, shape)
    made.fill(array)
    return made
