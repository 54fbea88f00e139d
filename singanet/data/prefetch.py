"""A loader whose batches a thread prepares ahead."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.data.loaders import Batch, Loader
from singanet.errors import ArgumentError

T = TypeVar("T")
_END = object()

_LOOK = 0.5
"""The seconds after which a waiting thread checks whether its consumer still exists."""


class Prefetch(Described):
    """A loader whose batches a thread prepares ahead.

    The position counts the batches *yielded*, not the prepared ones: after a restore the next batch
    is the one after the last yielded. If an iteration ends early, by ``break``, `close` or an
    interrupt, the thread ends and the loader goes back to that position; if the loader hangs, the
    next iteration waits for it and does so. An error in the thread is raised here with its
    traceback. One iteration runs at a time: a new one closes the old.

    Args:
        loader: The loader that makes the batches: any object with ``__iter__``, ``state_dict`` and
            ``load_state_dict``.
        capacity: Positive int, the most batches that are prepared ahead.
        each: Function that the thread calls with every batch, and that returns the batch to yield:
            ``net.device.carrier()`` copies it to the net's device. None for the batch itself.

    Examples:
        >>> loader = singanet.data.ArrayLoader(np.zeros((6, 2)), np.arange(6), 3, shuffle=False)
        >>> [y.tolist() for x, y in singanet.data.Prefetch(loader)]
        [[0, 1, 2], [3, 4, 5]]
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
        # Weak, so that leaving a loop drops the last reference and ends the thread.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None
        # The thread that uses the loader, until the loader is put back.
        self._walker: Background[Any] | None = None
        self._ahead = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the thread: a copy continues after the last yielded batch."""
        gone = {"_running": None, "_walker": None, "_ahead": self._is_ahead}
        return {**vars(self), **gone, "_state": self.state_dict()}

    @property
    def rank(self) -> int | None:
        """The rank whose batches these are, if the loader knows."""
        return getattr(self.loader, "rank", None)

    @property
    def world_size(self) -> int | None:
        """The number of ranks, if the loader knows."""
        return getattr(self.loader, "world_size", None)

    def __len__(self) -> int:
        """Return the batches in an epoch, if the loader knows."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        self._put_back()
        self._state = self.loader.state_dict()
        batches = self._batches()
        self._running = weakref.ref(batches)
        return batches

    def close(self) -> None:
        """End the running iteration, if any, and its thread."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch."""
        return dict(self._state if self._is_ahead else self.loader.state_dict())

    @property
    def _is_ahead(self) -> bool:
        """Whether the loader may be beyond the last yielded batch."""
        return self._walker is not None or self._ahead

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state`` of `state_dict`; close a running iteration."""
        self.close()
        self._put_back()
        self.loader.load_state_dict(state)

    def _put_back(self) -> None:
        """Put the loader back to the last yielded batch, after its thread has ended."""
        if self._walker is not None:
            self._walker.stop()
            self._walker.wait()
            self._walker, self._ahead = None, True
        if self._ahead:
            self.loader.load_state_dict(self._state)
            self._ahead = False

    def _batches(self) -> Generator[Batch, None, None]:
        # Stored before it starts, since an interrupt may come at any time.
        walker = self._walker = Background(
            _with_states(self.loader, self.each), self.capacity, "singanet-prefetch"
        )
        try:
            walker.start()
            for batch, state in walker:
                self._state = state
                if batch is not None:
                    yield batch
                # Free this batch while waiting for the next.
                del batch
        finally:
            walker.stop()
            if walker.ended and self._walker is walker:
                self._put_back()


def _with_states(
    loader: Loader, each: Callable[[Batch], Batch] | None
) -> Iterator[tuple[Batch | None, dict[str, Any]]]:
    for batch in loader:
        state = loader.state_dict()
        yield batch if each is None else each(batch), state
    # Some loaders find out only here that the epoch is over.
    yield None, loader.state_dict()


class Background(Generic[T]):
    """The items of ``source``, made by a thread that stays at most ``capacity`` ahead.

    The thread ends soon after the last reference to this object. An error in it is raised to the
    consumer, with the thread's traceback, after the items before it.
    """

    def __init__(self, source: Iterable[T], capacity: int, name: str) -> None:
        self._way = _Way(capacity)
        work = partial(_walk, source, self._way, weakref.ref(self))
        # A daemon, so that a forgotten iterator does not stop the program from exiting.
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __iter__(self) -> Generator[T, None, None]:
        way = self._way
        while (item := way.items.get()) is not _END:
            way.room.put(None)
            yield item
            del item
        if way.error is not None:
            error, way.error = way.error, None
            raise error

    def stop(self) -> None:
        """Stop the thread after its current item; wait for a second at most.

        If the source hangs, the program must still end at the first interrupt.
        """
        self._way.stopped = True
        self._way.room.put(None)
        self.wait(1.0)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the thread has ended, or for ``seconds``."""
        if self._thread is not threading.current_thread() and not self.ended:
            self._thread.join(seconds)


class _Way:
    """Queues between thread and consumer: items, and permits for items ahead.

    They are C queues: an interrupt may leave a `queue.Queue`, or an `Event`, locked forever.
    """

    def __init__(self, capacity: int) -> None:
        self.items: SimpleQueue[Any] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()
        for _ in range(capacity):
            self.room.put(None)
        self.stopped = False
        self.error: BaseException | None = None


def _walk(source: Iterable[Any], way: _Way, taker: weakref.ref[Any]) -> None:
    """Put the items of ``source`` on their ``way`` until stopped: the thread's function."""

    def put(item: Any) -> bool:
        while not way.stopped and taker() is not None:
            try:
                way.room.get(timeout=_LOOK)
            except Empty:
                continue
            way.items.put(item)
            return not way.stopped
        return False

    # It may be stopped before it starts.
    if way.stopped:
        return
    try:
        for item in source:
            if not put(item):
                return
    except BaseException as error:  # noqa: BLE001 - raised again in the consumer
        way.error = error
    put(_END)
