"""By which route a convolution goes: the one that was measured to be best, or as estimated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from singanet.base.forks import free_in_children
from singanet.errors import FileAccessError
from singanet.ops.kernel import cheapest
from singanet.ops.onednn import route_file
from singanet.ops.onednn.cases import Case, Choices
from singanet.ops.onednn.library import Library
from singanet.ops.onednn.runtime import Runtime
from singanet.ops.onednn.speeds import BUILT_IN, Speeds


def direct(estimates: Mapping[str, float]) -> str:
    """oneDNN's own convolution where it is open, else the cheapest."""
    return "direct" if "direct" in estimates else cheapest(estimates)


class Calibration:
    """The speeds of this processor, read or measured when an estimate first asks for them."""

    def __init__(self) -> None:
        self._speeds: Speeds | None = None
        self._lock = free_in_children(threading.Lock())

    def speeds(self, runtime: Runtime, calibrate: Callable[[Library], Speeds]) -> Speeds:
        """The speeds in the file of routes, which keeps them for the next process.

        Without such a file the speeds are built in: speeds measured anew in each process would
        choose other routes, and give other bits, in each.
        """
        if self._speeds is None:
            with self._lock:
                self._speeds = self._speeds or self._found(runtime.library, calibrate)
        return self._speeds

    def _found(self, library: Library, calibrate: Callable[[Library], Speeds]) -> Speeds:
        path = route_file.path_of(library.version)
        if path is None:
            return BUILT_IN
        known = route_file.read_speeds(library.version)
        if known is not None:
            return known
        with suppress(FileAccessError):
            return route_file.keep_speeds(path, library.version, calibrate(library))
        return BUILT_IN


class Measured:
    """Choices that were measured on this machine; elsewhere the cheapest by estimate.

    They are read when the first convolution asks.
    """

    def __init__(self) -> None:
        self.version = 0
        self._choices: dict[int, Mapping[Case, str]] | None = None

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`."""
        runtime: Runtime | None = ops.runtime()
        chosen = "" if runtime is None else self.choices(runtime).get(case, "")
        return chosen if chosen in estimates else cheapest(estimates)

    def choices(self, runtime: Runtime) -> Mapping[Case, str]:
        """The choices for the number of threads of ``runtime``."""
        if self._choices is None:
            self._choices = route_file.read(runtime.library.version)
        return self._choices.get(runtime.threads, _NONE)

    def adopt(self, choices: Choices, runtime: Runtime) -> None:
        """Use these from now on, besides those that there are."""
        joined = {**self.choices(runtime), **choices}
        self._choices = {**(self._choices or {}), runtime.threads: joined}
        self.version += 1

    def remark(self, runtime: Runtime) -> str:
        """How many choices are in use, and where they lie."""
        count, path = len(self.choices(runtime)), route_file.path_of(runtime.library.version)
        if path is None:
            return f"convolutions as estimated, {route_file.why_none()}"
        if not count:
            return "convolutions as estimated, none measured: singanet tune"
        return f"{count} convolutions as measured with {runtime.threads} threads, {path}"


_NONE: Mapping[Case, str] = {}
