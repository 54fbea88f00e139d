"""The choice of passes by layers that recompute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from singanet.base.terms import LAYERS, Terms
from singanet.engine.feeds import shapes_of
from singanet.engine.fusion import fused
from singanet.engine.model import NetCore
from singanet.engine.plan import Plan
from singanet.types import Array

if TYPE_CHECKING:
    # Nets that recompute nothing do without.
    from singanet.engine.recompute.by_layers import Level, RecomputingPass, Seen
    from singanet.engine.recompute.units import UnitOp, Units

_CASES = 32
"""The maximum number of cached orders."""


class Recomputer:
    """Makes passes that recompute at ``level``, using the sizes of earlier contexts."""

    terms = Terms(uses=(LAYERS,), keeps="bits")

    def __init__(self, level: Level = "none") -> None:
        self.level: Level = level
        self._plan: Plan | None = None
        self._seen: dict[Any, Seen] = {}
        self._known: dict[Any, tuple[Units, list[UnitOp]]] = {}
        self._checked: set[int] = set()
        self._local = threading.local()

    @contextmanager
    def within_step(self) -> Iterator[None]:
        """A block in which this thread changes no parameter before its gradient."""
        self._local.whole = True
        try:
            yield
        finally:
            self._local.whole = False

    def asked(self, plan: Plan) -> bool:
        """Whether a pass over ``plan`` recomputes anything."""
        return self.level != "none" or plan.settings().recompute

    def forward(
        self,
        net: NetCore,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None,
        plan: Plan,
    ) -> RecomputingPass | None:
        """The forward of a pass over ``plan``, or None if nothing has to run again.

        In a loop of the caller's, parameters may change before the walk reaches them: small ones
        are copied now, layers with others do not run again. Errors: a layer with recompute=True
        that must not run again.
        """
        from singanet.engine.recompute import by_layers

        plan, whole = fused(plan, asked), getattr(self._local, "whole", False)
        if plan is not self._plan:
            self._plan, self._seen, self._known, self._checked = plan, {}, {}, set()
        shapes = tuple((name, str(shapes_of(given))) for name, given in feed.items())
        seen = self._seen.setdefault(shapes, {})
        wishes = tuple(step.layer.recompute for step in plan.steps)
        key = (shapes, len(seen), wishes, plan.settings().trained, asked, self.level, whole)
        if key not in self._known:
            if len(self._known) >= _CASES:
                self._known.clear()
            units = by_layers.units_of(plan, _batch(feed), net.dtype.itemsize, dict(seen), whole)
            self._known[key] = units, by_layers.ordered(units, self.level, bool(seen))
        units, ops = self._known[key]
        if len(ops) == 2 * len(units):
            return None
        made = by_layers.RecomputingPass(net, plan, units, ops, feed, asked, seen, starts, whole)
        with net.rehearsal(only_failed=True):
            made.run(self._checked)
        return made


def _batch(feed: Mapping[str, Any]) -> int:
    first = next(iter(feed.values()))
    return len(first[0] if isinstance(first, (list, tuple)) else first)
