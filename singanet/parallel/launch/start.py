"""Starts and restarts of a job."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

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
from singanet.parallel.launch.job import Ending, Job, JobOptions, Wanted, say
from singanet.parallel.launch.rank import JobFolder, job_folder

_LOOK = 0.2
"""Seconds between two checks for free machines."""

_EVERY = 1.0
"""Seconds between two checks of machines while ranks work."""


Start: TypeAlias = "Callable[[JobOptions, Sequence[Host], int, Wanted | None], Ending]"
"""A function that runs the job on machines, given the number of the start."""


class Restarts:
    """Starts of a job until it succeeds or may not restart.

    A failed job restarts ``options.restarts`` times, on the machines that ``read`` returns then.
    With ``slots`` the number of ranks may change at each start, within ``options.sizes``, and
    deaths of ranks and machines are not failures; the job waits for enough free slots up to
    ``options.deadline``.
    """

    def __init__(
        self,
        options: JobOptions,
        read: Callable[[], Sequence[Host]],
        slots: Slots | None = None,
        say: Callable[[str], None] = say,
    ) -> None:
        self._options, self._read, self._say = options, read, say
        self._slots = slots
        self._least, self._most = options.sizes or (options.ranks, options.ranks)
        self._furthest = -1
        self._failures = 0

    def run(self, start: Start) -> int:
        """Run the job and return the exit status. Errors: `BackendError` for too few slots."""
        again, most = self._options, self._options.ranks
        for number in itertools.count():
            named, wanted = self._read(), None
            hosts = named
            if self._slots is not None:
                hosts = _filled(self._awaited(self._slots), min(most, self._most))
                again, most = replace(again, ranks=sum(h.slots for h in hosts)), self._most
                wanted = self._wanting(self._slots, again.ranks)
                if number:
                    self._say(f"continues with {again.ranks} rank{'s' * (again.ranks > 1)}")
            began = time.monotonic()
            ending = start(again, hosts if named else [], number, wanted)
            if ending.final or not (ending.left or self._can_follow(ending, hosts, began)):
                break
            self._furthest = max(self._furthest, ending.step or 0)
            if not number:
                again = replace(again, program=again.resumed(again.program))
        return ending.status

    def _awaited(self, slots: Slots) -> list[Host]:
        """Wait for enough free slots, and return their machines."""
        few = f"{self._least} free slot{'s' * (self._least > 1)}"
        end, told = time.monotonic() + self._options.deadline, False
        while True:
            free = slots.look()
            enough = sum(host.slots for host in free) >= self._least
            if enough and slots.known:
                return free
            if time.monotonic() > end:
                raise BackendError(
                    "singanet launch --elastic",
                    expected=f"{few} within {self._options.deadline:g} s",
                    received=slots.told(),
                    advice="find out why their ranks died or they do not answer, pass other "
                    "machines by --hosts, or ask for fewer: --elastic MIN:MAX",
                )
            if not enough and not told and slots.known:
                told = True
                self._say(f"waits for {few}: {slots.told()}")
            time.sleep(_LOOK)

    def _wanting(self, slots: Slots, ranks: int) -> Wanted:
        """Return a function that checks now and then whether more than ``ranks`` could work."""
        due, wanted = time.monotonic() + _EVERY, False

        def look() -> bool:
            nonlocal due, wanted
            if wanted or ranks >= self._most or time.monotonic() < due:
                return wanted
            due = time.monotonic() + _EVERY
            could = min(self._most, sum(host.slots for host in slots.look()))
            wanted = could > ranks
            if wanted:
                self._say(f"{could} ranks can work instead of {ranks}: from the next checkpoint on")
            return wanted

        return look

    def _can_follow(self, ending: Ending, hosts: Sequence[Host], began: float) -> bool:
        """Return True after a death or a lost machine, or if a restart is left."""
        if self._slots is not None and self._lost(self._slots, ending, hosts, began):
            return True
        self._failures += 1
        if self._failures > self._options.restarts:
            return False
        self._say(f"restart {self._failures} of {self._options.restarts}")
        return True

    def _lost(self, slots: Slots, ending: Ending, hosts: Sequence[Host], began: float) -> bool:
        """Return True if ranks have died or machines are silent; slots of dead ranks pause."""
        further = ending.step is None or ending.step > self._furthest
        worked = time.monotonic() - began if further else 0.0
        silent = _silent_now(slots) & {host.name for host in hosts}
        # Ranks fill the slots in order.
        places = [host.name for host in hosts for _ in range(host.slots)]
        for name in sorted({places[rank] for rank in ending.dead} - silent):
            dead = [rank for rank in ending.dead if places[rank] == name]
            pause = slots.died(name, len(dead), worked)
            who = f"ranks {', '.join(map(str, dead))} have" if dead[1:] else f"rank {dead[0]} has"
            many = f"{len(dead)} slots of {name} rest" if dead[1:] else f"a slot of {name} rests"
            self._say(f"{who} died: {many} for {pause:g} s")
        if silent:
            self._say(f"no answer of {', '.join(sorted(silent))}")
        return bool(silent or ending.dead)


def _silent_now(slots: Slots) -> set[str]:
    """Return the machines that do not answer after a failure."""
    slots.doubt()
    slots.look()
    while not slots.known:
        time.sleep(_LOOK)
        slots.look()
    return slots.silent


def _filled(free: Sequence[Host], most: int) -> list[Host]:
    """Return the first ``most`` slots."""
    filled = []
    for host in free:
        taken = min(host.slots, most)
        most -= taken
        if taken:
            filled.append(Host(host.name, taken))
    return filled


def remove_parts(trace: Path, ranks: int) -> None:
    """Remove the ranks' parts of ``trace``."""
    for rank in range(ranks):
        trace_part(trace, rank).unlink(missing_ok=True)


