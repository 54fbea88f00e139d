"""Constants: parameters of a predictor, kept as they are or as kernels want them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import numpy as np

from singanet.engine.memory import root_of
from singanet.initializer import Constant
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import ParamStorage
from singanet.program.prediction.order import LoopNest, order_of
from singanet.types import Array, Shape

_NONE = Constant(0.0)
"""The initializer, which nobody asks."""


class ConstantArray(ParamStorage):
    """Memory with a read-only array, as it is or as kernels want it.

    Where a program has the same numbers in another order, the array need not be there as well:
    `let_go` drops it, and the next one who asks for it has it put together again. What is
    ``pinned`` is read as it is.
    """

    __slots__ = ("_laid_out", "_like", "_order", "array", "pinned")

    place = "in memory"
    way_back = ""
    in_memory = True

    def __init__(self, array: Array | None = None) -> None:
        self.array: Array | None = None
        self._like = np.empty(0, np.float32)
        self._laid_out: Array | None = None
        self._order: LoopNest | None = None
        self.pinned = False
        if array is not None:
            self.replace("", array)

    @property
    def filled(self) -> bool:
        """Whether there is an array, in whatever order."""
        return self.array is not None or self._laid_out is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._like.dtype

    def replace(self, name: str, array: Array) -> None:
        """Take ``array`` for the constant's own."""
        array = np.ascontiguousarray(array)
        array.flags.writeable = False
        self._like = np.broadcast_to(np.empty((), array.dtype), array.shape)
        self.array = array

    def lend(self) -> Array:
        """The array, put together from where a program has it."""
        array = self.array
        if array is None:
            assert self._laid_out is not None
            assert self._order is not None
            array = self._order.array(self._laid_out).reshape(self._like.shape)
            self.replace("", array)
        return array

    def read(self) -> Array:
        return self.lend()

    def write(self, array: Array) -> None:
        self.replace("", array)

    @property
    def arrays(self) -> list[Array]:
        """The arrays in memory."""
        return [array for array in (self.array, self._laid_out) if array is not None]

    def is_among(self, roots: Collection[int]) -> bool:
        """Whether the array, as it is, has one of these ids."""
        return self.array is not None and id(root_of(self.array)) in roots

    def found(self, memory: Array, numbers: Array) -> None:
        """Know that ``memory`` may hold the elements whose `numbered` ones are ``numbers``."""
        order = None if self._laid_out is not None else order_of(numbers, self._like.size)
        if order is not None:
            laid_out, bits = memory.view(self.dtype), np.dtype(np.uint32)
            again = order.array(laid_out).view(bits)
            if np.array_equal(again, self.lend().view(bits).reshape(-1)):
                self._laid_out, self._order = laid_out, order

    def let_go(self) -> None:
        """Drop the array if it can be put together again; of a pinned one drop the other order."""
        if self.pinned:
            self._laid_out = None
        elif self._laid_out is not None:
            self.array = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ConstantArray:
        return ConstantArray(self.lend().copy())

    def __reduce__(self) -> Any:
        return ConstantArray, (self.lend().copy(),)


def constant(name: str, shape: Shape, array: Array | None = None) -> Param:
    """A parameter that nobody trains, of ``array``; None leaves it to be filled."""
    made = Param(ParamSpec(name), shape, _NONE, trainable=False)
    made.storage = ConstantArray(array)
    return made


def array_of(param: Param) -> ConstantArray:
    """Where a `constant` is kept."""
    return cast("ConstantArray", param.storage)
