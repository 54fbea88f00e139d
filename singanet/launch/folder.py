"""Where the processes of one job meet, and how nothing of it is left."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singanet.parallel.communicators.board import JOB

ASKED = "asked"
"""The file in a job's folder that exists once ranks were asked for their stacks."""

_PREFIX = "singanet-job-"
_MEMORY = Path("/dev/shm")


def tells_of_others(report: Mapping[str, Any]) -> bool:
    """Whether a rank reports that other ranks are dead, or do not answer."""
    kind = str(report["kind"])
    unanswered = kind.startswith("RankError") and "no answer" in str(report["text"])
    return unanswered or kind.startswith("RankLostError")


@dataclass(frozen=True, slots=True)
class JobFolder:
    """``path`` has boards, outputs and reports."""

    path: Path

    @property
    def shared(self) -> Path:
        """Where the memory is that ranks of this machine talk through: on a disk it is slow."""
        memory = os.access(_MEMORY, os.W_OK)
        return _MEMORY / self.path.name if memory else self.path / "shared"

    def processes(self) -> list[int]:
        """All processes of the job on this machine, however they were started."""
        mark, name = f"{JOB}=".encode(), f"/{self.path.name}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    about = (entry / "environ").read_bytes().split(b"\0")
                    if any(each.startswith(mark) and each.endswith(name) for each in about):
                        found.append(int(entry.name))
        return found

    def kill(self, seconds: float = 5.0) -> None:
        """End all processes of the job; stopped ones too."""
        end = time.monotonic() + seconds
        while (alive := self.processes()) and time.monotonic() < end:
            # Ranks before mpirun: a stopped one whose parent has gone would go on.
            for pid in sorted(alive, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def sweep(self) -> None:
        """End the job's processes on this machine, and remove its files."""
        self.kill()
        for path in (self.shared, self.path):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def job_folder() -> Iterator[JobFolder]:
    """A new folder, swept in the end; what launchers left that were killed is swept first."""
    sweep_lost()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    folder = JobFolder(path)
    folder.shared.mkdir(mode=0o700)
    lock = _locked(path)
    try:
        yield folder
    finally:
        folder.sweep()
        if lock is not None:
            os.close(lock)


def sweep_lost() -> None:
    """Sweep the folders of this user's launchers that no longer live."""
    place = Path(tempfile.gettempdir())
    for name in {path.name for each in (place, _MEMORY) for path in each.glob(f"{_PREFIX}*")}:
        path = place / name
        with suppress(OSError):
            about = (path if path.exists() else _MEMORY / name).stat()
            # One that was made just now may have no lock yet.
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < 60:
                continue
            if not path.exists():  # of a job elsewhere, or what a job on another machine has left
                if not JobFolder(path).processes():
                    shutil.rmtree(_MEMORY / name, ignore_errors=True)
                continue
            lock = _locked(path)
            if lock is not None:
                JobFolder(path).sweep()
                os.close(lock)


def _locked(path: Path) -> int | None:
    """The system's lock on a folder, which ends with its process; None if another has it."""
    import fcntl  # missing on Windows, where the package is to be imported all the same

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
