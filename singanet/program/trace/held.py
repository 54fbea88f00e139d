"""Parameters that are held in fewer bits, as a recording sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from mmap import mmap
from operator import add
from typing import Any

import numpy as np

from singanet.params.held import HeldWeights, standing_in
from singanet.params.param import Param
from singanet.program.trace.tape import Tape
from singanet.types import Array, Shape


class HeldParameters:
    """Those of ``params``, by name.

    Kernels of products read their matrices as they are. Whoever else asks for an array gets one
    that stands for it, without values, and whose readers are refused.
    """

    def __init__(self, net: Any, params: Sequence[Param]) -> None:
        self._net = net
        self.by_name = {
            param.name: param.storage for param in params if isinstance(param.storage, HeldWeights)
        }
        self._arrays = {
            id(param.storage): _unwritten(param.storage.matrix.xp, param.shape)
            for param in params
            if isinstance(param.storage, HeldWeights)
        }
        # A program has one at a time: of what products widen, and of what updates are lent.
        matrices = [storage.matrix for storage in self.by_name.values()]
        self.lent = max((matrix.widened_bytes for matrix in matrices), default=0)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    @property
    def arrays(self) -> list[Array]:
        """The memory of all."""
        return [array for each in self.by_name.values() for array in each.matrix.arrays]

    def hold(self, tape: Tape) -> None:
        """Let ``tape`` know the memory of all, and what stands for it."""
        for array in self.arrays:
            tape.hold(array)
        for name, storage in self.by_name.items():
            why = f"a look at {name!r}, which is held in fewer bits"
            tape.hold(self._arrays[id(storage)], poison=why)

    def standing_in(self) -> AbstractContextManager[None]:
        """A block in which this thread gets the arrays that stand for values."""
        return standing_in(self._arrays)

    def sizes(self) -> dict[int, int]:
        """The bytes of each array that is held, by its id."""
        found: dict[int, int] = {}
        for storage in self.by_name.values():
            sizes = {id(array): array.nbytes for array in storage.matrix.arrays}
            rest = storage.nbytes_trained - sum(sizes.values())
            found |= sizes | ({id(storage): rest} if rest else {})
        return found

    def memory_of(self, name: str, value: Array) -> Sequence[Array]:
        """What an update of the parameter changes: ``value``, or the arrays that hold it."""
        storage = self.by_name.get(name)
        return [value] if storage is None else storage.matrix.arrays

    def change(
        self, names: Sequence[str], values: Sequence[Array], function: Callable[[list[Array]], None]
    ) -> None:
        """Let ``function`` change the values, those that are held as arrays that are lent."""
        found = [self.by_name.get(name) for name in names]
        function(
            [
                value if storage is None else storage.lend()
                for value, storage in zip(values, found, strict=True)
            ]
        )
        for storage in found:
            if storage is not None:
                storage.settle(self._net.rng)

    def count(self, names: Sequence[str], tape: Tape) -> None:
        """Count the arrays that an update lends, beside all that is recorded."""
        found = [self.by_name[name] for name in names if name in self]
        sizes = [4 * storage.matrix.size for storage in found]
        rounding = [storage.rounding_bytes for storage in found]
        # The layers have all of a layer.
        self.lent = max(self.lent, *map(add, sizes, rounding), 0)
        tape.lend(sum(sizes) + max(rounding, default=0))


def _unwritten(xp: Any, shape: Shape) -> Array:
    """An array that nobody writes, which takes no memory."""
    if xp is np:
        # malloc may give what others have written on, which would stay in memory for nothing.
        pages = mmap(-1, max(1, 4 * math.prod(shape)))
        return np.frombuffer(pages, np.float32, math.prod(shape)).reshape(shape)
    # A device would give it at once.
    made: Array = xp.broadcast_to(xp.empty((), np.float32), shape)
    return made
