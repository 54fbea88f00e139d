"""By which route a convolution goes: the one that an estimate says, or one that was measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import numpy as np

from singanet.ops.onednn import route_file
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.cases import Case, Choices
from singanet.ops.onednn.runtime import Runtime


class Chooser(Protocol):
    """What answers whether a convolution goes by a route that is open to it."""

    version: int
    """How often choices were changed: what was recorded before is no longer what runs."""

    def takes(self, route: str, case: Case, runtime: Runtime, estimate: bool) -> bool:
        """Asked of each open route but the direct one, which is taken where none is."""


class Measured:
    """Choices that were measured on this machine; elsewhere the estimates.

    They are read when the first convolution asks.
    """

    def __init__(self) -> None:
        self.version = 0
        self._choices: dict[int, Mapping[Case, str]] | None = None

    def takes(self, route: str, case: Case, runtime: Runtime, estimate: bool) -> bool:
        """See `Chooser`."""
        chosen = self.choices(runtime).get(case)
        return estimate if chosen is None else chosen == route

    def choices(self, runtime: Runtime) -> Mapping[Case, str]:
        """Those for as many threads as ``runtime`` has."""
        if self._choices is None:
            self._choices = route_file.read(runtime.library.version)
        return self._choices.get(runtime.threads, _NONE)

    def adopt(self, choices: Choices, runtime: Runtime) -> None:
        """Use these from now on, besides those that there are."""
        joined = {**self.choices(runtime), **choices}
        self._choices = {**(self._choices or {}), runtime.threads: joined}
        self.version += 1


_NONE: Mapping[Case, str] = {}


class OneDnnRoutes(OneDnnBase):
    """Kernels that ask ``routes`` by which of several ways to compute."""

    def __init__(self, path: str, required: bool, xp: Any = np) -> None:
        super().__init__(path, required, xp)
        self.routes: Chooser = Measured()

    def settings(self) -> Hashable:
        """See `NumpyOps`: routes may have been measured in the meantime."""
        return super().settings(), self.routes.version

    def remarks(self) -> list[str]:
        """See `NumpyOps`: how many measured choices are in use."""
        runtime = self.runtime()
        if runtime is None or not isinstance(self.routes, Measured):
            return []
        count, path = len(self.routes.choices(runtime)), route_file.path_of(runtime.library.version)
        if path is None:
            return [f"convolutions as estimated, {route_file.VARIABLE}={route_file.OFF}"]
        if not count:
            return ["convolutions as estimated, none measured: singanet tune"]
        return [f"{count} convolutions as measured with {runtime.threads} threads, {path}"]

    def takes(self, route: str, case: Case, estimate: bool) -> bool:
        """Whether ``case`` goes by ``route``, which is open to it."""
        runtime = self.runtime()
        return estimate if runtime is None else self.routes.takes(route, case, runtime, estimate)
