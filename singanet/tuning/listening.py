"""Choosers for measuring: one that hears which routes are open, one that goes by a given one."""

from __future__ import annotations

from collections import Counter

from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.runtime import Runtime


class Listening:
    """Takes no route, so that it is asked of every one."""

    version = 0

    def __init__(self) -> None:
        self.calls: Counter[Case] = Counter()
        self._estimates: dict[Case, dict[str, bool]] = {}

    def takes(self, route: str, case: Case, runtime: Runtime, estimate: bool) -> bool:
        """See `Chooser`."""
        heard = self._estimates.setdefault(case, {})
        heard[route] = estimate
        # Every call asks of the same routes in the same order.
        self.calls[case] += route == next(iter(heard))
        return False

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
