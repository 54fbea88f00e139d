"""A pseudo-terminal of a number of columns."""

import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class PseudoTerminal:
    """``stream`` writes to the terminal; all that was written is in ``shown`` after its end."""

    def __init__(self, parent: int, child: int) -> None:
        self.stream = os.fdopen(child, "w", encoding="utf-8")
        self._parent, self.shown = parent, ""
        # A terminal takes few bytes that nobody has read.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        raw = b""
        try:
            while piece := os.read(self._parent, 4096):
                raw += piece
        except OSError:
            pass  # Linux reports the end of a terminal as an error
        os.close(self._parent)
        self.shown = raw.decode()

    def close(self) -> None:
        """Hang up, and wait for the last bytes."""
        self.stream.close()
        self._reader.join()

    @property
    def frames(self) -> list[str]:
        """All drawings of lines, without those that erase one."""
        return [frame.rstrip() for frame in re.split(r"[\r\n]+", self.shown) if frame.strip()]

    @property
    def lines(self) -> list[str]:
        """What is left on the screen, without the line of the cursor."""
        return [line.split("\r")[-1] for line in self.shown.split("\r\n")[:-1]]


@contextmanager
def pseudo_terminal(columns: int) -> Iterator[PseudoTerminal]:
    """Yield a terminal of ``columns`` columns; a test on another system than POSIX is skipped."""
    pty = pytest.importorskip("pty")
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    terminal = PseudoTerminal(parent, child)
    try:
        yield terminal
    finally:
        terminal.close()
