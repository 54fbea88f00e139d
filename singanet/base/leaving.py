"""The wish of a launcher that this process ends once its training is in a file."""

from __future__ import annotations

from typing import NoReturn


class Leaving:
    """What has become of the wish; a process has one, `LEAVING`."""

    def __init__(self) -> None:
        self.asked = False
        self.begun = False

    def ask(self, *_: object) -> None:
        """Ask for it; a handler of signals, too."""
        self.asked = True

    def leave(self) -> NoReturn:
        """End the training as Ctrl-C ends it, which all ranks do after the same step."""
        self.begun = True
        raise KeyboardInterrupt("the launcher goes on with other ranks from here")


LEAVING = Leaving()
