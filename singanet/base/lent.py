"""Memory that is lent as an array, and used again once nobody has the array any more."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class LentMemory:
    """The memory of ``owner``, an array in one piece that nobody else has, on any device.

    An array that is lent, and each view of it, keeps one array of all bytes alive. A weak reference
    to that one tells, on every Python, whether somebody has the memory. Counts of references do
    not: what they include differs from version to version.
    """

    __slots__ = ("_lent", "_memory", "_of", "_whole", "nbytes")

    def __init__(self, owner: Array) -> None:
        self.nbytes = int(owner.nbytes)
        self._of = type(owner)
        # The base of a view of a view is the first array, as far down as there are arrays. They end
        # at this: a memoryview of NumPy's arrays, a pointer of a device's.
        self._memory: Any = owner.data
        self._whole: weakref.ref[Array] | None = None
        self._lent: weakref.ref[Array] | None = None

    @property
    def is_lent(self) -> bool:
        """Whether somebody has an array that was lent, or a view of one."""
        return self._whole is not None and self._whole() is not None

    def lend(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """All of it as an array of ``shape``: the one that was lent, if somebody still has that."""
        lent = None if self._lent is None else self._lent()
        if lent is None:
            whole = None if self._whole is None else self._whole()
            if whole is None:
                whole = self._new()
                self._whole = weakref.ref(whole)
            lent = whole.view(dtype).reshape(shape)
            self._lent = weakref.ref(lent)
        return lent

    def _new(self) -> Array:
        if self._of is np.ndarray:
            return np.frombuffer(self._memory, np.uint8)
        made: Array = self._of((self.nbytes,), np.uint8, self._memory)
        return made
