"""The program of a rank, and the folder that the ranks of a job share.

It works like `python`, with four differences: the output of ranks other than 0 goes to files, an
error or ``sys.exit`` of one rank ends all ranks, the cause is reported to the launcher, and server
ranks do not run the program.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singanet.base.processes import LEAVING
from singanet.base.tracebacks import TRACEBACK
from singanet.parallel.communicators.rank_file import (
    JOB,
    LEAVES,
    LOGS,
    RESTART,
    SERVERS,
    own_file,
)
from singanet.parallel.launch.hosts import LEAVE, STACKS

ASKED = "asked"
"""The file in a job's folder that the launcher creates after asking ranks for their stacks."""

_PREFIX = "singanet-job-"
_FOLDER_MEMORY = Path("/dev/shm")


def reports_others(report: Mapping[str, Any]) -> bool:
    """Return True if a rank reports that others do not answer."""
    return str(report["kind"]).startswith("RankError") and "no answer" in str(report["text"])


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder ``path`` of a job, with the states, outputs, stacks and reports of ranks."""

    path: Path

    @property
    def shared(self) -> Path:
        """The folder of the ranks' shared memory, in memory if possible: on a disk it is slow."""
        memory = os.access(_FOLDER_MEMORY, os.W_OK)
        return _FOLDER_MEMORY / self.path.name if memory else self.path / "shared"

    def processes(self) -> list[int]:
        """Return all processes of the job on this machine, even detached ones."""
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
        """Kill all processes of the job, stopped ones too."""
        end = time.monotonic() + seconds
        while (alive := self.processes()) and time.monotonic() < end:
            # Ranks before mpirun: a stopped rank would continue after its parent.
            for pid in sorted(alive, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def sweep(self) -> None:
        """Kill the job's processes on this machine, and remove its files."""
        self.kill()
        for path in (self.shared, self.path):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def job_folder() -> Iterator[JobFolder]:
    """Create a folder, and sweep it at the end; folders of killed launchers are swept first."""
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
    """Sweep the folders of this user's dead launchers."""
    place = Path(tempfile.gettempdir())
    for name in {
        path.name for each in (place, _FOLDER_MEMORY) for path in each.glob(f"{_PREFIX}*")
    }:
        path = place / name
        with suppress(OSError):
            about = (path if path.exists() else _FOLDER_MEMORY / name).stat()
            # A new folder may have no lock yet.
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < 60:
                continue
            if not path.exists():  # of a job on another machine
                if not JobFolder(path).processes():
                    shutil.rmtree(_FOLDER_MEMORY / name, ignore_errors=True)
                continue
            lock = _locked(path)
            if lock is not None:
                JobFolder(path).sweep()
                os.close(lock)


def _locked(path: Path) -> int | None:
    """Lock a folder until the process ends; None if another process has the lock."""
    import fcntl  # missing on Windows, which imports this module, too

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


INTERRUPTED = 130
_ENDED = (INTERRUPTED, 143)
"""Exit statuses of programs after Ctrl-C or SIGTERM."""

_TAIL = 12

_SEEN = 2.0
"""Seconds that a failed rank waits for the launcher to ask others for their stacks."""

_MEMORY = "OMPI_MCA_btl_sm_backing_directory"
"""Open MPI's variable for the folder of its shared memory."""


def main(arguments: Sequence[str]) -> None:
    """Run a module (``-m NAME``) or a script with its arguments, as a rank of a job."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    folder = Path(os.environ[JOB])
    log = _redirect(folder, rank)
    memory = JobFolder(folder).shared
    if not folder.is_dir():  # not the launcher's machine; it is swept at the end, too
        memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if memory.is_dir():
        os.environ[_MEMORY] = str(memory)
    if LEAVES in os.environ:
        signal.signal(LEAVE, LEAVING.ask)
    if folder.is_dir():
        # Before this rank writes its state, as the launcher may then ask for its stack.
        stack = (folder / f"stack-{rank}").open("w", encoding="utf-8")
        faulthandler.register(STACKS, stack)
    own = own_file()
    # The report of an error names the layer, which only the library's frames have.
    os.environ.setdefault(TRACEBACK, "full")
    status, kind, text = _outcome(rank, arguments, log)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    has_met = own.phase in ("met", "waits")
    if status in _ENDED and has_met:
        sys.exit(status)  # all ranks end together: rank 0 may still save
    if not status:
        own.tell("ended" if has_met else "gone")
        return
    report = {"rank": rank, "status": status, "kind": kind, "text": text, "time": time.time()}
    _report(folder, report)
    if reports_others(report) and folder.is_dir():
        _await_stacks(folder)
    elif rank:
        # The same error of rank 0 is printed by rank 0; mpirun ends it when this rank has ended.
        time.sleep(0.5)
    os._exit(status)  # MPI_Finalize would wait for the others


def _await_stacks(folder: Path) -> None:
    """Wait until the launcher has asked others for their stacks, as mpirun ends them next."""
    end = time.monotonic() + _SEEN
    while not (folder / ASKED).exists() and time.monotonic() < end:
        time.sleep(0.02)


def _outcome(rank: int, arguments: Sequence[str], log: Path | None) -> tuple[int, str, str]:
    """Run this rank; return the exit status, the kind of the error, and the last output."""
    status, kind, text = 0, "", ""
    try:
        _work(rank, arguments)
    except SystemExit as stop:
        status, text = _status(stop.code), _end_of(log)
        if isinstance(stop.code, str):
            sys.stderr.write(f"{stop.code}\n")
            text = stop.code
    except BaseException as error:  # noqa: BLE001 - any error must end the other ranks, too
        text = _traceback_text(error)
        if not (LEAVING.begun and isinstance(error, KeyboardInterrupt)):
            sys.stderr.write(text)
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        # Imported here, as most ranks end without errors and need no layers.
        from singanet.parallel.communicators.rank_file import layer_of

        layer = layer_of(error)
        kind = type(error).__name__ + (f" in layer {layer!r}" if layer else "")
    if LEAVING.begun and not status:
        # A program that returns normally after an interrupt has not finished its training.
        status = INTERRUPTED
    return status, kind, text


def _work(rank: int, arguments: Sequence[str]) -> None:
    """Run the program, or serve: the last ranks of a job with servers are the servers."""
    if rank < int(os.environ["OMPI_COMM_WORLD_SIZE"]) - int(os.environ.get(SERVERS, "0")):
        _run(arguments)
    else:
        _serve()


def _serve() -> None:
    """Run a parameter server until the workers have ended."""
    # Imported here, as it loads MPI, which other programs may not need.
    from singanet.parallel.initialize import init, servers
    from singanet.parallel.server import serve

    # All ranks must take part in making the groups.
    init()
    ranks = servers()
    assert ranks is not None
    serve(ranks)


def _run(arguments: Sequence[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = [arguments[1], *arguments[2:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


def _redirect(folder: Path, rank: int) -> Path | None:
    """Redirect the output of rank 0 to the launcher's, of others to a file, and return that.

    On another machine than the launcher's, without a log folder, mpirun forwards it.
    """
    places = [folder / "out", folder / "err"] if rank == 0 else []
    log = None
    if rank and LOGS in os.environ:
        log = Path(os.environ[LOGS]) / f"rank-{rank}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
    elif rank and folder.is_dir():
        log = folder / f"log-{rank}"
    if log is not None:
        places = [log, log]
        if os.environ.get(RESTART, "0") == "0":
            log.write_bytes(b"")
    for number, place in enumerate(places, 1):
        if place is log or place.exists():
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | (os.O_CREAT if place is log else 0)
            handle = os.open(place, flags, 0o644)
            os.dup2(handle, number)
            os.close(handle)
    return log


def _status(code: object) -> int:
    """Return Python's exit status for the argument of ``sys.exit``."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _traceback_text(error: BaseException) -> str:
    """Return the traceback without the frames that start the program."""
    trace = error.__traceback__
    while trace is not None and _starts(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _starts(file: str) -> bool:
    return file == __file__ or "runpy" in file


def _end_of(log: Path | None) -> str:
    """Return the last lines of this rank's output."""
    if log is None:
        return ""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines(True)
    return "".join(lines[-_TAIL:])


def _report(folder: Path, report: Mapping[str, Any]) -> None:
    with suppress(OSError):
        beside = folder / f".report-{report['rank']}"
        beside.write_text(json.dumps(report), encoding="utf-8")
        beside.rename(folder / f"report-{report['rank']}")


if __name__ == "__main__":
    main(sys.argv[1:])
