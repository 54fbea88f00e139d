"""The run of a job: its output, its supervision, and its end."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from singanet.base.progress import ProgressBar, erase_bar
from singanet.parallel.communicators.rank_file import JOB, RankState, read_state
from singanet.parallel.launch import hosts as mpirun
from singanet.parallel.launch.hosts import elsewhere
from singanet.parallel.launch.rank import ASKED, JobFolder, reports_others

RANK = "singanet.parallel.launch.rank"
"""The module that each process runs."""
_PIECE, _KEPT = 1 << 16, 1 << 14


class Outputs:
    """The output of rank 0, by files in ``folder``, and the output of mpirun.

    If the launcher's output is a terminal, rank 0 writes to it directly, and so can detect a
    terminal. The output of mpirun is stored, and printed if ``remote`` ranks write through it.
    """

    def __init__(self, folder: Path, remote: bool) -> None:
        self._to: dict[int, int | None] = {}
        self._open: list[int] = []
        self._output = b""
        self._selector = selectors.DefaultSelector()
        for number, name in ((1, "out"), (2, "err")):
            place = folder / name
            if _is_terminal(number):
                place.symlink_to(os.ttyname(number))
            else:
                os.mkfifo(place, 0o600)
                # Open for writing, too, so that it does not end before the first rank opens it.
                self._listen(os.open(place, os.O_RDWR | os.O_NONBLOCK), number)
        read, self.mpirun = os.pipe()
        os.set_blocking(read, False)
        self._mpirun = read
        self._listen(read, 2 if remote else None)

    def _listen(self, handle: int, to: int | None) -> None:
        self._to[handle] = to
        self._open.append(handle)
        self._selector.register(handle, selectors.EVENT_READ)

    def started(self) -> None:
        """Close the launcher's copy of the pipe that mpirun writes to."""
        os.close(self.mpirun)

    def carry(self, seconds: float) -> None:
        """Forward output that arrives within ``seconds``, and all that follows at once."""
        while ready := self._selector.select(seconds):
            seconds = 0.0
            for key, _ in ready:
                self._carry_from(key.fd)

    def _carry_from(self, handle: int) -> None:
        piece = b""
        with suppress(BlockingIOError):
            piece = os.read(handle, _PIECE)
        if not piece:
            self._selector.unregister(handle)
            return
        if handle == self._mpirun:
            self._output = (self._output + piece)[-_KEPT:]
        to = self._to[handle]
        while to is not None and piece:
            try:
                piece = piece[os.write(to, piece) :]
            except OSError:  # the reader has ended; the job continues
                self._to[handle] = to = None

    @property
    def said(self) -> str:
        """The end of mpirun's output."""
        return self._output.decode(errors="replace")

    def __enter__(self) -> Outputs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        self._selector.close()
        for handle in self._open:
            os.close(handle)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number) and bool(os.ttyname(number))
    except OSError:
        return False


_LOOK = 0.2
"""Seconds between two checks of the ranks."""

_LAST, _GRACE = 3.0, 30.0
"""Seconds that ranks have to end, after a failure and after a request of the user."""

_SWEEP = 30.0
"""Seconds for sweeping the other machines."""

_INTERRUPTED = 130
"""The exit status of a rank after Ctrl-C."""

_NOTICE = 10.0
"""Seconds in which other ranks notice that a rank has died or ended."""

_AGAIN = 5.0
"""Seconds between requests to end at a checkpoint."""

_SHOWN = 8
"""The most ranks in a message, and the most lines of each."""

_STARTS = 300.0
"""Seconds after the launch in which a computing rank, as in imports, is not late."""

_TELLS = 0.5
"""Seconds in which ranks must write their stacks."""


_RANK = f"{os.sep}launch{os.sep}rank.py"
"""The end of the path of the rank's program, whose frames are omitted from stacks."""


def _unchanged(program: Sequence[str]) -> Sequence[str]:
    """Return ``program``."""
    return program


