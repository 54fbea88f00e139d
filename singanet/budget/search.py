"""The cheapest way, in time, to carry out a training step within given bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.base.heap import large_arrays_apart, trim
from singanet.base.sizes import bytes_text, checked_bytes
from singanet.budget.memory_plan import MemoryPlan, Way
from singanet.budget.offloaded import offload_of
from singanet.engine.peak_memory import PeakMemory
from singanet.errors import ArgumentError, one_of
from singanet.optimizer import Accumulator, Adam, AdamW, FactoredAdam
from singanet.optimizer.chain import UpdateChain
from singanet.program.memory import (
    TURNS,
    PlannedStep,
    as_trained,
    expect_alone,
    expect_recorded,
    planned_step,
    turns_of,
)
from singanet.program.programs import programs_of
from singanet.program.recompute.choice import CannotKeepError, Recompute
from singanet.training.arrays import cut

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer import Optimizer, Wrapper

_TRIES = 5
"""Targets tried for an arena, since what runs again adds Python objects of its own."""

_PLANNED = 0.5
"""Holes that planning leaves in Python's heap, for a byte of the program's objects: measured."""
_CHOOSING = 2_000_000
"""Bytes of the modules that choose what runs again, and of holes that they leave: measured."""
_BY_LAYERS = 1_000_000
"""Bytes that steps by the layers leave in the heap of Python: measured."""
_HOLES = 0.25
"""Bytes between small arrays that come and go by the layers, for one that lives: measured."""
_MOVED = 4
"""Bytes of memory that kernels go over in the time that a byte of a file takes: a fast disk."""

RECOMPUTE = "recompute"
MICRO_BATCHES = "micro-batches"
LIGHT_STATE = "light state"
OFFLOAD = "offload"
MEASURES = (RECOMPUTE, MICRO_BATCHES, LIGHT_STATE, OFFLOAD)
"""Measures that save memory, in the order in which they are tried."""
USUAL = MEASURES[:2]
"""The measures that are allowed by default: they keep the results, and need no folder."""


@large_arrays_apart()
def plan_memory(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None = None,
    budget: int | str | None = None,
    extent: int | None = None,
    allow: Collection[str] = USUAL,
    beside: dict[str, int] | None = None,
    y: Any = None,
    light: Optimizer | Wrapper | str | None = None,
    same_shape: bool = False,
    filling: int = 0,
    where: str = "net.plan",
    at_once: bool = True,
) -> MemoryPlan:
    """See `FeedForwardNet.plan`.

    ``beside`` are bytes that a training takes around its steps, by purpose; ``y`` are targets of a
    batch, for the loss's own arrays; ``light`` is the optimizer with less state, or the reason why
    there is none, None to find out. With ``same_shape`` no batch is smaller, and no other program
    is recorded. ``filling`` are bytes that parameters will take when they are filled, beside the
    parameters found to have no values yet. The first step is recorded ``at_once``, or runs by the
    layers.
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
            advice=f"leave it out to allow {one_of(USUAL)}",
        )
    limit = None if budget is None else checked_bytes(f"{where}, memory_budget", budget)
    expect_alone(where, optimizer)
    level = programs_of(net).recompute
    if light is None:
        light = light_optimizer(optimizer)
    with net.unfilled() as of_these:
        optimizer = as_trained(net, optimizer)
        whys = {
            MICRO_BATCHES: not_in_parts(net, optimizer),
            LIGHT_STATE: light if isinstance(light, str) else None,
        }
        notes = [f"no {name}: {whys[name]}" for name in whys if name in allow and whys[name]]
        less: Any = None if isinstance(light, str) else as_trained(net, light)
        search = _Search(
            net,
            size,
            optimizer,
            less,
            extent,
            level,
            limit,
            beside or {},
            y,
            same_shape,
            max(filling, of_these),
            at_once,
        )
        try:
            with expect_recorded(where):
                return search.run(
                    frozenset(name for name in allow if not whys.get(name)), tuple(notes), where
                )
        finally:
            # The memory of rehearsals goes back to the system, whatever came of them.
            search.steps.clear()
            trim()


def not_in_parts(net: Net, optimizer: Any) -> str | None:
    """Why steps of ``net`` are not the same in micro-batches, if so."""
    if not net.passes_are_its_own:
        return "a forward or backward of the user's own sees whole batches"
    for step in net.execution_plan().steps:
        moved = [p for p in step.layer.params.values() if p.is_state and not p.is_constant]
        if moved and not step.frozen:
            return f"layer {step.name!r} takes statistics of its whole batch"
    if getattr(net.loss, "reduction", "mean") == "sum":
        return "the loss is a sum over its batch"
    if getattr(net.loss, "counts_apart", False):
        return "its outputs' losses count apart, and micro-batches have one weight for all"
    if any(stage.gathers for stage in UpdateChain(optimizer).stages):
        return "the optimizer accumulates over batches already"
    return None


