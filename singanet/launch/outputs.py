"""The output of a job, carried to where its launcher writes."""

from __future__ import annotations

import os
import selectors
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_PIECE, _KEPT = 1 << 16, 1 << 14


class Outputs:
    """Standard output and error of rank 0, in ``folder``; and those of mpirun.

    A terminal is written to by rank 0 itself, which so knows that it is one. What mpirun says is
    kept; it is carried on too where ``remote`` ranks write through it.
    """

    def __init__(self, folder: Path, remote: bool) -> None:
        self._to: dict[int, int | None] = {}
        self._open: list[int] = []
        self._said = b""
        self._selector = selectors.DefaultSelector()
        for number, name in ((1, "out"), (2, "err")):
            place = folder / name
            if _is_terminal(number):
                place.symlink_to(os.ttyname(number))
            else:
                os.mkfifo(place, 0o600)
                # For writing as well, so that it does not end before the first rank has opened it.
                self._listen(os.open(place, os.O_RDWR | os.O_NONBLOCK), number)
        read, self.mpirun = os.pipe()
        os.set_blocking(read, False)
        self._mpirun = read
        self._listen(read, 2 if remote else None)

    def _listen(self, handle: int, to: int | None) -> None:
        self._to[handle] = to
        self._open.append(handle)
        self._selector.register(handle, selectors.EVENT_READ)

    def started(self) -> None:
        """Let mpirun alone hold the end that it writes to."""
        os.close(self.mpirun)

    def carry(self, seconds: float) -> None:
        """Carry on what is there within so many seconds, and all that is there after."""
        while ready := self._selector.select(seconds):
            seconds = 0.0
            for key, _ in ready:
                self._carry_from(key.fd)

    def _carry_from(self, handle: int) -> None:
        piece = b""
        with suppress(BlockingIOError):
            piece = os.read(handle, _PIECE)
        if not piece:
            self._selector.unregister(handle)
            return
        if handle == self._mpirun:
            self._said = (self._said + piece)[-_KEPT:]
        to = self._to[handle]
        while to is not None and piece:
            try:
                piece = piece[os.write(to, piece) :]
            except OSError:  # a reader that has gone; the job goes on
                self._to[handle] = to = None

    @property
    def said(self) -> str:
        """The end of what mpirun has said."""
        return self._said.decode(errors="replace")

    def __enter__(self) -> Outputs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        self._selector.close()
        for handle in self._open:
            os.close(handle)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number) and bool(os.ttyname(number))
    except OSError:
        return False
