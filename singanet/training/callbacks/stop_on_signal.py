"""An end at the next step when the system asks for one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from singanet.training.callbacks.callback import Callback


class StopOnSignal(Callback):
    """SIGINT and SIGTERM let the step in work finish, then end the fit without an error.

    ``received`` is the signal, or None; with `ModelCheckpoint` the training state
    is saved. A second signal acts as it would without this callback. Outside the main thread,
    where Python delivers no signals, this does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(self) -> None:
        """Take the signals."""
        self.received = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)

    def on_train_end(self) -> None:
        """Give them back."""
        self._give_back()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.session.stop(f"received {self.received.name}")
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            # None is a handler that Python did not install and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
