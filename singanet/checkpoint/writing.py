"""Files that are written in steps: what this process has, by any thread, then what makes it count.

Only `Writing.write` may be called on another thread than the one that trains: the other methods may
talk with other processes, which MPI lets one thread do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from singanet.checkpoint.entry import Source
from singanet.checkpoint.formats import write_state


class Writing(Protocol):
    """The file at ``path``, being written; the one before counts until the new one is whole."""

    path: Path

    def write(self) -> None:
        """Write what this process has, and let go of it; an error waits for `finish`."""

    def ended(self, written: bool) -> bool:
        """Whether all processes have ``written``; all ask at the same point."""

    def finish(self) -> None:
        """Let the file count; all processes call it. Errors: those of `write`, of any of them."""

    def give_up(self) -> None:
        """End without asking other processes, with what that allows. Errors: as for `finish`."""


class OneFile:
    """A file that this process writes alone: it is in its place once `write` has come to its end.

    The format goes by the suffix.
    """

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self.path = path
        self._sources = sources
        self._failed: Exception | None = None

    def write(self) -> None:
        """Write all of it."""
        try:
            write_state(self.path, self._sources)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failed = error
        finally:
            self._sources = ()

    def ended(self, written: bool) -> bool:
        """``written`` itself."""
        return written

    def finish(self) -> None:
        """Raise what `write` has met."""
        if self._failed is not None:
            raise self._failed

    def give_up(self) -> None:
        """As `finish`: nobody else is asked."""
        self.finish()
