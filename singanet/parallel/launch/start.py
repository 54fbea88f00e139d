"""The start of a job and of its parts after a failure."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from singanet.base.files import replacing
from singanet.errors import BackendError
from singanet.parallel.communicators.rank_file import (
    DEADLINE,
    LEAVES,
    LOGS,
    RESTART,
    SERVERS,
    TRACE,
    trace_part,
)
from singanet.parallel.launch import hosts as mpirun
from singanet.parallel.launch.hosts import Host, Knocking, Slots, allocated, always, by_slurm
from singanet.parallel.launch.job import Job, JobOptions, say
from singanet.parallel.launch.rank import JobFolder, job_folder

_LOOK = 0.2
"""Seconds between two looks at machines that are waited for."""

_EVERY = 1.0
"""Seconds between two looks at them while ranks work."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How ranks that were started together have ended.

    ``final`` says that nothing is to follow, ``left`` that they ended at a checkpoint as they were
    asked to, so that more can go on from it. The ranks ``dead`` were killed, stopped or hung. They
    got to ``step``, or None if no rank of this machine told.
    """

    status: int
    final: bool = False
    left: bool = False
    dead: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What to start: ``ranks`` on ``hosts``, the ``number``-th time.

    It is asked ``wanted`` now and then whether more ranks could go on.
    """

    number: int
    ranks: int
    hosts: Sequence[Host]
    wanted: Callable[[], bool]


class Elastic:
    """Starts ranks again and again, between ``sizes`` of them, on what is free of ``slots``.

    Begins with ``ranks`` at most. A failure that is not a death is begun anew ``restarts`` times.
    For enough free slots it waits ``deadline`` seconds.
    """

    def __init__(
        self,
        slots: Slots,
        sizes: tuple[int, int],
        ranks: int,
        restarts: int,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._slots, self._deadline, self._say = slots, deadline, say
        self._least, self._most = sizes
        self._ranks, self._restarts = ranks, restarts
        self._furthest = -1
        self._failures = 0

    def run(self, start: Callable[[Attempt], Ending]) -> int:
        """Start it until it ends; the exit status. Errors: `BackendError` for too few slots."""
        most = min(self._ranks, self._most)
        for number in itertools.count():
            hosts = self._filled(self._awaited(), most)
            ranks, most = sum(host.slots for host in hosts), self._most
            if number:
                self._say(f"goes on with {ranks} rank{'s' * (ranks > 1)}")
            began = time.monotonic()
            ending = start(Attempt(number, ranks, hosts, self._wanting(ranks)))
            if ending.final or not (ending.left or self._can_follow(ending, hosts, began)):
                break
            self._furthest = max(self._furthest, ending.step or 0)
        return ending.status

    def _awaited(self) -> list[Host]:
        """The free machines, once they have slots enough."""
        end, told = time.monotonic() + self._deadline, False
        while True:
            free = self._slots.look()
            enough = sum(host.slots for host in free) >= self._least
            if enough and self._slots.known:
                return free
            if time.monotonic() > end:
                raise BackendError(
                    "singanet launch --elastic",
                    expected=f"{_slots(self._least)} within {self._deadline:g} s",
                    received=self._slots.told(),
                    advice="see why their ranks have died or they do not answer, name other "
                    "machines by --hosts, or ask for fewer: --elastic MIN:MAX",
                )
            if not enough and not told and self._slots.known:
                told = True
                self._say(f"waits for {_slots(self._least)}: {self._slots.told()}")
            time.sleep(_LOOK)

    def _filled(self, free: Sequence[Host], most: int) -> list[Host]:
        """The first ``most`` slots."""
        filled = []
        for host in free:
            taken = min(host.slots, most)
            most -= taken
            if taken:
                filled.append(Host(host.name, taken))
        return filled

    def _wanting(self, ranks: int) -> Callable[[], bool]:
        """Whether more than ``ranks`` could work, looked at now and then."""
        due, wanted = time.monotonic() + _EVERY, False

        def look() -> bool:
            nonlocal due, wanted
            if wanted or ranks >= self._most or time.monotonic() < due:
                return wanted
            due = time.monotonic() + _EVERY
            could = min(self._most, sum(host.slots for host in self._slots.look()))
            wanted = could > ranks
            if wanted:
                self._say(f"{could} ranks can work instead of {ranks}: from the next checkpoint on")
            return wanted

        return look

    def _can_follow(self, ending: Ending, hosts: Sequence[Host], began: float) -> bool:
        """Whether others go on: where ranks have died, machines are silent, or a try is left."""
        further = ending.step is None or ending.step > self._furthest
        worked = time.monotonic() - began if further else 0.0
        silent = self._silent_now() & {host.name for host in hosts}
        places = _places(hosts)
        for name in sorted({places[rank] for rank in ending.dead} - silent):
            dead = [rank for rank in ending.dead if places[rank] == name]
            pause = self._slots.died(name, len(dead), worked)
            who = f"ranks {', '.join(map(str, dead))} have" if dead[1:] else f"rank {dead[0]} has"
            many = f"{len(dead)} slots of {name} rest" if dead[1:] else f"a slot of {name} rests"
            self._say(f"{who} died: {many} for {pause:g} s")
        if silent:
            self._say(f"no answer of {', '.join(sorted(silent))}")
        if silent or ending.dead:
            return True
        self._failures += 1
        if self._failures > self._restarts:
            return False
        self._say(f"restart {self._failures} of {self._restarts}")
        return True

    def _silent_now(self) -> set[str]:
        """The machines that do not answer after a failure."""
        self._slots.doubt()
        self._slots.look()
        while not self._slots.known:
            time.sleep(_LOOK)
            self._slots.look()
        return self._slots.silent


def _slots(count: int) -> str:
    return f"{count} free slot{'s' * (count > 1)}"


def _places(hosts: Sequence[Host]) -> list[str]:
    """The machine of each rank, as slots are filled one after the other."""
    return [host.name for host in hosts for _ in range(host.slots)]


def remove_parts(trace: Path, ranks: int) -> None:
    """Remove what ranks wrote beside ``trace``."""
    for rank in range(ranks):
        trace_part(trace, rank).unlink(missing_ok=True)


def merge_traces(trace: Path, ranks: int) -> None:
    """Write ``trace`` from the parts that its ranks wrote, which go.

    The last line of a rank that was killed may not be whole, and is left out.
    """
    events: list[str] = []
    for rank in range(ranks):
        with suppress(FileNotFoundError):
            lines = trace_part(trace, rank).read_text(encoding="utf-8").splitlines(True)
            events += [line.rstrip() for line in lines if line.endswith("}\n")]
    with replacing(trace) as beside:
        text = ",\n".join(events)
        beside.write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{text}\n]}}\n')
    remove_parts(trace, ranks)


