"""The hosts and slots of a job, and Open MPI's mpirun."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from singanet.errors import BackendError, brief
from singanet.ops.threads import cores

LEAVE = getattr(signal, "SIGURG", signal.SIGINT)
"""The signal that asks ranks to end at a checkpoint; other programs ignore it."""

STACKS = getattr(signal, "SIGQUIT", signal.SIGINT)
"""The signal that asks a rank to write its stack, even while it hangs."""

RESIZED = ("--map-by", "slot", "--forward-signals", "SIGURG")
"""Options of mpirun for a job with a changing number of ranks."""

INSTALL = "run: pip install 'singanet[mpi]', which brings mpi4py and Open MPI"


def find_mpirun() -> str:
    """Return the path of the ``mpirun`` of this environment, or of PATH.

    Errors: `BackendError` if mpi4py, Open MPI or mpirun is missing.
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
    """Parse the lines ``name``, ``name slots=4`` of a hosts file.

    Errors: `BackendError` for a file without hosts, `OSError`.
    """
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
            advice="write each machine and its number of ranks",
        )
    return hosts


def write_hosts(path: Path, hosts: Sequence[Host]) -> None:
    """Write a hosts file."""
    lines = [f"{host.name} slots={host.slots}\n" for host in hosts]
    path.write_text("".join(lines), encoding="utf-8")