@dataclass
class _Search:
    net: Net
    size: int
    optimizer: Any
    light: Optimizer | Wrapper | None
    extent: int | None
    level: Recompute
    limit: int | None
    beside: dict[str, int]
    y: Any
    same_shape: bool
    filling: int
    at_once: bool = True
    table: list[Way] = field(default_factory=list)
    base: int = 0
    chosen_again: bool = False
    steps: dict[tuple[int, Recompute, bool], PlannedStep] = field(default_factory=dict)

    def run(self, allowed: frozenset[str], notes: tuple[str, ...], where: str) -> MemoryPlan:
        for way in self._ways(allowed):
            self.table.append(way)
            if self.limit is not None and way.peak <= self.limit:
                return MemoryPlan(self.size, self.limit, way, tuple(self.table), notes)
        if self.limit is None:
            return MemoryPlan(self.size, None, self.table[0], tuple(self.table), notes)
        raise self._cannot(allowed, notes, where)

    def _ways(self, allowed: frozenset[str]) -> Iterator[Way]:
        """Every way, cheapest in time first."""
        yield from self._in_memory(allowed, light=False)
        if LIGHT_STATE in allowed:
            yield from self._in_memory(allowed, light=True)
        if OFFLOAD in allowed:
            yield from self._offloaded(MICRO_BATCHES in allowed)

    def _in_memory(self, allowed: frozenset[str], light: bool) -> Iterator[Way]:
        parts = 1
        while parts <= self.size:
            micro = -(-self.size // parts)
            plain = self._way(micro, self.level, light)
            yield plain
            if RECOMPUTE in allowed and self.level == "none":
                yield from self._recomputed(plain, micro, light)
            if MICRO_BATCHES not in allowed or micro == 1:
                return
            parts *= 2

    def _recomputed(self, plain: Way, micro: int, light: bool) -> Iterator[Way]:
        """As ``plain``, within the limit where that can be, and else with the least memory."""
        arena, self.chosen_again = plain.parts["arena"], True
        # Programs with the sums of several ranks may not keep the bytes of those without.
        if self.limit is None or not self.at_once:
            yield from self._worth(self._way(micro, "cheap", light), plain)
            if 1 < micro < self.size:
                return
            yield from self._worth(self._way(micro, "blocks", light), plain)
        else:
            target = self.limit - (plain.peak - arena)
            for k in range(_TRIES):
                try:
                    if target <= 0:
                        break
                    way = self._way(micro, target, light)
                except CannotKeepError:
                    break
                if way.peak <= self.limit:
                    yield way
                    return
                # Small steps may never arrive, and the least memory costs the most time.
                target -= (way.peak - self.limit) << k
        yield from self._worth(self._way(micro, "optimal", light), plain)

    def _step(self, micro: int, level: Recompute, light: bool) -> PlannedStep:
        """The step of a part, or of the whole batch, planned once."""
        key = micro, level, light
        if key not in self.steps:
            optimizer = self.light if light else self.optimizer
            if micro < self.size and optimizer is not None:
                optimizer = _gathered(optimizer)
            y = cut(self.y, slice(0, micro))
            # Kernels that are prepared for batches of other sizes.
            self.net.device.ops.trim(prepared=True)
            step = planned_step(self.net, micro, optimizer, self.extent, level, self.at_once, y)
            self.steps[key] = step
            self.base = self.base or step.work
        return self.steps[key]

    def _way(self, micro: int, level: Recompute, light: bool) -> Way:
        """With programs, all of the net in memory."""
        step, whole = self._step(micro, level, light), micro == self.size
        measures = (
            *((RECOMPUTE,) if level != self.level else ()),
            *(() if whole else (f"{MICRO_BATCHES} of {micro}",)),
            *((LIGHT_STATE,) if light else ()),
        )
        # Another shape, as of a last batch, is rehearsed while the arena is there.
        alone = whole and self.same_shape and turns_of(self.optimizer) == 1
        beside = {"recording": 0 if alone else step.recording, "planning": self._planning(step)}
        memory = PeakMemory({**step.memory.parts, **beside, **self.beside}).after(self.filling)
        slowdown = step.work * -(-self.size // micro) / self.base
        optimizer = self.light if light else None
        return Way(measures, micro, level, memory, slowdown, step, optimizer=optimizer)

    def _planning(self, step: PlannedStep) -> int:
        """Bytes that planning leaves in the process, beside the objects of programs."""
        return round(_PLANNED * step.objects) + self.chosen_again * _CHOOSING

    def _offloaded(self, in_parts: bool) -> Iterator[Way]:
        """By the layers, parameters and state in a folder; what is left of the limit is kept."""
        if self.net.executor.can.holds:
            # A folder has floats.
            return
        moved = offload_of(self.net, self.optimizer)
        parts = 1
        while True:
            micro = -(-self.size // parts)
            step, whole = self._step(micro, self.level, light=False), micro == self.size
            # Without an optimizer nobody gathers.
            gradients = 0 if whole or self.optimizer is None else moved.gradients
            held = {
                "arena": round((1 + _HOLES) * step.by_layers),
                "parameters": moved.params,
                "optimizer state": moved.state + gradients,
                # Without what micro-batches gather, which is told above.
                "other": step.memory.parts["other"] - gradients,
                "kernels": step.memory.parts["kernels"],
                # Programs are made of what planning leaves, layers are not.
                "planning": self._planning(step) + step.objects + _BY_LAYERS,
                **self.beside,
            }
            # Of nothing that is large nothing is kept.
            keep = max(moved.least, 1)
            if self.limit is not None:
                # Room for two layers at least lets the next one be read while one computes.
                keep = min(max(keep, self.limit - sum(held.values())), max(moved.stored, 1))
            held["kept of the folder"] = keep
            count = -(-self.size // micro)
            work = step.work * count + _MOVED * (moved.per_part * count + moved.per_step)
            named = (*(() if whole else (f"{MICRO_BATCHES} of {micro}",)), OFFLOAD)
            memory = PeakMemory(held)
            yield Way(named, micro, self.level, memory, work / self.base, step, keep)
            if not in_parts or micro == 1:
                return
            parts *= 2

    def _worth(self, way: Way, plain: Way) -> Iterator[Way]:
        """``way``, where it takes less than ``plain``."""
        if way.peak < plain.peak:
            yield way

    def _cannot(self, allowed: frozenset[str], notes: tuple[str, ...], where: str) -> ArgumentError:
        least = min(self.table, key=lambda way: way.peak)
        limit = self.limit or 0
        fixed = least.parts["parameters"] + least.parts["optimizer state"]
        why = ""
        if limit < fixed:
            why = f", below the {bytes_text(fixed)} of parameters and optimizer state"
        told = f" ({'; '.join(notes)})" if notes else ""
        # What else would do, had it been allowed.
        others = [] if OFFLOAD in allowed else list(self._offloaded(MICRO_BATCHES in allowed))
        if self.light is not None and LIGHT_STATE not in allowed:
            others += self._in_memory(allowed, light=True)
        best = min(others, key=lambda way: way.peak, default=least)
        more = ""
        if best.peak < least.peak:
            how = "an offload_folder" if best.keep is not None else f"allow=({LIGHT_STATE!r},)"
            more = f", or {best.peak} and {how}, with which it takes {best.name}"
        return ArgumentError(
            f"{where}, memory_budget",
            expected=f"at least {least.peak:,} bytes for batches of {self.size}, which takes "
            f"{least.name}{told}",
            received=f"{limit:,} bytes{why}",
            advice=f"give it {least.peak}{more}; or take a smaller batch or an optimizer with less "
            "state",
        )


def _gathered(optimizer: Optimizer | Wrapper) -> Wrapper:
    """``optimizer`` as a fit has it in micro-batches: their gradients are scaled before."""
    scaled = UpdateChain(optimizer).scaled
    if scaled is None:
        return Accumulator(optimizer, TURNS)
    return scaled.around(Accumulator(scaled.optimizer, TURNS))


def light_optimizer(optimizer: Any) -> Optimizer | str:
    """An optimizer with less state in the place of ``optimizer``, or why there is none."""
    if type(optimizer) not in (Adam, AdamW):
        kind = "no optimizer" if optimizer is None else f"a {type(optimizer).__name__}"
        return f"that of an Adam or AdamW can be factored, and this is {kind}"
    if any(state.step for state in optimizer.states()):
        return "the optimizer has state already"
    regularized = optimizer.regularizer
    return FactoredAdam(
        lr=optimizer.lr,
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        # Adam's own decay is a regularizer.
        weight_decay=optimizer.weight_decay if isinstance(optimizer, AdamW) else None,
        regularizer=regularized,
        constraint=optimizer.constraint,
    )
