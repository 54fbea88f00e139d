"""Timing of rivals in processes of their own, round by round.

In one process the idle threads of one library spin for tens of milliseconds on the cores that the
next one needs; a process that waits for its turn sleeps.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[], object]
Make = Callable[[str, int], Run]
"""``make(name, row)`` is what the rival ``name`` does in the row; a function of a module."""

_REST = 0.12
_LEAST = 0.01


def apart(make: Make, names: Sequence[str], rows: int, rounds: int) -> list[dict[str, list[float]]]:
    """For each row the seconds of each rival's call, in as many rounds.

    Calls are repeated until they take some milliseconds, after one to warm up each time.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    workers = []
    for name in names:
        pipes[name], far = context.Pipe()
        workers.append(context.Process(target=_serve, args=(make, name, far), daemon=True))
        workers[-1].start()
    results = []
    for row in range(rows):
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for k in range(rounds + 1):
            for name, pipe in pipes.items():
                time.sleep(_REST if k else 0)
                pipe.send(row)
                taken = pipe.recv()
                if k:
                    seconds[name].append(taken)
        results.append(seconds)
    for pipe in pipes.values():
        pipe.send(None)
    for worker in workers:
        worker.join()
    return results


def _serve(make: Make, name: str, pipe: Any) -> None:
    run: Run = lambda: None  # noqa: E731 - until the first row
    last, count = -1, 1
    for row in iter(pipe.recv, None):
        if row != last:
            last, run = row, make(name, row)
            run()
            count = max(1, round(_LEAST / _timed(run, 1)))
        run()
        pipe.send(_timed(run, count) / count)


def _timed(run: Run, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start
