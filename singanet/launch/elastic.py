"""A job that goes on with as many ranks as there are places for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from singanet.errors import BackendError
from singanet.launch.mpirun import Host
from singanet.launch.slots import Slots

_LOOK = 0.2
"""Seconds between two looks at machines that are waited for."""

_EVERY = 1.0
"""Seconds between two looks at them while ranks work."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How ranks that were started together have ended.

    ``final`` says that nothing is to follow, ``left`` that they ended at a checkpoint as they were
    asked to, so that more can go on from it. The ranks ``dead`` were killed, stopped or hung. They
    got to ``step``, or None if no rank of this machine told.
    """

    status: int
    final: bool = False
    left: bool = False
    dead: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What to start: ``ranks`` on ``hosts``, the ``number``-th time.

    It is asked ``wanted`` now and then whether more ranks could go on.
    """

    number: int
    ranks: int
    hosts: Sequence[Host]
    wanted: Callable[[], bool]


class Elastic:
    """Starts ranks again and again, between ``sizes`` of them, on what is free of ``slots``.

    Begins with ``ranks`` at most. A failure that is not a death is begun anew ``restarts`` times.
    For enough free slots it waits ``deadline`` seconds.
    """

    def __init__(
        self,
        slots: Slots,
        sizes: tuple[int, int],
        ranks: int,
        restarts: int,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._slots, self._deadline, self._say = slots, deadline, say
        self._least, self._most = sizes
        self._ranks, self._restarts = ranks, restarts
        self._furthest = -1
        self._failures = 0

    def run(self, start: Callable[[Attempt], Ending]) -> int:
        """Start it until it ends; the exit status. Errors: `BackendError` for too few slots."""
        most = min(self._ranks, self._most)
        for number in itertools.count():
            hosts = self._filled(self._awaited(), most)
            ranks, most = sum(host.slots for host in hosts), self._most
            if number:
                self._say(f"goes on with {ranks} rank{'s' * (ranks > 1)}")
            began = time.monotonic()
            ending = start(Attempt(number, ranks, hosts, self._wanting(ranks)))
            if ending.final or not (ending.left or self._can_follow(ending, hosts, began)):
                break
            self._furthest = max(self._furthest, ending.step or 0)
        return ending.status

    def _awaited(self) -> list[Host]:
        """The free machines, once they have slots enough."""
        end, told = time.monotonic() + self._deadline, False
        while True:
            free = self._slots.look()
            enough = sum(host.slots for host in free) >= self._least
            if enough and self._slots.known:
                return free
            if time.monotonic() > end:
                raise BackendError(
                    "singanet launch --elastic",
                    expected=f"{_slots(self._least)} within {self._deadline:g} s",
                    received=self._slots.told(),
                    advice="see why their ranks have died or they do not answer, name other "
                    "machines by --hosts, or ask for fewer: --elastic MIN:MAX",
                )
            if not enough and not told and self._slots.known:
                told = True
                self._say(f"waits for {_slots(self._least)}: {self._slots.told()}")
            time.sleep(_LOOK)

    def _filled(self, free: Sequence[Host], most: int) -> list[Host]:
        """The first ``most`` slots."""
        filled = []
        for host in free:
            taken = min(host.slots, most)
            most -= taken
            if taken:
                filled.append(Host(host.name, taken))
        return filled

    def _wanting(self, ranks: int) -> Callable[[], bool]:
        """Whether more than ``ranks`` could work, looked at now and then."""
        due, wanted = time.monotonic() + _EVERY, False

        def look() -> bool:
            nonlocal due, wanted
            if wanted or ranks >= self._most or time.monotonic() < due:
                return wanted
            due = time.monotonic() + _EVERY
            could = min(self._most, sum(host.slots for host in self._slots.look()))
            wanted = could > ranks
            if wanted:
                self._say(f"{could} ranks can work instead of {ranks}: from the next checkpoint on")
            return wanted

        return look

    def _can_follow(self, ending: Ending, hosts: Sequence[Host], began: float) -> bool:
        """Whether others go on: where ranks have died, machines are silent, or a try is left."""
        further = ending.step is None or ending.step > self._furthest
        worked = time.monotonic() - began if further else 0.0
        silent = self._silent_now() & {host.name for host in hosts}
        places = _places(hosts)
        for name in sorted({places[rank] for rank in ending.dead} - silent):
            dead = [rank for rank in ending.dead if places[rank] == name]
            pause = self._slots.died(name, len(dead), worked)
            who = f"ranks {', '.join(map(str, dead))} have" if dead[1:] else f"rank {dead[0]} has"
            many = f"{len(dead)} slots of {name} rest" if dead[1:] else f"a slot of {name} rests"
            self._say(f"{who} died: {many} for {pause:g} s")
        if silent:
            self._say(f"no answer of {', '.join(sorted(silent))}")
        if silent or ending.dead:
            return True
        self._failures += 1
        if self._failures > self._restarts:
            return False
        self._say(f"restart {self._failures} of {self._restarts}")
        return True

    def _silent_now(self) -> set[str]:
        """The machines that do not answer after a failure."""
        self._slots.doubt()
        self._slots.look()
        while not self._slots.known:
            time.sleep(_LOOK)
            self._slots.look()
        return self._slots.silent


def _slots(count: int) -> str:
    return f"{count} free slot{'s' * (count > 1)}"


def _places(hosts: Sequence[Host]) -> list[str]:
    """The machine of each rank, as slots are filled one after the other."""
    return [host.name for host in hosts for _ in range(host.slots)]