@dataclass(frozen=True)
class JobOptions:
    """The options of a job; ``program`` is ``-m NAME`` or a script, and its arguments.

    ``hosts`` is a hosts file, None for the machines of Slurm's or PBS's allocation, or this
    machine. ``log_dir`` is for the output of ranks other than 0, ``trace`` for a Chrome trace. The
    last ``servers`` of the ranks are parameter servers, and do not run the program. A rank that is
    stopped for ``patience`` seconds ends the job; a wait of ``stall`` seconds is reported, and a
    wait of ``deadline`` seconds is an error. A failed job restarts up to ``restarts`` times, with
    the program that ``resumed`` returns, unless its exit status is in ``final``. With ``sizes``,
    the minimum and maximum number of ranks, it restarts with all free slots, when ranks have died
    and, at a checkpoint, when more slots are free; ``ranks`` is the first number. A slot whose rank
    has died pauses for ``rest`` seconds, twice as long each time.
    """

    ranks: int
    program: Sequence[str]
    hosts: Path | None = None
    restarts: int = 0
    log_dir: Path | None = None
    trace: Path | None = None
    patience: float = 5.0
    stall: float = 60.0
    deadline: float = 300.0
    servers: int = 0
    final: frozenset[int] = frozenset()
    resumed: Callable[[Sequence[str]], Sequence[str]] = _unchanged
    sizes: tuple[int, int] | None = None
    rest: float = 10.0


Wanted: TypeAlias = Callable[[], bool]
"""A function that returns True if more ranks could work; called now and then."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one start of a job.

    ``final`` forbids another start. ``left`` means an end at a checkpoint, for a start with more
    ranks. The ranks ``dead`` were killed, stopped or hung. ``step`` is the last step of the ranks,
    None if no rank of this machine reported one.
    """

    status: int
    final: bool = False
    left: bool = False
    dead: tuple[int, ...] = ()
    step: int | None = None


