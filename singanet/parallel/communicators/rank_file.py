"""The status of a rank for its launcher, in a file of the job's folder."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

JOB, DEADLINE, TRACE = "SINGANET_JOB", "SINGANET_DEADLINE", "SINGANET_TRACE"
LOGS, RESTART, SERVERS = "SINGANET_LOG_DIR", "SINGANET_RESTART", "SINGANET_SERVERS"
LEAVES = "SINGANET_LEAVES"
"""Environment variables of a rank: the folder of its job on the launcher's host; the seconds after
which a wait is an error; the trace file; the folder of outputs; the number of restarts of the job;
the number of server ranks; the flag that the rank may be asked to end at a checkpoint."""

Phase: TypeAlias = Literal["begun", "comes", "met", "waits", "ended", "gone"]
"""The phases of a rank: ``begun``; ``comes``, in MPI's wait for all ranks; ``met``, in contact with
the others; ``waits``, for another rank in a step; ``ended``; ``gone``, ended before ``met``."""

_SIZE = 256


@dataclass(frozen=True, slots=True)
class RankState:
    """The last status of a rank, written at ``since`` in `time.time`; it waits for ``what``."""

    rank: int
    pid: int
    phase: Phase
    step: int
    what: str
    since: float

    @property
    def has_met(self) -> bool:
        """True if it has been in contact with all ranks."""
        return self.phase in ("met", "waits", "ended")

    @property
    def is_silent(self) -> bool:
        """True if it waits for no rank, while others may wait for it."""
        return self.phase in ("begun", "met")

    @property
    def seconds(self) -> float:
        """The seconds since the status was written."""
        return time.time() - self.since

    def __str__(self) -> str:
        told = {
            "comes": "waited {:.1f} s for all ranks to start",
            "waits": "waited {:.1f} s for " + self.what.replace("{", "{{").replace("}", "}}"),
            "ended": "ended",
            "gone": "ended",
        }.get(self.phase, "computed")
        return f"rank {self.rank}, step {self.step}: {told.format(self.seconds)}"


class RankFile:
    """The status file of this process at ``path``; None if no launcher reads it."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.phase: Phase = "begun"
        self._step = 0
        self.tell()

    def tell(self, phase: Phase | None = None, step: int | None = None, what: str = "") -> None:
        """Write the phase and the step; None leaves a value as it is."""
        self.phase = phase or self.phase
        self._step = self._step if step is None else step
        if self._file is not None:
            text = f"{os.getpid()} {self.phase} {self._step} {what}".encode(errors="replace")
            os.pwrite(self._file, text[:_SIZE].ljust(_SIZE), 0)


@cache
def own_file() -> RankFile:
    """Return the status file of this process, made at the first call."""
    folder, rank = os.environ.get(JOB), os.environ.get("OMPI_COMM_WORLD_RANK")
    if folder is None or rank is None or not os.path.isdir(folder):
        return RankFile(None)
    return RankFile(_place(Path(folder), int(rank)))


def read_state(folder: Path, rank: int) -> RankState | None:
    """Return the last status of ``rank``; None if it has none yet, or is on another host."""
    with suppress(OSError, ValueError):
        path = _place(folder, rank)
        since, text = path.stat().st_mtime, path.read_text(encoding="utf-8", errors="replace")
        pid, phase, step, *what = text.rstrip().split(" ", 3)
        return RankState(rank, int(pid), phase, int(step), "".join(what), since)  # type: ignore[arg-type]
    return None


def _place(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}"


def trace_part(trace: Path, rank: int) -> Path:
    """Return the path of one rank's trace file, in the folder of ``trace``."""
    return trace.with_name(f"{trace.name}.rank-{rank}")


def layer_of(error: BaseException) -> str:
    """Return the name of the innermost layer that raised ``error``; "" if no layer did."""
    # Imported here, as the launcher uses this module without layers.
    from singanet.layers import Layer

    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    layers = [each for frame in frames if isinstance(each := frame.f_locals.get("self"), Layer)]
    return layers[-1].name if layers else ""
