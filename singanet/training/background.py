"""Files that are written while steps go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from singanet.checkpoint.writing import Writing
from singanet.errors import FileAccessError, SingaNetError


class FilesInFlight:
    """Writes files on a thread of its own, those of one moment at a time.

    The thread writes what this process has and talks with nobody; what makes files of several ranks
    count is done where `look`, `finish` or `give_up` is called: the thread that trains.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._writings: Sequence[Writing] = ()
        self._then: Callable[[], None] = _nothing

    def start(self, writings: Sequence[Writing], then: Callable[[], None]) -> None:
        """Write these once those before are done; call ``then`` in the end, if they all count.

        Errors: as for `finish`, of those before.
        """
        self.finish()
        self._writings, self._then = writings, then
        # The interpreter waits for it at its end, as it is no daemon.
        self._thread = threading.Thread(target=_write, args=(writings,), name="checkpoint")
        self._thread.start()

    def look(self) -> None:
        """End what all processes have written by now; all call it. Errors: as for `finish`."""
        if self._thread is None:
            return
        written = not self._thread.is_alive()
        # Each is asked: for some of them other processes wait.
        ended = [each.ended(written) for each in self._writings]
        if written and all(ended):
            self.finish()

    def finish(self) -> None:
        """Wait for what is in flight, and let it count; all processes call it.

        Errors: what a file has met, by its name.
        """
        then = self._then
        if self._end([each.finish for each in self._writings_done()]):
            then()

    def give_up(self) -> None:
        """Wait for what is in flight, where other processes cannot be asked any more.

        A file of this process alone counts, one of several does not. Errors: as for `finish`.
        """
        self._end([each.give_up for each in self._writings_done()])

    def _writings_done(self) -> Sequence[Writing]:
        """Those in flight, once this process has written them."""
        if self._thread is None:
            return ()
        self._thread.join()
        return self._writings

    def _end(self, ends: Sequence[Callable[[], None]]) -> bool:
        """Call all of ``ends``; whether something was in flight. Errors: the first one's."""
        was, writings = self._thread is not None, self._writings
        self._thread, self._writings, self._then = None, (), _nothing
        failed: SingaNetError | None = None
        for end, writing in zip(ends, writings, strict=True):
            try:
                end()
            except SingaNetError as error:
                failed = failed or error
            except Exception as error:  # noqa: BLE001 - raised below, with the name of the file
                told = FileAccessError(
                    f"file {str(writing.path)!r}",
                    expected="a state that can be written",
                    received=f"{type(error).__name__}: {error}"[:300],
                    advice="what was there before is as it was; see the error above",
                )
                told.__cause__ = error
                failed = failed or told
        if failed is not None:
            raise failed
        return was


def _write(writings: Sequence[Writing]) -> None:
    for each in writings:
        each.write()


def _nothing() -> None:
    """What is to be done after nothing."""
