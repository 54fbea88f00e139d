"""An iterable walked by a thread, a few items ahead of who takes them."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_END = object()


class Background(Generic[T]):
    """The items of ``source``, made by a thread that stays at most ``capacity`` ahead.

    An error in the thread is raised to the taker, with the thread's traceback, after the
    items that came before it.
    """

    def __init__(self, source: Iterable[T], capacity: int, name: str) -> None:
        self._queue: Queue[Any] = Queue(capacity)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        # A daemon, so that an iterator left lying about cannot keep the program from ending.
        self._thread = threading.Thread(target=self._work, args=(source,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Generator[T, None, None]:
        try:
            while (item := self._queue.get()) is not _END:
                yield item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread; returns when it has ended, which waits for the item in the making."""
        self._stopped.set()
        # One place in the queue lets the thread out of put(), after which it sees the event.
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            pass
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self, source: Iterable[T]) -> None:
        try:
            for item in source:
                if self._stopped.is_set():
                    break
                self._queue.put(item)
                if self._stopped.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is wanted
            self._error = error
        finally:
            if not self._stopped.is_set():
                self._queue.put(_END)
