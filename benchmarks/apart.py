"""Timing of rivals in processes of their own, round by round.

In one process the idle threads of one library spin for tens of milliseconds on the cores that the
next one needs; a process that waits for its turn sleeps. Each rival imports its library once, then
forks for every row, so that a row's peak of memory is its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Run = Callable[[], object]
Make = Callable[[str, int], "Run | Entrant"]
"""``make(name, row)`` is what the rival ``name`` does in the row; a function of a module."""

CLOCK = "BENCHMARK_CLOCK"
"""The environment variable: "cpu" for the processor's seconds, for a thread on a busy machine."""

_REST = 0.12
_LEAST = 0.01
_WARM_UP = 3


@dataclass
class Entrant:
    """What a rival runs, and what it tells about itself after the last round."""

    run: Run
    facts: dict[str, Any] = field(default_factory=dict)


class NoEntryError(Exception):
    """The rival has nothing to show in this row; the text says why."""


@dataclass
class Taken:
    """Seconds of each round, bytes at the peak beyond the imports, and what the rival told."""

    seconds: list[float]
    peak: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


def apart(
    make: Make,
    names: Sequence[str],
    rows: Sequence[int],
    rounds: int,
    budget: float = 1e9,
    imports: Callable[[str], object] = lambda name: None,
    whole: float = 1e9,
) -> list[dict[str, Taken]]:
    """For each row what each rival took, in as many rounds; at least three, then ``budget`` s.

    Calls are repeated until they take some milliseconds, after one to warm up each time.
    ``imports(name)`` loads what the rival needs in every row. After ``whole`` seconds no row is
    begun, and there are fewer results than rows.
    """
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    workers = []
    for name in names:
        pipes[name], far = context.Pipe()
        workers.append(context.Process(target=_serve, args=(make, name, far, imports)))
        workers[-1].start()
    results = []
    for done, row in enumerate(rows, start=1):
        if time.monotonic() - start > whole:
            break
        results.append(_row(pipes, row, rounds, budget))
        print(f"row {done} of {len(rows)}", file=sys.stderr, flush=True)
    for pipe in pipes.values():
        pipe.send(None)
    for worker in workers:
        worker.join()
    return results


def _row(pipes: dict[str, Any], row: int, rounds: int, budget: float) -> dict[str, Taken]:
    """One row: all set up in turn, then round by round."""
    taken: dict[str, Taken] = {}
    for name, pipe in pipes.items():
        pipe.send(row)
        answer = pipe.recv()
        taken[name] = Taken([], failure=answer if isinstance(answer, str) else "")
    still = {name: pipe for name, pipe in pipes.items() if not taken[name].failure}
    start = time.monotonic()
    for k in range(rounds):
        if k >= 3 and time.monotonic() - start > budget:
            break
        for name, pipe in still.items():
            time.sleep(_REST)
            pipe.send(True)
            answer = pipe.recv()
            if isinstance(answer, str):
                taken[name].failure = answer
            else:
                taken[name].seconds.append(answer)
        still = {name: pipe for name, pipe in still.items() if not taken[name].failure}
    for name, pipe in still.items():
        pipe.send(False)
        taken[name].peak, taken[name].facts = pipe.recv()
    return taken


def _serve(make: Make, name: str, pipe: Any, imports: Callable[[str], object]) -> None:
    """Fork for each row that is asked for; tell of one that died."""
    imports(name)
    for row in iter(pipe.recv, None):
        child = os.fork()
        if not child:
            _compete(make, name, row, pipe)
            return
        _, status = os.waitpid(child, 0)
        if status:
            pipe.send(f"its process ended with status {status}")


def _compete(make: Make, name: str, row: int, pipe: Any) -> None:
    before = resident("RssAnon")
    try:
        made = make(name, row)
        entrant = made if isinstance(made, Entrant) else Entrant(made)
        # The first calls record, compile, fill caches: not what a call takes or needs.
        for _ in range(_WARM_UP):
            entrant.run()
        Path("/proc/self/clear_refs").write_text("5")
        count = max(1, round(_LEAST / _timed(entrant.run, 1)))
        pipe.send(True)
        while pipe.recv():
            if count > 1:
                entrant.run()
            pipe.send(_timed(entrant.run, count) / count)
        # Pages of libraries that were touched on the way are no memory of the step.
        peak = resident("VmHWM") - resident("RssFile") - resident("RssShmem")
        pipe.send((peak - before, entrant.facts))
    except NoEntryError as reason:
        pipe.send(str(reason))
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way; the table tells it
        pipe.send(f"{type(error).__name__}: {str(error)[:300]}")


def resident(key: str) -> int:
    """Bytes of memory of this process by the system's count ``key``, such as RssAnon."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def _timed(run: Run, count: int) -> float:
    clock = time.process_time if os.environ.get(CLOCK) == "cpu" else time.perf_counter
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) or 1e-9
