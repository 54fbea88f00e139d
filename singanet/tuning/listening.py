"""Choosers for measuring: one that hears which routes are open, one that goes by a given one."""

from __future__ import annotations

from collections.abc import KeysView

from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.runtime import Runtime


class Listening:
    """Takes no route, so that it is asked of every one."""

    version = 0

    def __init__(self) -> None:
        self._estimates: dict[Case, dict[str, bool]] = {}

    def takes(self, route: str, case: Case, runtime: Runtime, estimate: bool) -> bool:
        """See `Chooser`."""
        self._estimates.setdefault(case, {})[route] = estimate
        return False

    @property
    def cases(self) -> KeysView[Case]:
        """Those that asked."""
        return self._estimates.keys()

    def routes(self, case: Case) -> list[str]:
        """Those that are open to it; the estimate's first."""
        heard = self._estimates[case]
        found = [route for route, estimate in heard.items() if estimate][:1]
        return list(dict.fromkeys([*found, "direct", *heard]))


class Everywhere:
    """Takes ``route`` wherever it is open; what a kernel calls in turn goes as estimated.

    ``case`` is that of the kernel which is running, None until it has asked.
    """

    version = 0

    def __init__(self, route: str) -> None:
        self._route = route
        self.case: Case | None = None

    def takes(self, route: str, case: Case, runtime: Runtime, estimate: bool) -> bool:
        """See `Chooser`."""
        if self.case is None:
            self.case = case
        return route == self._route if case == self.case else estimate