def local_ranks(ranks: int, hosts: Sequence[Host]) -> int:
    """Return the most ranks on one machine if slots are filled in turns."""
    if not hosts:
        return ranks
    slots = sum(host.slots for host in hosts)
    laps = -(-ranks // slots)
    return min(ranks, laps * max(host.slots for host in hosts))


def threads_a_rank(local: int) -> int:
    """Return the threads for each of ``local`` ranks that share this machine's cores."""
    return max(1, cores() // local)


def flags(ranks: int, hosts: Path | None, folder: Path, remote: bool = False) -> list[str]:
    """Return mpirun's options: no binding to cores, and files of one machine in ``folder``.

    With ``remote`` machines and no ``hosts`` file mpirun reads its allocation.
    """
    told = ["--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    if is_root():
        told.append("--allow-run-as-root")
    # The UCX component prints warnings at each window.
    told += ["--mca", "osc", "^ucx"]
    if hosts is not None:
        return [*told, "--hostfile", str(hosts)]
    return told if remote else [*told, "--prtemca", "prte_tmpdir_base", str(folder)]


def is_root() -> bool:
    """Return True if mpirun would refuse to run."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def notes(local: int, threads: str) -> str:
    """Return a note on root and too few cores, to be printed once; "" for none."""
    said = []
    if is_root():
        said.append("runs as root (--allow-run-as-root)")
    if local > cores():
        said.append(f"{local} ranks take turns on {cores()} cores (--oversubscribe)")
    return "; ".join([*said, f"threads a rank: {threads}"]) if said else ""


@dataclass(frozen=True, slots=True)
class Death:
    """The first ended rank that mpirun noticed, and the cause."""

    rank: int
    how: str
    status: int

    @property
    def signaled(self) -> bool:
        """True if a signal has ended it."""
        return self.status > 128 and self.how.startswith("was killed")


_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+\s+exited on\s+signal (\d+)")
_IMPROPER = re.compile(r"process rank (\d+) with PID \d+ on node \S+\s+exiting\s+improperly")
_EXITED = re.compile(r"Process name: \[[^,\]]*,(\d+)\]\s+Exit code:\s+(\d+)")


def death_in(text: str) -> Death | None:
    """Return the death of a rank for which mpirun ended the job, from its output; or None."""
    if killed := _KILLED.search(text):
        number = int(killed[2])
        known = {each.value: each.name for each in signal.Signals}
        name = known.get(number, f"signal {number}")
        return Death(int(killed[1]), f"was killed by {name}", 128 + number)
    if improper := _IMPROPER.search(text):
        return Death(int(improper[1]), "ended without a report", 1)
    if exited := _EXITED.search(text):
        return Death(int(exited[1]), f"ended with status {exited[2]}", int(exited[2]))
    return None


_NODES = "SLURM_JOB_NODELIST"
_TASKS = "SLURM_TASKS_PER_NODE"
_FILE = "PBS_NODEFILE"
_LOOPBACK = ("127.0.0.1", "::1")


def allocated(environ: Mapping[str, str]) -> list[Host]:
    """Return the machines of Slurm's or PBS's allocation, with their slots; [] without one.

    Open MPI reads the same by itself; the launcher needs it, too. Errors: `BackendError` if the
    text cannot be parsed or the file cannot be read.
    """
    if nodes := environ.get(_NODES):
        names = expanded(nodes)
        tasks = _tasks(environ.get(_TASKS, f"1(x{len(names)})"))
        if len(tasks) != len(names):
            raise _odd(_TASKS, f"a number for each of {len(names)} machines", str(tasks))
        return [Host(name, slots) for name, slots in zip(names, tasks, strict=True)]
    if path := environ.get(_FILE):
        try:
            lines = Path(path).read_text("utf-8").split()
        except OSError as error:
            raise _odd(_FILE, "the path of a file with a line per slot", str(error)) from error
        return [Host(name, slots) for name, slots in Counter(lines).items()]
    return []


def by_slurm(environ: Mapping[str, str]) -> bool:
    """Return True if Slurm lists the machines and starts the processes on them."""
    return bool(environ.get(_NODES))


def elsewhere(hosts: Sequence[Host]) -> bool:
    """Return True if any of ``hosts`` is not this machine."""
    own = _short(socket.gethostname())
    names = [host.name for host in hosts if host.name not in _LOOPBACK]
    return any(_short(name) not in (own, "localhost") for name in names)


def expanded(nodes: str) -> list[str]:
    """Return the names of a list such as ``a[1-3,07],b``. Errors: `BackendError`."""
    # Split at commas outside brackets.
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if ",".join(words) != nodes:
        raise _odd(_NODES, "names such as node[1-3,7]", nodes)
    return [name for word in words for name in _names(word)]


def _names(word: str) -> Iterator[str]:
    """Yield the names of ``word``: each of its first brackets, with all of the others."""
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inner, _, after = rest.partition("]")
    for part in inner.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise _odd(_NODES, "names such as node[1-3,7]", word)
        first, last = found[1], found[2] or found[1]
        for number in range(int(first), int(last) + 1):
            for end in _names(after):
                yield f"{before}{number:0{len(first)}}{end}"


def _tasks(text: str) -> list[int]:
    """Return the numbers of a text such as ``4(x2),3``. Errors: `BackendError`."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise _odd(_TASKS, "numbers such as 4(x2),3", text)
        numbers += [int(found[1])] * int(found[2] or 1)
    return numbers


def _short(name: str) -> str:
    return name.partition(".")[0]


def _odd(variable: str, expected: str, received: str) -> BackendError:
    return BackendError(
        f"singanet launch, {variable}",
        expected=expected,
        received=brief(received)[:100],
        advice=f"pass --hosts FILE with the machines, and unset {variable}",
    )


_LONGEST = 600.0
"""The longest pause of a slot, in seconds."""

_WELL = 10
"""A machine must have worked this many times as long as its pause to get a short pause again."""

_ANSWER = 5
"""Seconds in which a machine must answer."""

_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
"""Variables of mpirun with another command than ``ssh``."""

Answers = Callable[[str], "bool | None"]
"""A function that returns whether the machine of this name answers; None while unknown."""


@dataclass
class _Machine:
    """The state of a machine: whether it ``answers``, and the ends of the pauses of its slots."""

    answers: bool | None = None
    ask_at: float = 0.0
    rests: list[float] = field(default_factory=list)
    pause: float = 0.0


class Slots:
    """The slots of ``read``, without paused slots and slots of silent machines.

    A slot whose rank has died pauses for ``rest`` seconds. A silent machine is asked again after
    the same time. Each pause is twice as long as the last one, up to ten minutes. If ranks die
    after working for ten times the last pause, and got further than before, it is ``rest`` seconds
    again.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[Host]],
        answers: Answers,
        rest: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._answers, self._rest, self._clock = read, answers, rest, clock
        self._machines: dict[str, _Machine] = {}
        self._hosts: Sequence[Host] = ()

    def look(self) -> list[Host]:
        """Return the machines with free slots, and their numbers of free slots."""
        slots: dict[str, int] = {}
        for host in self._read():  # a machine may have several lines
            slots[host.name] = slots.get(host.name, 0) + host.slots
        self._hosts, now = [Host(name, count) for name, count in slots.items()], self._clock()
        free = [Host(host.name, self._free(host, now)) for host in self._hosts]
        return [host for host in free if host.slots > 0]

    @property
    def known(self) -> bool:
        """True if the state of each machine of the last `look` is known."""
        return all(self._machine(host.name).answers is not None for host in self._hosts)

    @property
    def silent(self) -> set[str]:
        """The machines that did not answer the last time."""
        return {name for name, machine in self._machines.items() if machine.answers is False}

    def doubt(self) -> None:
        """Ask all machines again at the next `look`, as a job on them has failed."""
        for machine in self._machines.values():
            if machine.answers:
                machine.answers = None

    def died(self, name: str, count: int, worked: float) -> float:
        """Pause ``count`` slots whose ranks worked for ``worked`` seconds; return the seconds."""
        machine, now = self._machine(name), self._clock()
        pause = self._longer(machine, worked)
        machine.rests += [now + pause] * count
        return pause

    def told(self) -> str:
        """Return a text on the free slots, the silent machines, and the paused slots."""
        free = ", ".join(f"{host.slots} of {host.name}" for host in self.look()) or "none"
        now = self._clock()
        resting = sum(
            len([until for until in self._machine(host.name).rests if until > now])
            for host in self._hosts
        )
        silent = [host.name for host in self._hosts if host.name in self.silent]
        return "; ".join(
            [
                f"{free} free",
                *([f"no answer of {', '.join(silent)}"] if silent else []),
                *([f"{resting} rest, as their ranks have died"] if resting else []),
            ]
        )

    def _machine(self, name: str) -> _Machine:
        return self._machines.setdefault(name, _Machine())

    def _longer(self, machine: _Machine, worked: float) -> float:
        well = not machine.pause or worked > _WELL * machine.pause
        machine.pause = self._rest if well else min(2 * machine.pause, _LONGEST)
        return machine.pause

    def _free(self, host: Host, now: float) -> int:
        machine = self._machine(host.name)
        if machine.answers is not True and now >= machine.ask_at:
            machine.answers = self._answers(host.name)
            if machine.answers is False:
                machine.ask_at = now + self._longer(machine, 0.0)
        machine.rests = [until for until in machine.rests if until > now]
        return host.slots - len(machine.rests) if machine.answers else 0


class Knocking:
    """Asks machines whether they answer, by mpirun's remote command, without waiting.

    The command is ``ssh``, or the value of a variable of mpirun in ``environ``.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = next((environ[name] for name in _AGENTS if name in environ), "ssh")
        self._command = given.split()
        if Path(self._command[0]).name == "ssh":
            self._command += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_ANSWER}"]
        self._asked: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def __call__(self, name: str) -> bool | None:
        """Return whether the machine answers; None while it may still do so.

        This machine always answers. Others count as answering if the command does not exist here.
        """
        if not elsewhere([Host(name, 1)]) or shutil.which(self._command[0]) is None:
            return True
        if name not in self._asked:
            self._asked[name] = self._ask(name), time.monotonic()
        process, since = self._asked[name]
        status = process.poll()
        if status is None and time.monotonic() - since <= 2 * _ANSWER:
            return None
        del self._asked[name]
        process.kill()
        process.wait()
        return status == 0

    def _ask(self, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, name, "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def always(name: str) -> bool:
    """Return True, for machines without ``ssh``: Slurm reports lost machines itself."""
    return True
