"""What a program consists of: kernel calls, and the memory that they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BufferKind = Literal["input", "parameter", "constant", "output", "temporary"]
Phase = Literal["forward", "loss", "recompute", "backward", "communication", "update"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory of ``nbytes`` bytes that kernels know by its place in a list.

    An ``input`` is filled before the first kernel, a ``parameter`` or ``constant`` lives outside
    the program, an ``output`` is wanted after the last kernel, a ``temporary`` by kernels alone.
    """

    nbytes: int
    kind: BufferKind = "temporary"
    label: str = ""

    @property
    def planned(self) -> bool:
        """Whether it lies in the program's arena."""
        return self.kind in ("input", "output", "temporary")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One call: the numbers of the buffers it reads and writes, for which layer, in which phase.

    A buffer that is changed in part is both read and written. ``in_place`` lists pairs (read,
    written) of buffers that may be the same memory. ``barrier`` kernels keep their place: nothing
    moves across them.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    layer: str = ""
    phase: Phase = "forward"
    in_place: tuple[tuple[int, int], ...] = ()
    barrier: bool = False
