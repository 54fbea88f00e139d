"""What ranks tell each other about their state."""

from __future__ import annotations

import mmap
import os
import struct
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from singanet.layers import Layer

JOB, DEADLINE, TRACE = "SINGANET_JOB", "SINGANET_DEADLINE", "SINGANET_TRACE"
LOGS, RESTART, SERVERS = "SINGANET_LOG_DIR", "SINGANET_RESTART", "SINGANET_SERVERS"
LEAVES = "SINGANET_LEAVES"
"""Variables of a rank: the folder of its job, on the host of its launcher; the seconds after which
a wait is an error; the file that its trace becomes a part of; the folder of outputs; how often the
job was begun anew; how many of its ranks serve; that it may be asked to end at a checkpoint."""

_NUMBERS = struct.Struct("<qqqd???")  # process, start, step, waiting since; see `RankStatus`
_SIZE, _TEXT = 512, 64
_STEP, _SINCE, _ENDED, _JOINED, _STUCK = 16, 24, 32, 33, 34


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What a board said: ``waits`` for what, ``since`` when by `time.monotonic`, or for nothing.

    ``joined`` says that the rank has met the others in `parallel.init`, ``stuck`` that it cannot
    end by itself what it waits in. It has ``ended`` its program.
    """

    rank: int
    pid: int
    started: int
    step: int
    waits: str
    since: float
    ended: bool
    joined: bool = False
    stuck: bool = False

    def __str__(self) -> str:
        if self.ended:
            return f"rank {self.rank} ended at step {self.step}"
        if not self.waits:
            return f"rank {self.rank}, step {self.step}: computed"
        seconds = time.monotonic() - self.since
        return f"rank {self.rank}, step {self.step}: waited {seconds:.1f} s for {self.waits}"


class Board:
    """The page of this process in the folder of its job, or a page that nobody sees."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            self._page: mmap.mmap | bytearray = bytearray(_SIZE)
        else:
            with path.open("w+b") as file:
                file.truncate(_SIZE)
                self._page = mmap.mmap(file.fileno(), _SIZE)
        started = process_start(os.getpid()) or 0
        _NUMBERS.pack_into(self._page, 0, os.getpid(), started, 0, 0.0, *[False] * 3)

    def step(self, step: int) -> None:
        """Tell the step; half a microsecond."""
        struct.pack_into("<q", self._page, _STEP, step)

    def waits(self, what: str) -> None:
        """Tell what is waited for from now on."""
        text = what.encode(errors="replace")[: _SIZE - _TEXT].ljust(_SIZE - _TEXT, b"\0")
        self._page[_TEXT:] = text
        struct.pack_into("<d", self._page, _SINCE, time.monotonic())

    def computes(self) -> None:
        """Tell that nothing is waited for."""
        self._page[_TEXT] = 0

    @contextmanager
    def stuck(self, what: str) -> Iterator[None]:
        """Tell that ``what`` is waited for within MPI: whoever watches this rank has the clock."""
        self.waits(what)
        self._page[_STUCK] = 1
        try:
            yield
        finally:
            self._page[_STUCK] = 0
            self.computes()

    def joins(self) -> None:
        """Tell that this rank has met all others."""
        self._page[_JOINED] = 1

    @property
    def joined(self) -> bool:
        """Whether it has."""
        return bool(self._page[_JOINED])

    def ends(self) -> None:
        """Tell that the program has ended, and only the others' ends are waited for."""
        self._page[_ENDED] = 1


@cache
def own_board() -> Board:
    """The board of this process, made at the first call."""
    folder, rank = os.environ.get(JOB), os.environ.get("OMPI_COMM_WORLD_RANK")
    if folder is None or rank is None or not os.path.isdir(folder):
        return Board(None)
    return Board(page_of(Path(folder), int(rank)))


def page_of(folder: Path, rank: int) -> Path:
    """The file of a rank's board."""
    return folder / f"rank-{rank}"


def trace_part(trace: Path, rank: int) -> Path:
    """The trace file of one rank, beside ``trace``."""
    return trace.with_name(f"{trace.name}.rank-{rank}")


def read_board(folder: Path, rank: int) -> RankStatus | None:
    """The status on the board of ``rank``; None if it has none yet, or one on another host."""
    try:
        page = page_of(folder, rank).read_bytes()
    except FileNotFoundError:
        return None
    if len(page) < _SIZE:
        return None
    pid, started, step, since, *marks = _NUMBERS.unpack_from(page)
    waits = page[_TEXT:].split(b"\0")[0].decode(errors="replace")
    return RankStatus(rank, pid, started, step, waits, since, *marks) if pid else None


def process_start(pid: int) -> int | None:
    """When a process began, in ticks of the system; None if there is no such process."""
    fields = _status(pid)
    return int(fields[19]) if fields else None


def process_state(pid: int) -> str:
    """The letter that Linux has for the state of a process: T for stopped; "" for none."""
    fields = _status(pid)
    return fields[0] if fields else ""


def process_time(pid: int) -> int:
    """The processor time of a process so far, in ticks of the system."""
    return sum(map(int, _status(pid)[11:13]))


def _status(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The name, which stands in brackets, may hold anything.
    return text.rpartition(")")[2].split()


def layer_of(error: BaseException) -> str:
    """The name of the innermost layer in whose code ``error`` was raised; "" for none."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    layers = [each for frame in frames if isinstance(each := frame.f_locals.get("self"), Layer)]
    return layers[-1].name if layers else ""
