"""The memory that a net's programs take turns with."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from singanet.program.replay.heap import trim
from singanet.types import Array


class SharedArena:
    """One array of bytes, as large as the hungriest program so far needs."""

    def __init__(self) -> None:
        self._arena: Array | None = None
        self._lock = threading.Lock()

    def take(self, size: int, let_go: Callable[[], object]) -> Array:
        """At least ``size`` bytes; until they are given back nobody else has them.

        Where that takes other memory, ``let_go`` is called for the programs to forget the old one.
        """
        # Two threads that took the same one would write over each other.
        with self._lock:
            arena, self._arena = self._arena, None
        if arena is None or len(arena) < size:
            let_go()
            arena = None
            trim()
            arena = np.empty(size, np.uint8)
        return arena

    def give_back(self, arena: Array) -> None:
        """Let the next replay have the bytes."""
        if self._arena is None or len(self._arena) < len(arena):
            self._arena = arena

    def clear(self) -> None:
        """Give the memory back."""
        self._arena = None
