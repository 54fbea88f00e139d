"""Places for ranks on machines that may fail and come back."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from singanet.launch.allocation import elsewhere
from singanet.launch.mpirun import Host

_LONGEST = 600.0
"""Seconds that a slot rests at most."""

_WELL = 10
"""So many times as long as it rested a machine has to have worked, to rest as shortly again."""

_ANSWER = 5
"""Seconds in which a machine has to answer."""

_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
"""Variables by which mpirun is told another command than ``ssh``."""

Answers = Callable[[str], "bool | None"]
"""Whether the machine of this name answers; None while that is not known."""


@dataclass
class _Machine:
    """What is known of one: whether it ``answers``, and until when which of its slots rest."""

    answers: bool | None = None
    ask_at: float = 0.0
    rests: list[float] = field(default_factory=list)
    pause: float = 0.0


class Slots:
    """The slots that ``read`` tells, without those that rest and those of silent machines.

    A slot whose rank has died rests for ``rest`` seconds before it is free again, and a machine
    that does not answer is asked again after as long; twice as long each time, and ten minutes at
    most. After a death of ranks that had worked for ten times the last pause, and got further than
    any before, it is ``rest`` seconds again.
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
        """The machines with free slots, and how many each has."""
        slots: dict[str, int] = {}
        for host in self._read():  # a machine may have several lines
            slots[host.name] = slots.get(host.name, 0) + host.slots
        self._hosts, now = [Host(name, count) for name, count in slots.items()], self._clock()
        free = [Host(host.name, self._free(host, now)) for host in self._hosts]
        return [host for host in free if host.slots > 0]

    @property
    def known(self) -> bool:
        """Whether each machine of the last look has answered, or was silent."""
        return all(self._machine(host.name).answers is not None for host in self._hosts)

    @property
    def silent(self) -> set[str]:
        """The machines that did not answer when they were asked last."""
        return {name for name, machine in self._machines.items() if machine.answers is False}

    def doubt(self) -> None:
        """Ask all machines again at the next look, as a job on them has failed."""
        for machine in self._machines.values():
            if machine.answers:
                machine.answers = None

    def died(self, name: str, count: int, worked: float) -> float:
        """Let so many slots rest whose ranks have worked for so long; for how many seconds."""
        machine, now = self._machine(name), self._clock()
        pause = self._longer(machine, worked)
        machine.rests += [now + pause] * count
        return pause

    def told(self) -> str:
        """In words: the free slots, the silent machines, the slots that rest."""
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
    """Asks machines whether they answer, by what mpirun reaches them by, without waiting for it.

    That is ``ssh``, or another command that ``environ`` has for it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = next((environ[name] for name in _AGENTS if name in environ), "ssh")
        self._command = given.split()
        if Path(self._command[0]).name == "ssh":
            self._command += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_ANSWER}"]
        self._asked: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def __call__(self, name: str) -> bool | None:
        """Whether it does; None while it has time to.

        This machine always does, and others are taken to where there is no such command here.
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
    """Of machines that are not reached by ``ssh``: those of Slurm, which tells of them itself."""
    return True
