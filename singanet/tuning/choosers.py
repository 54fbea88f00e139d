"""Choosers for measuring: one that notes which routes are open, one that takes a given one."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from typing import Any

from singanet.ops.kernel import cheapest
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.choices import direct


class OpenRoutes:
    """Notes what is open to each case; all go the direct way, which calls no other kernel."""

    version = 0

    def __init__(self) -> None:
        self._estimates: dict[Case, Mapping[str, float]] = {}

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`."""
        self._estimates.setdefault(case, estimates)
        return direct(estimates)

    @property
    def cases(self) -> KeysView[Case]:
        """Those that asked."""
        return self._estimates.keys()

    def routes(self, case: Case) -> list[str]:
        """Those that are open to it; the cheapest by estimate first."""
        estimates = self._estimates[case]
        return list(dict.fromkeys([cheapest(estimates), *estimates]))


class OneRoute:
    """Takes ``route`` wherever it is open; what a kernel calls in turn goes as estimated.

    ``case`` is that of the kernel which is running, None until it has asked.
    """

    version = 0

    def __init__(self, route: str) -> None:
        self._route = route
        self.case: Case | None = None

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`."""
        if self.case is None:
            self.case = case
        if case != self.case:
            return cheapest(estimates)
        return self._route if self._route in estimates else direct(estimates)