class Job:
    """One start of a job in ``folder``, which ends at a checkpoint if more ranks are `Wanted`."""

    def __init__(
        self,
        options: JobOptions,
        folder: JobFolder,
        hosts: Sequence[mpirun.Host] = (),
        wanted: Wanted | None = None,
    ) -> None:
        self.options, self.folder, self._hosts = options, folder, hosts
        self.left = False
        self.dead: set[int] = set()
        self._wanted, self._leaving_at = wanted, 0.0
        self._launched: float | None = None
        self._starting: dict[int, int] = {}
        self._busy = 0.0
        self._mpirun = 0
        self.asked: signal.Signals | None = None
        self._asks = 0
        self._kill_at: float | None = None
        self._stopped: dict[int, float] = {}
        self._failure = ""
        self._remote = options.hosts is not None or elsewhere(hosts)
        self._stalls: set[tuple[int, int]] = set()
        self._asked_stacks: dict[int, list[str]] = {}

    def flags(self) -> list[str]:
        """Return mpirun's options for this job."""
        options, folder = self.options, self.folder
        if options.sizes is not None and self._hosts:
            # The working machines; from an allocation mpirun would take other ones.
            mpirun.write_hosts(folder.path / "hosts", self._hosts)
        flags = mpirun.flags(options.ranks, self._hosts_file, folder.path, self._remote)
        if options.sizes is not None:
            flags += mpirun.RESIZED
        return flags

    @property
    def _hosts_file(self) -> Path | None:
        own = self.options.sizes is not None and self._hosts
        return self.folder.path / "hosts" if own else self.options.hosts

    def run(self, found: str, settings: Mapping[str, str]) -> Ending:
        """Run the job by ``found``, the path of mpirun, until its end."""
        start = [found, *self.flags()]
        environment = {**os.environ, **settings, JOB: str(self.folder.path)}
        if self._remote:
            own = [name for name in environment if name.startswith(("SINGANET_", "PYTHON", "OMP_"))]
            start = [*start, *(flag for name in own for flag in ("-x", name))]
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._take) for number in numbers}
        with Outputs(self.folder.path, self._remote) as outputs:
            try:
                process = subprocess.Popen(
                    [
                        *start,
                        sys.executable,
                        "-m",
                        "singanet.parallel.launch.rank",
                        *self.options.program,
                    ],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=outputs.mpirun,
                    stderr=outputs.mpirun,
                    start_new_session=True,  # the launcher forwards Ctrl-C
                    preexec_fn=_end_with_parent,
                )
                outputs.started()
                self._mpirun = process.pid
                self._watch(process, outputs)
            finally:
                self.folder.kill()
                if self._remote:
                    self._sweep_hosts(found)
                for number, handler in before.items():
                    signal.signal(number, handler)
            status = process.wait()
            outputs.carry(0.0)
            status = self._ended(status, outputs.said)
            final = not status or self.asked is not None or status in self.options.final
            step = max((state.step for state in self._states()), default=None)
            return Ending(status, final, self.left, tuple(sorted(self.dead)), step)

    def _sweep_hosts(self, found: str) -> None:
        """Sweep the other machines, above all of stopped ranks."""
        flags = mpirun.flags(len(self._hosts), self._hosts_file, self.folder.path, remote=True)
        command = [found, *flags, "--map-by", "ppr:1:node"]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [
                    *command,
                    sys.executable,
                    "-m",
                    "singanet.parallel.launch.start",
                    str(self.folder.path),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SWEEP,
                check=False,
            )

    def _take(self, number: int, frame: Any) -> None:
        self.asked, self._asks = signal.Signals(number), self._asks + 1

    def _watch(self, process: subprocess.Popen[bytes], outputs: Outputs) -> None:
        with ProgressBar("starting ranks", self.options.ranks) as bar:
            self._watch_ranks(process, outputs, bar)

    def _watch_ranks(
        self, process: subprocess.Popen[bytes], outputs: Outputs, bar: ProgressBar
    ) -> None:
        due, handed = 0.0, 0
        while process.poll() is None:
            outputs.carry(_LOOK / 4)
            now = time.monotonic()
            if now < due and self._asks == handed:
                continue
            due, ranks = now + _LOOK, _ranks_of(process.pid)
            if self._asks > handed:
                handed = self._asks
                self._kill_by(now + _GRACE if handed == 1 else now)
                for pid in ranks:
                    with suppress(ProcessLookupError):
                        os.kill(pid, self.asked or signal.SIGINT)
            self._look(ranks, now)
            self._show_start(bar)
            if self._kill_at is not None and now >= self._kill_at:
                return

    def _show_start(self, bar: ProgressBar) -> None:
        """Count the ranks that have started, until all have; other machines' are unknown here.

        A script may print before its ranks meet, which a command does not.
        """
        if self._remote or bar.done == self.options.ranks:
            return
        is_script = "-m" not in self.options.program[:1]
        started = sum(is_script or state.phase != "begun" for state in self._states())
        if started < self.options.ranks:
            bar.add(started - bar.done)
        else:
            bar.done = started
            bar.close()

    def _kill_by(self, when: float) -> None:
        self._kill_at = when if self._kill_at is None else min(when, self._kill_at)

    def _look(self, ranks: Mapping[int, int], now: float) -> None:
        """Find ranks that are stopped, have failed, or have waited long."""
        for pid, rank in ranks.items():
            state = process_state(pid)
            # By checks, not by the clock: the launcher may have been stopped itself.
            self._stopped[rank] = self._stopped.get(rank, 0.0) + _LOOK if state == "T" else 0.0
            if self._stopped[rank] > self.options.patience and not self._failure:
                seconds = self._stopped[rank]
                self._failure = f"{self._named(rank)} has been stopped for {seconds:.1f} s"
                self.dead.add(rank)
                self._kill_by(now)
        if self._report_paths():
            self._kill_by(now + _LAST)
        states = self._states()
        self._look_at_start(ranks, states, now)
        if self.options.sizes is not None:
            self._ask_to_leave(ranks, states, now)
        late = [s for s in states if s.phase == "waits" and s.seconds > self.options.stall]
        if fresh := {(each.rank, each.step) for each in late} - self._stalls:
            self._stalls |= fresh
            many = f"{len(late)} of {self.options.ranks} ranks wait:"
            say(
                many,
                *map(str, states[:_SHOWN]),
                *_stack_lines(self._stacks(ranks, _silent(states))),
            )
        if self._failure or any(map(reports_others, self._reports())):
            self._ask_for_stacks(ranks, states)

    def _look_at_start(
        self, ranks: Mapping[int, int], states: Sequence[RankState], now: float
    ) -> None:
        """End a job whose ranks do not meet in `parallel.init` by the deadline, or cannot meet.

        Ranks have no deadline within MPI. Time in which a rank computes, as in imports, does not
        count.
        """
        self._launched = now if self._launched is None else self._launched
        begun = {each.rank for each in states if each.phase != "begun"}
        had = {pid: process_time(pid) for pid, rank in ranks.items() if rank not in begun}
        if had != self._starting and had and now - self._launched < _STARTS:
            self._busy = now
        self._starting = had
        coming = [each for each in states if each.phase == "comes"]
        waited = max((each.seconds for each in coming), default=0.0)
        for each in states if coming else ():
            # A rank may end while, for a moment, others still report the common wait.
            if each.phase == "gone" or (each.phase == "ended" and waited > _NOTICE):
                self._fail(f"{self._named(each.rank)} has ended, and others wait for it", now)
        launched = self._launched if self.options.sizes is not None else now - waited
        seconds = now - max(launched, self._busy)
        if self._failure or seconds <= self.options.deadline:
            return
        known = {*ranks.values(), *(each.rank for each in states)}
        late = sorted(set(ranks.values()) - begun)
        late = late or (sorted({*range(self.options.ranks)} - begun) if coming else [])
        if late:
            # The ranks of other machines are unknown here.
            self.dead |= set(late) & known
            who = ", ".join(map(str, late[:_SHOWN])) + f" of {self.options.ranks}"
            self._fail(f"rank {who} has not reached parallel.init in {seconds:.1f} s", now)
        elif coming:
            self._fail(f"all ranks have reached parallel.init, and wait {seconds:.1f} s there", now)
        elif not known and not self._remote:
            self._fail(f"mpirun has started no rank in {seconds:.1f} s", now)

    def _ask_for_stacks(self, ranks: Mapping[int, int], states: Sequence[RankState]) -> None:
        """Ask the ranks that wait for no other for their stacks, once, to print them at the end."""
        asked = self.folder.path / ASKED
        if not asked.exists():
            reported = {int(each["rank"]) for each in self._reports()}
            self._asked_stacks = self._stacks(ranks, _silent(states) - reported)
            asked.touch()

    def _stacks(self, ranks: Mapping[int, int], wanted: set[int]) -> dict[int, list[str]]:
        """Return the stack lines of each of the ``wanted`` local ranks, innermost first.

        [] for a rank that does not answer: it is stopped, or has just ended.
        """
        pids = {rank: pid for pid, rank in ranks.items() if rank in wanted}
        before = {rank: len(self._dumped(rank)) for rank in pids}
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, mpirun.STACKS)
        end, found, seen = time.monotonic() + _TELLS, dict.fromkeys(pids, ""), None
        # A stack is complete when it stops growing.
        while time.monotonic() < end and (seen != found or not all(found.values())):
            time.sleep(_LOOK / 10)
            seen, found = found, {rank: self._dumped(rank)[before[rank] :] for rank in pids}
        # The main thread is last.
        lines = {
            r: t.rpartition("most recent call first):\n")[2].splitlines() for r, t in found.items()
        }
        return {
            rank: [each for each in some if "runpy" not in each and _RANK not in each][:_SHOWN]
            for rank, some in lines.items()
        }

    def _dumped(self, rank: int) -> str:
        """Return the output of `faulthandler` for a rank so far."""
        with suppress(OSError):
            return (self.folder.path / f"stack-{rank}").read_text(errors="replace")
        return ""

    def _ask_to_leave(
        self, ranks: Mapping[int, int], states: Sequence[RankState], now: float
    ) -> None:
        """Ask the ranks to end at their next checkpoint if more are wanted; any rank is enough.

        Not before all are in contact: without progress there is no checkpoint.
        """
        if self._wanted is None or now < self._leaving_at or not self._wanted():
            return
        met = {each.rank for each in states if each.has_met}
        if met >= set(ranks.values()) and (met or self._remote):
            self._leaving_at = now + _AGAIN
            for pid in ranks or [self._mpirun]:
                with suppress(ProcessLookupError):
                    os.kill(pid, mpirun.LEAVE)

    def _fail(self, why: str, now: float) -> None:
        """End the job. The first ``why`` counts."""
        self._failure = self._failure or why
        self._kill_by(now)

    def _report_paths(self) -> list[Path]:
        return list(self.folder.path.glob("report-*"))

    def _states(self) -> list[RankState]:
        found = (read_state(self.folder.path, rank) for rank in range(self.options.ranks))
        return [state for state in found if state is not None]

    def _named(self, rank: int) -> str:
        state = read_state(self.folder.path, rank)
        process = f" (process {state.pid}, step {state.step})" if state else ""
        return f"rank {rank} of {self.options.ranks}{process}"

    def _ended(self, status: int, said: str) -> int:
        """Print why the job has failed, and return the exit status."""
        if self.asked is not None and self._kill_at is not None:
            return 128 + self.asked
        reports = self._reports()
        death = mpirun.death_in(said)
        if self._leaving_at and status == _INTERRUPTED and not reports and not self._failure:
            self.left = True
            return status
        if death is not None and death.signaled and not self._failure:
            self.dead.add(death.rank)
        found = self._cause(reports, death, status, said)
        if found is None:
            return 0
        rank, status, text = found
        if status == _INTERRUPTED and self.asked is not None:
            return status
        # Rank 0 has already printed it to the user.
        told = text.rstrip().splitlines() if rank != 0 else []
        waiting = ("comes", "waits")
        others = [str(s) for s in self._states() if s.rank != rank and s.phase in waiting]
        say(self._failure, *told, *_stack_lines(self._asked_stacks), *others[:_SHOWN])
        return status or 1

    def _cause(
        self,
        reports: Sequence[Mapping[str, Any]],
        death: mpirun.Death | None,
        status: int,
        said: str,
    ) -> tuple[int, int, str] | None:
        """Return the rank that ended the job, or −1, its status and its output; None on success.

        A report that others do not answer is not the cause, unless there is nothing else.
        """
        reported = {int(each["rank"]) for each in reports}
        if self._failure:
            return -1, 1, ""
        if reports and not all(map(reports_others, reports)):
            return self._reported(reports)
        if death is not None and death.rank not in reported:
            self._failure = f"{self._named(death.rank)} {death.how}"
            return death.rank, death.status, self._end_of_log(death.rank)
        return self._wordless(reports, status, said) if reports or status else None

    def _reported(self, reports: Sequence[Mapping[str, Any]]) -> tuple[int, int, str]:
        """Return the rank with the first error report, its status and its text."""
        first = reports[0]
        rank = int(first["rank"])
        self._failure = f"{self._named(rank)} {_ended_by(reports)}"
        return rank, int(first["status"]), str(first["text"])

    def _wordless(
        self, reports: Sequence[Mapping[str, Any]], status: int, said: str
    ) -> tuple[int, int, str]:
        """Return the rank that others waited for, the exit status, and its last output."""
        silent = _silent(self._states()) - {int(each["rank"]) for each in reports}
        if reports:
            self.dead |= silent
        gone = [rank for rank in sorted(silent) if rank in self._asked_stacks] or sorted(silent)
        if len(gone) != 1:
            if reports:
                return self._reported(reports)
            self._failure = "mpirun could not run the job"
            return -1, status, said
        (rank,) = gone
        how = "has made others wait" if self._asked_stacks.get(rank) else "ended without a report"
        self._failure = f"{self._named(rank)} {how}"
        if reports:
            self._failure += f"; rank {reports[0]['rank']} {_ended_by(reports)}"
        return rank, int(reports[0]["status"]) if reports else status, self._end_of_log(rank)

    def _reports(self) -> list[dict[str, Any]]:
        """Return the error reports, oldest first; the same kind on rank 0 comes first."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in self._report_paths()]
        found.sort(key=lambda report: report["time"])
        alike = [r for r in found if r["rank"] == 0 and r["kind"] == found[0]["kind"]]
        return alike + [report for report in found if report not in alike]

    def _end_of_log(self, rank: int) -> str:
        for path in (self.folder.path / f"log-{rank}", *self._log_dir(rank)):
            with suppress(OSError):
                return "".join(path.read_text(errors="replace").splitlines(True)[-_SHOWN:])
        return ""

    def _log_dir(self, rank: int) -> list[Path]:
        given = self.options.log_dir
        return [] if given is None else [given / f"rank-{rank}.log"]


def _silent(states: Sequence[RankState]) -> set[int]:
    """Return the ranks that wait for no rank, while others may wait for them."""
    return {each.rank for each in states if each.is_silent}


def _stack_lines(stacks: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the stacks of ranks as lines for the user."""
    told = []
    for rank, lines in stacks.items():
        told += [f"rank {rank} was in", *(lines or ["  code that it has not reported"])]
    return told


