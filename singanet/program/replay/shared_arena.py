"""The memory that a net's programs take turns with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from singanet.base.heap import small_pages, trim
from singanet.program.lowering import ON_HOST
from singanet.types import Array


class SharedArena:
    """One array of bytes, as large as the hungriest program so far needs."""

    def __init__(self) -> None:
        self._free: list[Array] = []

    def take(
        self,
        size: int,
        let_go: Callable[[], object],
        holes: bool = False,
        made: Callable[[int], Array] = ON_HOST.memory,
    ) -> Array:
        """At least ``size`` bytes, which belong to the caller until they are given back.

        If the arena has to grow, ``let_go`` is called first, for programs to forget the old one.
        With ``holes`` much of it is never written: on small pages that takes no memory. It is
        ``made`` by the backend.
        """
        try:
            # One thread gets it: two would write over each other.
            arena = self._free.pop()
        except IndexError:
            arena = None
        if arena is None or len(arena) < size:
            let_go()
            arena = None
            trim()
            with small_pages() if holes else nullcontext():
                arena = made(size)
        return arena

    def give_back(self, arena: Array) -> None:
        """Let the next replay have the bytes."""
        free = self._free
        if not free or len(free[0]) < len(arena):
            self._free = [arena]

    def clear(self) -> None:
        """Give the memory back."""
        self._free = []
