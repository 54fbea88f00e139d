"""Arrays of a device while kernels are recorded: NumPy's stand for them, and nobody computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from singanet.base.addresses import address
from singanet.engine.memory import root_of
from singanet.types import Array


class FarArrays:
    """The arrays of ``xp`` that a recording has met, each with one of NumPy that stands for it.

    A recording looks at shapes, types, strides and at which arrays share memory: these are the
    same. Nothing is written to what stands there, so that it takes no memory.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self.kind: type = xp.ndarray
        # By identity; what is kept alive keeps its identity.
        self._near: dict[int, tuple[Any, Array]] = {}
        self._rooms: dict[int, tuple[Any, Array]] = {}
        self._far: dict[int, Any] = {}

    def near(self, array: Any) -> Any:
        """The array that stands for ``array``; what is not the device's as it is."""
        if not isinstance(array, self.kind):
            return array
        found = self._near.get(id(array))
        if found is None:
            found = self._near[id(array)] = array, self._stands(array)
        return found[1]

    def far(self, root: Array) -> Any:
        """The memory of the device that the memory ``root`` stands for, None for any other."""
        return self._far.get(id(root))

    def like(self, array: Any) -> Any:
        """One of NumPy's that lies as a copy of ``array`` would; what is not the device's as it is.

        Nobody keeps ``array`` for it.
        """
        if not isinstance(array, self.kind):
            return array
        of: Any = array
        lies = as_strided(np.empty(1, of.dtype), of.shape, of.strides)
        return np.empty_like(lies, order="K", subok=False)

    def shown(self, array: Array) -> Any:
        """One of the device's in the place of a NumPy ``array``: ones if it is of floats, or zeros.

        It is for Python that has to see one while nobody has its numbers.
        """
        return self._xp.full(array.shape, int(array.dtype.kind == "f"), array.dtype)

    def _stands(self, array: Any) -> Array:
        root = root_of(array)
        if not root.nbytes:
            return np.empty(array.shape, array.dtype)
        known = self._rooms.get(id(root))
        if known is None:
            room = np.empty(root.nbytes, np.uint8)
            known = self._rooms[id(root)] = root, room
            self._far[id(room)] = root
        offset = address(array) - address(root)
        return np.ndarray(array.shape, array.dtype, known[1], offset, array.strides)
