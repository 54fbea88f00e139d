"""The cheapest way, in time, to carry out a training step within given bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.base.sizes import bytes_text, checked_bytes
from singanet.budget.memory_plan import MemoryPlan, Way
from singanet.engine.net import expect_host
from singanet.errors import ArgumentError, one_of
from singanet.optimizer import Accumulator
from singanet.program.ir import NotRecordableError
from singanet.program.memory import expect_alone, planned_step
from singanet.program.programs import programs_of
from singanet.program.recompute.choice import CannotKeepError, Recompute
from singanet.training.arrays import cut

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer import Optimizer, Wrapper

_TRIES = 3
"""Targets tried for an arena, since what runs again adds Python objects of its own."""
_TURNS = 3
"""Programs of a micro-batched step: its first part, those between, and the last with the update."""
_RECORDING = 8_000_000
"""Bytes at most that a rehearsal takes for a moment: of its arrays the pages that malloc writes."""

RECOMPUTE = "recompute"
MICRO_BATCHES = "micro-batches"
MEASURES = (RECOMPUTE, MICRO_BATCHES)
"""What may be done to need less, in the order in which it is tried."""


def plan_memory(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None = None,
    budget: int | str | None = None,
    extent: int | None = None,
    allow: Collection[str] = MEASURES,
    beside: dict[str, int] | None = None,
    y: Any = None,
    where: str = "net.plan",
) -> MemoryPlan:
    """See `FeedForwardNet.plan`.

    ``beside`` are bytes that a training takes around its steps, by what they are for; ``y``
    targets of a batch, with which the loss's own arrays are counted.
    """
    size = checked_count(where, "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count(where, "extent", extent, 1)
    unknown = [name for name in allow if name not in MEASURES]
    if isinstance(allow, str) or unknown:
        raise ArgumentError(
            f"{where}, allow",
            expected=f"some of {one_of(MEASURES)}",
            received=repr(allow if isinstance(allow, str) else unknown[0])[:60],
            advice="leave it out to allow them all",
        )
    limit = None if budget is None else checked_bytes(f"{where}, memory_budget", budget)
    expect_host(net, where)
    expect_alone(where, optimizer)
    level = programs_of(net).recompute
    search = _Search(net, size, optimizer, extent, level, limit, beside or {}, y)
    notes = []
    if MICRO_BATCHES in allow:
        why = not_in_parts(net, optimizer)
        if why is not None:
            notes.append(f"no micro-batches: {why}")
            allow = [name for name in allow if name != MICRO_BATCHES]
    try:
        return search.run(frozenset(allow), tuple(notes), where)
    except NotRecordableError as error:
        raise ArgumentError(
            where,
            expected="a step that can be recorded, whose memory is known before it runs",
            received=f"one with {error}",
            advice="train it without a budget, or change that part",
        ) from None


def not_in_parts(net: Net, optimizer: Any) -> str | None:
    """Why steps of ``net`` are not the same in micro-batches, if so."""
    for step in net.plan().steps:
        moved = [p for p in step.layer.params.values() if p.is_state and not p.is_constant]
        if moved and not step.frozen:
            return f"layer {step.name!r} takes statistics of its whole batch"
    if getattr(net.loss, "reduction", "mean") == "sum":
        return "the loss is a sum over its batch"
    while optimizer is not None and hasattr(optimizer, "optimizer"):
        if isinstance(optimizer, Accumulator):
            return "the optimizer accumulates over batches already"
        optimizer = optimizer.optimizer
    return None


@dataclass
class _Search:
    net: Net
    size: int
    optimizer: Any
    extent: int | None
    level: Recompute
    limit: int | None
    beside: dict[str, int]
    y: Any
    table: list[Way] = field(default_factory=list)
    base: int = 0

    def run(self, allowed: frozenset[str], notes: tuple[str, ...], where: str) -> MemoryPlan:
        for way in self._ways(allowed):
            self.table.append(way)
            if self.limit is not None and way.peak <= self.limit:
                return MemoryPlan(self.size, self.limit, way, tuple(self.table), notes)
        if self.limit is None:
            return MemoryPlan(self.size, None, self.table[0], tuple(self.table), notes)
        raise self._cannot(notes, where)

    def _ways(self, allowed: frozenset[str]) -> Iterator[Way]:
        """Every way, cheapest in time first."""
        parts = 1
        while parts <= self.size:
            micro = -(-self.size // parts)
            plain = self._way(self._named(micro), micro, self.level)
            yield plain
            if RECOMPUTE in allowed and self.level == "none":
                yield from self._recomputed(plain, micro)
            if MICRO_BATCHES not in allowed or micro == 1:
                return
            parts *= 2

    def _recomputed(self, plain: Way, micro: int) -> Iterator[Way]:
        """As ``plain``, within the limit where that can be, and else with the least memory."""
        arena = plain.parts["arena"]
        if self.limit is None:
            yield from self._worth(self._again(micro, "cheap"), plain)
            if 1 < micro < self.size:
                return
        else:
            target = self.limit - (plain.peak - arena)
            for _ in range(_TRIES):
                try:
                    if target <= 0:
                        break
                    way = self._again(micro, target)
                except CannotKeepError:
                    break
                if way.peak <= self.limit:
                    yield way
                    return
                target -= way.peak - self.limit
        yield from self._worth(self._again(micro, "optimal"), plain)

    def _again(self, micro: int, level: Recompute) -> Way:
        return self._way((RECOMPUTE, *self._named(micro)), micro, level)

    def _named(self, micro: int) -> tuple[str, ...]:
        return () if micro == self.size else (f"{MICRO_BATCHES} of {micro}",)

    def _way(self, measures: tuple[str, ...], micro: int, level: Recompute) -> Way:
        whole = micro == self.size
        optimizer = self.optimizer
        if not whole and optimizer is not None:
            optimizer = _at_last_part(self.net, optimizer)
        y = cut(self.y, slice(0, micro))
        step = planned_step(self.net, micro, optimizer, self.extent, level, True, y)
        work = step.work * -(-self.size // micro)
        self.base = self.base or work
        held = dict(step.memory.parts)
        # Another shape, as of a last batch, is rehearsed while the arena is there.
        held["recording"] = min(step.by_layers, _RECORDING)
        if not whole:
            held["program"] *= _TURNS
        slowdown = work / self.base
        return Way(measures, micro, level, {**held, **self.beside}, slowdown, step)

    def _worth(self, way: Way, plain: Way) -> Iterator[Way]:
        """``way``, where it takes less than ``plain``."""
        if way.peak < plain.peak:
            yield way

    def _cannot(self, notes: tuple[str, ...], where: str) -> ArgumentError:
        least = min(self.table, key=lambda way: way.peak)
        limit = self.limit or 0
        fixed = least.parts["parameters"] + least.parts["optimizer state"]
        why = ""
        if limit < fixed:
            why = f", below the {bytes_text(fixed)} of parameters and optimizer state"
        told = f" ({'; '.join(notes)})" if notes else ""
        return ArgumentError(
            f"{where}, memory_budget",
            expected=f"at least {least.peak:,} bytes for batches of {self.size}, which takes "
            f"{least.name}{told}",
            received=f"{limit:,} bytes{why}",
            advice=f"give it {least.peak}, or take a smaller batch or an optimizer with less state",
        )


def _at_last_part(net: Net, optimizer: Optimizer | Wrapper) -> Accumulator:
    """Micro-batches of ``optimizer`` before their last part, which weighs other than the first.

    No other part needs more memory.
    """
    trained = [param for param in net.params() if param.trainable and not param.is_state]
    names = [param.name for param in trained]
    gathered = Accumulator(optimizer, 2)
    gathered.settle(names, [param.value for param in trained])
    gathered.weigh(0.5)
    gathered.skip(names)
    return gathered