def launch(options: JobOptions) -> int:
    """Run it; the exit status of the rank that ended it, 128 and its signal, or 0.

    Errors: `BackendError` on systems other than Linux, where there is no MPI, no host in the hosts
    file, or an allocation that cannot be understood.
    """
    if sys.platform != "linux":
        raise BackendError(
            "singanet launch",
            expected="Linux, which tells the processes of a job by /proc",
            received=sys.platform,
            advice="start the ranks with mpirun: mpirun -n 4 python -m singanet train ...",
        )
    _open_missing()
    hosts = _hosts(options)
    found = mpirun.find_mpirun()
    local = mpirun.local_ranks(options.ranks, hosts)
    if said := mpirun.notes(local, _threads(local)):
        say(said)
    if options.sizes is not None:
        return _resized(options, options.sizes, found, hosts)
    program = options.program
    for attempt in range(options.restarts + 1):
        # Others may be named by now.
        hosts = _hosts(options)
        job = _attempt(options, found, hosts, program, attempt)
        if job.is_final or attempt == options.restarts:
            break
        say(f"restart {attempt + 1} of {options.restarts}")
        program = options.resumed(options.program)
    return job.status


def _open_missing() -> None:
    """Open the null device for closed standard streams, or pipes would get their numbers."""
    with suppress(OSError):
        while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(handle)


def _hosts(options: JobOptions) -> list[mpirun.Host]:
    """The machines of the hosts file, or of the allocation; [] for this one."""
    return allocated(os.environ) if options.hosts is None else mpirun.read_hosts(options.hosts)


def _threads(local: int) -> str:
    return os.environ.get("OMP_NUM_THREADS") or str(mpirun.threads_a_rank(local))


def _attempt(
    options: JobOptions,
    found: str,
    hosts: Sequence[mpirun.Host],
    program: Sequence[str],
    number: int,
    wanted: Callable[[], bool] | None = None,
) -> Job:
    """The job of the ``number``-th start, which has ended."""
    threads = _threads(mpirun.local_ranks(options.ranks, hosts))
    settings = {"OMP_NUM_THREADS": threads, DEADLINE: str(options.deadline), RESTART: str(number)}
    if options.servers:
        settings[SERVERS] = str(options.servers)
    if options.sizes is not None:
        settings[LEAVES] = "1"
    if options.log_dir is not None:
        settings[LOGS] = str(options.log_dir.absolute())
    if options.trace is not None:
        settings[TRACE] = str(options.trace.absolute())
        remove_parts(options.trace, options.ranks)
    with job_folder() as folder:
        job = Job(options, folder, hosts, wanted)
        job.run([found, *job.flags()], program, settings)
    if options.trace is not None:
        merge_traces(options.trace, options.ranks)
    return job


def _resized(
    options: JobOptions, sizes: tuple[int, int], found: str, hosts: Sequence[mpirun.Host]
) -> int:
    """Run it with as many ranks as can work; the exit status."""
    here = not hosts
    known = hosts or [mpirun.Host(socket.gethostname(), sizes[1])]

    def read() -> Sequence[mpirun.Host]:
        nonlocal known
        if options.hosts is not None:
            # It may be half written, or gone for a moment.
            with suppress(OSError, ValueError, BackendError):
                known = mpirun.read_hosts(options.hosts)
        return known

    def start(attempt: Attempt) -> Ending:
        again = options.resumed(options.program) if attempt.number else options.program
        on = replace(options, ranks=attempt.ranks)
        where = [] if here else attempt.hosts
        job = _attempt(on, found, where, again, attempt.number, attempt.wanted)
        return Ending(job.status, job.is_final, job.left, tuple(sorted(job.dead)), job.furthest)

    answers = always if options.hosts is None and by_slurm(os.environ) else Knocking(os.environ)
    slots = Slots(read, answers, options.rest)
    job = Elastic(slots, sizes, options.ranks, options.restarts, options.deadline, say)
    return job.run(start)


if __name__ == "__main__":
    folder = JobFolder(Path(sys.argv[1]))
    if folder.path.is_dir():  # the launcher's own machine, which it sweeps itself
        folder.kill()
    else:
        folder.sweep()
