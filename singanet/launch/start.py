"""Jobs, begun and begun anew."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from singanet.errors import BackendError
from singanet.launch import mpirun
from singanet.launch.allocation import allocated, by_slurm
from singanet.launch.elastic import Attempt, Elastic, Ending
from singanet.launch.folder import job_folder
from singanet.launch.job import Job, JobOptions, say
from singanet.launch.slots import Knocking, Slots, always
from singanet.launch.traces import merge_traces, remove_parts
from singanet.parallel.communicators.board import (
    DEADLINE,
    ELASTIC,
    LEAVES,
    LOGS,
    RESTART,
    SERVERS,
    TRACE,
)


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
    if options.elastic:
        settings[ELASTIC] = "1"
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
