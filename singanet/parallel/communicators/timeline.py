"""A trace of a rank: its steps, the operations in flight, and its waits."""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.communicators.rank_file import TRACE, trace_part

_ROWS = ("steps", "waiting")
_PIECE = 256


class Timeline:
    """Trace events of a rank in Chrome's format, one line each; they outlive the process.

    All ranks of a machine share a clock. The clocks of several machines start at the first contact
    of all ranks.
    """

    def __init__(self, path: Path, comm: Communicator) -> None:
        comm.barrier("the start of the trace")
        host = zlib.crc32(socket.gethostname().encode())
        own = np.array([[host, time.monotonic()]])
        met = np.concatenate(comm.all_gather(own, "the clocks of all ranks"))
        self._zero = float(met[met[:, 0] == host][0, 1])
        self._rank, self._count, self._since = comm.rank, 0, time.monotonic()
        self._path = path
        self._lines: list[str] = []
        self._tell(ph="M", name="process_name", args={"name": f"rank {self._rank}"})
        self._tell(ph="M", name="process_sort_index", args={"sort_index": self._rank})
        for row, name in enumerate(_ROWS):
            self._tell(ph="M", name="thread_name", args={"name": name}, tid=row)

    def add(self, kind: str, name: str, start: float) -> None:
        """Add an event from ``start``, by `time.monotonic`, until now."""
        at, until = ((each - self._zero) * 1e6 for each in (start, time.monotonic()))
        if kind in _ROWS:
            self._tell(ph="X", name=name, ts=at, dur=until - at, tid=_ROWS.index(kind))
        else:  # several may be in flight at once
            self._count += 1
            one = {"cat": kind, "name": name, "id": f"{self._rank}.{self._count}", "tid": 0}
            self._tell(ph="b", ts=at, **one)
            self._tell(ph="e", ts=until, **one)
        if len(self._lines) >= _PIECE:
            self.write()

    def step(self, number: int) -> None:
        """End the step before ``number``."""
        self.add("steps", f"step {number - 1}", self._since)
        self._since = time.monotonic()
        self.write()

    def write(self) -> None:
        """Write the pending events."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(self._lines))
        self._lines = []

    def _tell(self, **event: Any) -> None:
        self._lines.append(json.dumps({**event, "pid": self._rank}) + "\n")


def own_part(rank: int) -> Path | None:
    """Return the path of this rank's events; None if the job has no trace."""
    trace = os.environ.get(TRACE)
    return trace_part(Path(trace), rank) if trace else None