def _ended_by(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return how the rank of the first report ended, and which ranks ended alike."""
    first = reports[0]
    how = f"by {first['kind']}" if first["kind"] else f"with status {first['status']}"
    also = [str(each["rank"]) for each in reports[1:] if each["kind"] == first["kind"]]
    return f"ended {how}" + (f"; so did {', '.join(also[:_SHOWN])}" if also else "")


def _ranks_of(pid: int) -> dict[int, int]:
    """Return the local ranks that mpirun has started, by process id."""
    found = {}
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                about = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                ranks = [each[21:] for each in about if each.startswith(b"OMPI_COMM_WORLD_RANK=")]
                if ranks:
                    found[int(child)] = int(ranks[0])
    return found


def process_state(pid: int) -> str:
    """Return Linux' letter for the state of a process: T for stopped; "" for no process."""
    return next(iter(_status(pid)), "")


def process_time(pid: int) -> int:
    """Return the processor time of a process so far, in clock ticks."""
    return sum(map(int, _status(pid)[11:13]))


def _status(pid: int) -> list[str]:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The name, in brackets, may contain anything.
        return text.rpartition(")")[2].split()
    return []


def _end_with_parent() -> None:
    """Ask Linux to end mpirun if its launcher is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def say(*lines: str) -> None:
    """Print to stderr, if it is still open."""
    if sys.stderr is not None:
        erase_bar()
        with suppress(OSError):
            sys.stderr.write("singanet launch: " + "\n  ".join(lines) + "\n")
            sys.stderr.flush()
