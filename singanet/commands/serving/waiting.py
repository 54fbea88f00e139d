"""Requests that wait for a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """More requests wait than the server allows."""


class WaitingQueue(Generic[T]):
    """The ``items`` that wait for a thread, at most ``most``; ``changed`` locks them."""

    def __init__(self, most: int) -> None:
        self.items: deque[T] = deque()
        self.changed = threading.Condition()
        self.is_closed = False
        self._most = most
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[], None]) -> None:
        """Start the thread with ``run``, which returns once the queue is closed."""
        self._thread = threading.Thread(target=run, name="singanet serve", daemon=True)
        self._thread.start()

    def add(self, item: T) -> None:
        """Add an item. Errors: `QueueFullError` if too many wait, or if the queue is closed."""
        with self.changed:
            if len(self.items) >= self._most or self.is_closed:
                raise QueueFullError
            self.items.append(item)
            self.changed.notify()

    def close(self) -> None:
        """Take no more items, and wait for the thread."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        if self._thread is not None:
            self._thread.join()
