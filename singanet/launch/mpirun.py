"""The launcher of Open MPI: its path, its arguments, and its messages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from singanet.errors import BackendError
from singanet.ops.threads import cores

ELASTIC = ("--with-ft", "ulfm")
"""Options of mpirun for ranks that may die: the others live on, and are told."""

LEAVE = getattr(signal, "SIGURG", signal.SIGINT)
"""What asks ranks to end at a checkpoint: a signal that does nothing to who does not know it."""

STACKS = getattr(signal, "SIGQUIT", signal.SIGINT)
"""The signal that asks a rank to write its stack, even while it hangs."""

RESIZED = ("--map-by", "slot", "--forward-signals", "SIGURG")
"""Options of mpirun for a job whose ranks may change in number."""

INSTALL = "run: pip install 'singanet[mpi]', which brings mpi4py and Open MPI"


def find_mpirun() -> str:
    """The ``mpirun`` of this environment, else that of PATH.

    Errors: `BackendError` where mpi4py, Open MPI or its launcher is missing.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise _missing("no mpi4py")
    beside = [Path(sys.executable).parent, Path(sys.prefix) / "bin"]
    found = next((str(p / "mpirun") for p in beside if (p / "mpirun").exists()), None)
    found = found or shutil.which("mpirun")
    if found is None:
        raise _missing("mpi4py, but no mpirun")
    said = subprocess.run(
        [found, "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    if "Open MPI" not in said:
        raise _missing(f"{found} of {(said.splitlines() or ['an unknown kind'])[0][:60]!r}")
    return found


def _missing(received: str) -> BackendError:
    return BackendError(
        "singanet launch",
        expected="mpi4py and the mpirun of Open MPI",
        received=received,
        advice=INSTALL,
    )


@dataclass(frozen=True, slots=True)
class Host:
    """A line of a hosts file."""

    name: str
    slots: int


def read_hosts(path: Path) -> list[Host]:
    """The lines ``name``, ``name slots=4`` of a hosts file. Errors: `BackendError`, `OSError`."""
    hosts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = re.search(r"\bslots\s*=\s*(\d+)", " ".join(words[1:]))
        hosts.append(Host(words[0], int(slots[1]) if slots else 1))
    if not hosts:
        raise BackendError(
            f"--hosts {str(path)!r}",
            expected="lines such as: node1 slots=4",
            received="none",
            advice="name each machine, and how many ranks it takes",
        )
    return hosts


def write_hosts(path: Path, hosts: Sequence[Host]) -> None:
    """Write a hosts file."""
    lines = [f"{host.name} slots={host.slots}\n" for host in hosts]
    path.write_text("".join(lines), encoding="utf-8")


def local_ranks(ranks: int, hosts: Sequence[Host]) -> int:
    """The most ranks that one machine gets where the slots are filled in turns."""
    if not hosts:
        return ranks
    slots = sum(host.slots for host in hosts)
    laps = -(-ranks // slots)
    return min(ranks, laps * max(host.slots for host in hosts))


def threads_a_rank(local: int) -> int:
    """Threads for each of ``local`` ranks that share this machine's cores."""
    return max(1, cores() // local)


def flags(ranks: int, hosts: Path | None, folder: Path, remote: bool = False) -> list[str]:
    """Options of mpirun: no rank has a core of its own, files of one machine go to ``folder``.

    With ``remote`` machines and no ``hosts`` file mpirun reads the allocation that it is in.
    """
    told = ["--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    if is_root():
        told.append("--allow-run-as-root")
    # Complains of what nobody asked for, at each window.
    told += ["--mca", "osc", "^ucx"]
    if hosts is not None:
        return [*told, "--hostfile", str(hosts)]
    return told if remote else [*told, "--prtemca", "prte_tmpdir_base", str(folder)]


def is_root() -> bool:
    """Whether mpirun would refuse to run."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def notes(local: int, threads: str) -> str:
    """A note on root and too few cores, to be shown once; "" for none."""
    said = []
    if is_root():
        said.append("runs as root (--allow-run-as-root)")
    if local > cores():
        said.append(f"{local} ranks take turns on {cores()} cores (--oversubscribe)")
    return "; ".join([*said, f"threads a rank: {threads}"]) if said else ""


@dataclass(frozen=True, slots=True)
class Death:
    """The rank that mpirun saw end first, and how."""

    rank: int
    how: str
    status: int

    @property
    def signaled(self) -> bool:
        """Whether a signal has ended it."""
        return self.status > 128 and self.how.startswith("was killed")


_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+\s+exited on\s+signal (\d+)")
_IMPROPER = re.compile(r"process rank (\d+) with PID \d+ on node \S+\s+exiting\s+improperly")
_EXITED = re.compile(r"Process name: \[[^,\]]*,(\d+)\]\s+Exit code:\s+(\d+)")


def death_in(text: str) -> Death | None:
    """The death of a rank for which mpirun ended the job, by its output; None if there is none."""
    if killed := _KILLED.search(text):
        number = int(killed[2])
        known = {each.value: each.name for each in signal.Signals}
        name = known.get(number, f"signal {number}")
        return Death(int(killed[1]), f"was killed by {name}", 128 + number)
    if improper := _IMPROPER.search(text):
        return Death(int(improper[1]), "ended without a word", 1)
    if exited := _EXITED.search(text):
        return Death(int(exited[1]), f"ended with status {exited[2]}", int(exited[2]))
    return None
