"""BatchQueue of waiting requests: a thread computes what waits together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from singanet.commands.serving.waiting import WaitingQueue


class BatchQueue:
    """A thread that computes waiting inputs together.

    Args:
        compute: Function of a list of inputs that returns a list of results. If it fails for
            several inputs, each is computed alone, so that an input fails alone.
        alike: Function of an input: inputs of equal values are computed together.
        rows: Function that returns the number of rows of an input.
        most_rows: The most rows that are computed together, unless one input has more.
        most_waiting: The most inputs that wait.
    """

    def __init__(
        self,
        compute: Callable[[list[Any]], Sequence[Any]],
        alike: Callable[[Any], Hashable],
        rows: Callable[[Any], int],
        most_rows: int = 64,
        most_waiting: int = 64,
    ) -> None:
        self._compute, self._alike, self._rows = compute, alike, rows
        self._most_rows = most_rows
        self._queue = WaitingQueue[tuple[Any, "Future[Any]"]](most_waiting)
        self._queue.start(self._run)

    @property
    def waiting(self) -> int:
        """The number of inputs that wait."""
        return len(self._queue.items)

    def submit(self, x: Any) -> Future[Any]:
        """Add an input; return its future result. Errors: `QueueFullError`."""
        future: Future[Any] = Future()
        self._queue.add((x, future))
        return future

    def close(self) -> None:
        """Finish what waits, and end."""
        self._queue.close()

    def _run(self) -> None:
        queue = self._queue
        while True:
            with queue.changed:
                while not (queue.items or queue.is_closed):
                    queue.changed.wait()
                if not queue.items:
                    return
                together = self._next()
            together = [pair for pair in together if pair[1].set_running_or_notify_cancel()]
            if together:
                self._answer(together)

    def _next(self) -> list[tuple[Any, Future[Any]]]:
        """Remove and return the first input, and those behind it that are like it."""
        waiting = self._queue.items
        first = waiting.popleft()
        found, kind, rows = [first], self._alike(first[0]), self._rows(first[0])
        while waiting and self._alike(waiting[0][0]) == kind:
            rows += self._rows(waiting[0][0])
            if rows > self._most_rows:
                break
            found.append(waiting.popleft())
        return found

    def _answer(self, together: list[tuple[Any, Future[Any]]]) -> None:
        try:
            results = self._compute([x for x, _ in together])
        except Exception as error:  # noqa: BLE001 - the others go on
            if len(together) == 1:
                together[0][1].set_exception(error)
                return
            for pair in together:
                self._answer([pair])
            return
        for (_, future), result in zip(together, results, strict=True):
            future.set_result(result)
