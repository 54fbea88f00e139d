"""Timing of rivals in processes of their own, round by round.

In one process the idle threads of one library spin for tens of milliseconds on the cores that the
next one needs; a process that waits for its turn sleeps. Each rival has a fresh process for every
row, so that a row's peak of memory is its own. It is spawned, not forked: OpenMP has no threads in
a forked child.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Run = Callable[[], object]
Make = Callable[[str, int], "Run | Entrant"]
"""``make(name, row)`` is what the rival ``name`` does in the row; a function of a module."""

Imports = Callable[[str, int], object]
"""``imports(name, row)`` loads what the rival needs; what it takes is no memory of the row."""

CLOCK = "BENCHMARK_CLOCK"
"""The environment variable: "cpu" for the processor's seconds, for a thread on a busy machine."""

REST = 0.12
"""Seconds before each turn, in which the threads of the one before stop spinning."""

_WAKE = 0.05
"""Seconds of calls that begin a turn unmeasured: threads and caches slept through the others'."""

_LEAST = 0.05
"""Seconds of calls that are measured in a turn."""

WARM_UP = 3
"""Calls that record, compile and fill caches: not what a call takes or needs."""


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
    imports: Imports | None = None,
    whole: float = 1e9,
) -> list[dict[str, Taken]]:
    """For each row what each rival took, in as many rounds; at least three, then ``budget`` s.

    A turn is some calls to warm up and some that are measured, one of each where they are long.
    ``imports(name, row)``, where given, loads what the rival needs. After ``whole`` seconds no row
    is begun, and there are fewer results than rows.
    """
    start = time.monotonic()
    results = []
    for done, row in enumerate(rows, start=1):
        if time.monotonic() - start > whole:
            break
        rivals = {name: _Rival(make, name, row, imports) for name in names}
        results.append(_row(rivals, rounds, budget))
        print(f"row {done} of {len(rows)}", file=sys.stderr, flush=True)
    return results


class _Rival:
    """A process that competes in one row, and the pipe to it."""

    def __init__(self, make: Make, name: str, row: int, imports: Imports | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        arguments = (make, name, row, far, imports)
        self._process = context.Process(target=_compete, args=arguments, daemon=True)
        self._process.start()
        # Its own end alone is left open, so that the pipe tells when it dies.
        far.close()

    def asked(self, question: object) -> Any:
        """The answer to a question; a text where it has failed."""
        try:
            self._pipe.send(question)
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return f"its process ended with status {self._process.exitcode}"

    def end(self) -> None:
        """Let the process end, and wait for it."""
        self._pipe.close()
        self._process.join()


def _row(rivals: dict[str, _Rival], rounds: int, budget: float) -> dict[str, Taken]:
    """One row: all set up side by side, then round by round."""
    taken = {name: Taken([]) for name in rivals}

    def answers(question: object, rest: float = 0.0) -> Iterator[tuple[Taken, Any]]:
        for name, rival in rivals.items():
            if taken[name].failure:
                continue
            time.sleep(rest)
            answer = rival.asked(question)
            if isinstance(answer, str):
                taken[name].failure = answer
            else:
                yield taken[name], answer

    for _ in answers("ready?"):
        pass
    start = time.monotonic()
    for k in range(rounds):
        if k >= 3 and time.monotonic() - start > budget:
            break
        for result, seconds in answers("turn", REST):
            result.seconds.append(seconds)
    for result, told in answers("facts"):
        result.peak, result.facts = told
    for rival in rivals.values():
        rival.end()
    return taken


def _compete(make: Make, name: str, row: int, pipe: Any, imports: Imports | None) -> None:
    try:
        if imports is not None:
            imports(name, row)
        before = resident("RssAnon")
        made = make(name, row)
        entrant = made if isinstance(made, Entrant) else Entrant(made)
        for _ in range(WARM_UP):
            entrant.run()
        forget_peak()
    except NoEntryError as reason:
        _tell(pipe, str(reason))
        return
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way; the table tells it
        _tell(pipe, f"{type(error).__name__}: {str(error)[:300]}")
        return
    _answer(pipe, entrant, before)


def _tell(pipe: Any, failure: str) -> None:
    with suppress(EOFError, OSError):
        pipe.recv()
        pipe.send(failure)


def _answer(pipe: Any, entrant: Entrant, before: int) -> None:
    """Answer what is asked until the other end closes the pipe."""
    with suppress(EOFError):
        while question := pipe.recv():
            if question == "ready?":
                pipe.send(True)
            elif question == "turn":
                pipe.send(turn(entrant.run))
            else:
                pipe.send((peak() - before, entrant.facts))


def turn(run: Run, wake: float = _WAKE, least: float = _LEAST) -> float:
    """Seconds of a call, in ``least`` seconds of them after ``wake`` that wake what slept."""
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < wake:
        run()
        count += 1
    count = max(1, round(least * count / passed))
    return _timed(run, count) / count


def fresh(script: str, arguments: Sequence[Any], **environment: str) -> Any:
    """What `begin` in ``script`` makes of ``arguments`` in a fresh process; a text if it fails."""
    done = subprocess.run(
        [sys.executable, script, "--child", json.dumps(arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr[-300:] if done.returncode else json.loads(done.stdout)


def begin(child: Callable[..., Any], main: Callable[[list[str]], object]) -> None:
    """Run ``main`` with the command line; ``child``, where `fresh` has started this process."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(*json.loads(sys.argv[2]))))
    else:
        main(sys.argv[1:])


def on_threads(count: int) -> dict[str, str]:
    """The environment of a process whose kernels run on so many threads.

    As a user would say it: OpenBLAS reads the same name, and a number of its own would have its
    threads stay where oneDNN's are.
    """
    return {"OMP_NUM_THREADS": str(count)}


def forget_peak() -> None:
    """Let `peak` count from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Most bytes that this process held since `forget_peak`."""
    # Pages of libraries that were touched on the way are no memory of the step.
    return resident("VmHWM") - resident("RssFile") - resident("RssShmem")


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
