"""Any loader, walked by a thread while the net works on the batches before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.data.loader import Batch, Loader
from singanet.errors import ArgumentError

T = TypeVar("T")
_END = object()


class Prefetch(Described):
    """The batches of ``loader``, at most ``capacity`` of them made ahead by a thread.

    The position is that of the batches *taken*, not of those made: saved and restored, the
    next batch is the one after the last taken. Ending an iteration early, by ``break``, `close`
    or an interrupt, ends the thread and puts the loader back to that position; where the loader
    hangs, the next iteration waits for it and does so. An error in the thread is raised here with
    its traceback. One iteration runs at a time: a new one closes the old.

    ``each`` is called with every batch, in the thread, and gives the one to hand out:
    ``net.device.carrier()`` brings it to the net's device.
    """

    def __init__(
        self,
        loader: Loader,
        capacity: int = 2,
        each: Callable[[Batch], Batch] | None = None,
    ) -> None:
        for method in ("__iter__", "state_dict", "load_state_dict"):
            if not hasattr(loader, method):
                raise ArgumentError(
                    "Prefetch",
                    expected="a loader with state_dict and load_state_dict",
                    received=f"a {type(loader).__name__} without {method}",
                    advice="wrap a function that makes batches in a GeneratorLoader",
                )
        self.loader = loader
        self.capacity = checked_count("Prefetch", "capacity", capacity, 1)
        self.each = each
        self._state = loader.state_dict()
        # Weak, so that leaving a loop drops the last reference and with it ends the thread.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None
        self._left: Background[Any] | None = None
        self._ahead = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the iteration and its thread: a copy goes on after the last batch taken."""
        gone = {"_running": None, "_left": None, "_ahead": self._is_ahead}
        return {**vars(self), **gone, "_state": self.state_dict()}

    @property
    def rank(self) -> int | None:
        """Whose batches these are, where the loader knows."""
        return getattr(self.loader, "rank", None)

    @property
    def world_size(self) -> int | None:
        """Of how many ranks, where the loader knows."""
        return getattr(self.loader, "world_size", None)

    @property
    def share_out(self) -> Callable[[int, int], None]:
        """The `share_out` of the loader; AttributeError if it has none."""
        shared: Callable[[int, int], None] = self.loader.share_out  # type: ignore[attr-defined]
        return shared

    def __len__(self) -> int:
        """Batches in an epoch, where the loader knows."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        self._put_back()
        self._state = self.loader.state_dict()
        batches = self._batches()
        self._running = weakref.ref(batches)
        return batches

    def close(self) -> None:
        """End the iteration that is running, if one is, and its thread."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch taken."""
        return dict(self._state if self._is_ahead else self.loader.state_dict())

    @property
    def _is_ahead(self) -> bool:
        """Whether the loader may be further than the last batch taken."""
        running = self._running is not None and self._running() is not None
        return running or self._left is not None or self._ahead

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; an iteration that is running is closed."""
        self.close()
        self._put_back()
        self.loader.load_state_dict(state)

    def _put_back(self) -> None:
        """Put the loader back to the last batch taken; a thread that was left in it ends first."""
        if self._left is not None:
            self._left.wait()
            self._left, self._ahead = None, True
        if self._ahead:
            self.loader.load_state_dict(self._state)
            self._ahead = False

    def _batches(self) -> Generator[Batch, None, None]:
        ahead = Background(self._with_states(), self.capacity, "singanet-prefetch")
        try:
            with closing(iter(ahead)) as items:
                for batch, state in items:
                    self._state = state
                    if batch is not None:
                        yield batch
                    # The next one is waited for, and this one may be let go.
                    del batch
        finally:
            self._running = None
            if ahead.ended:
                self.loader.load_state_dict(self._state)
            else:
                self._left = ahead

    def _with_states(self) -> Iterator[tuple[Batch | None, dict[str, Any]]]:
        for batch in self.loader:
            state = self.loader.state_dict()
            yield batch if self.each is None else self.each(batch), state
        # Some loaders learn only here that the epoch is over.
        yield None, self.loader.state_dict()


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

    @property
    def ended(self) -> bool:
        """Whether the thread is out of the source for good."""
        return not self._thread.is_alive()

    def __iter__(self) -> Generator[T, None, None]:
        try:
            while (item := self._queue.get()) is not _END:
                yield item
                del item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread, which ends after the item in the making; wait for a second at most.

        A source that hangs must not keep the program from ending at the first interrupt.
        """
        self._stopped.set()
        # One place in the queue lets the thread out of put(), after which it sees the event.
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            pass
        self.wait(1.0)

    def wait(self, seconds: float | None = None) -> None:
        """Return when the thread has ended, or after so many seconds."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

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