def merge_traces(trace: Path, ranks: int) -> None:
    """Write ``trace`` from the parts of its ranks, and remove the parts.

    The last line of a killed rank may be incomplete, and is skipped.
    """
    events: list[str] = []
    for rank in range(ranks):
        with suppress(FileNotFoundError):
            lines = trace_part(trace, rank).read_text(encoding="utf-8").splitlines(True)
            events += [line.rstrip() for line in lines if line.endswith("}\n")]
    with replacing(trace) as temporary:
        text = ",\n".join(events)
        temporary.write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{text}\n]}}\n')
    remove_parts(trace, ranks)


def launch(options: JobOptions) -> int:
    """Run a job; return the exit status of the rank that ended it, 128 plus its signal, or 0.

    Errors: `BackendError` on systems other than Linux, without MPI, without hosts in the hosts
    file, or for an allocation that cannot be parsed.

    Args:
        options: The program, its ranks and machines, and the rules for restarts.
    """
    if sys.platform != "linux":
        raise BackendError(
            "singanet launch",
            expected="Linux, whose /proc lists the processes of a job",
            received=sys.platform,
            advice="start the ranks with mpirun: mpirun -n 4 python -m singanet train ...",
        )
    _open_missing()
    hosts, found = _hosts(options), mpirun.find_mpirun()
    local = mpirun.local_ranks(options.ranks, hosts)
    if said := mpirun.notes(local, _threads(local)):
        say(said)

    def read() -> Sequence[Host]:
        nonlocal hosts
        # The machines may have changed. The file may be incomplete, or missing for a moment.
        with suppress(OSError, ValueError, BackendError):
            hosts = _hosts(options)
        return hosts

    slots = None
    if options.sizes is not None:
        by_ssh = options.hosts is not None or not by_slurm(os.environ)
        here = [Host(socket.gethostname(), options.sizes[1])]
        answers = Knocking(os.environ) if by_ssh else always
        slots = Slots(lambda: read() or here, answers, options.rest)
    return Restarts(options, read, slots).run(partial(_attempt, found))


def _open_missing() -> None:
    """Open the null device for closed standard streams, as pipes would get their numbers."""
    with suppress(OSError):
        while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(handle)


def _hosts(options: JobOptions) -> list[Host]:
    """Return the machines of the hosts file, or of the allocation; [] for this machine."""
    return allocated(os.environ) if options.hosts is None else mpirun.read_hosts(options.hosts)


def _threads(local: int) -> str:
    return os.environ.get("OMP_NUM_THREADS") or str(mpirun.threads_a_rank(local))


def _attempt(
    found: str,
    options: JobOptions,
    hosts: Sequence[Host],
    number: int,
    wanted: Wanted | None,
) -> Ending:
    """Run the ``number``-th start by ``found``, the path of mpirun."""
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
        ending = Job(options, folder, hosts, wanted).run(found, settings)
    if options.trace is not None:
        merge_traces(options.trace, options.ranks)
    return ending


if __name__ == "__main__":
    folder = JobFolder(Path(sys.argv[1]))
    if folder.path.is_dir():  # the launcher sweeps its own machine
        folder.kill()
    else:
        folder.sweep()
