"""Choosers for measuring: one notes the open routes, the other takes a given route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.ops.kernel import cheapest
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.choices import direct


class OpenRoutes:
    """Notes what is open to each case; all go the direct way, which calls no other kernel.

    ``case`` is the last that has asked.
    """

    version = 0

    def __init__(self) -> None:
        self.estimates: dict[Case, Mapping[str, float]] = {}
        self.case: Case | None = None

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`."""
        self.case = case
        self.estimates.setdefault(case, estimates)
        return direct(estimates)


class OneRoute:
    """Takes ``route`` where it is open to ``case``; what a kernel calls in turn is as estimated."""

    version = 0

    def __init__(self, case: Case | None, route: str) -> None:
        self._case, self._route = case, route

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`."""
        mine = case == self._case and self._route in estimates
        return self._route if mine else cheapest(estimates)
