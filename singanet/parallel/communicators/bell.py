"""A bell by which a process of the same machine wakes one that waits for its message."""

from __future__ import annotations

import atexit
import os
import select
import socket
from pathlib import Path
from typing import NamedTuple


class BellName(NamedTuple):
    """The ``name`` of a process's bell, as processes with the same ``place`` hear it."""

    place: str
    name: bytes


class Bell:
    """The bell of this process: a socket without a file, which only Linux has.

    A wait that is woken costs no looks, which take a core's time, and ends when the message is
    there. Whoever waits looks now and then all the same: a bell may be missed.
    """

    def __init__(self, own: socket.socket, place: str) -> None:
        self._own, self.name = own, BellName(place, own.getsockname())
        # Unlike select, it takes any number that the system has given a file.
        self._poll = select.poll()
        self._poll.register(own, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait until somebody rings, or has rung since the last wait, so many, or 1 ms, at most."""
        if self._poll.poll(1e3 * seconds):
            try:
                while True:
                    self._own.recv(1)
            except BlockingIOError:
                pass

    def ring(self, other: BellName) -> bool:
        """Wake the process of ``other``; whether there is any."""
        try:
            self._own.sendto(b"!", other.name)
        except BlockingIOError:
            # It has been rung for often, and hears it when it waits next.
            return True
        except OSError:
            return False
        return True


_bells: dict[int, Bell | None] = {}
"""By process, since a child that is forked has none of its own yet."""


def own_bell() -> Bell | None:
    """The bell of this process, None where there are no such sockets."""
    process = os.getpid()
    if process not in _bells:
        _bells.clear()
        _bells[process] = _made()
    return _bells[process]


def _made() -> Bell | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/net")
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except (OSError, AttributeError):
        return None
    try:
        own.setblocking(False)
        # Linux chooses a name that nobody has.
        own.bind("")
    except OSError:
        own.close()
        return None
    atexit.register(own.close)
    return Bell(own, f"{boot} {space}")
