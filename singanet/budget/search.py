"""Search for the fastest way to run a training step within given bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.base.garbage import no_collections
from singanet.base.heap import large_arrays_apart, trim
from singanet.base.kinds import bytes_text, checked_bytes
from singanet.budget.plans import MemoryPlan, Way
from singanet.engine.timeline import PeakMemory
from singanet.errors import ArgumentError, brief, did_you_mean, one_of
from singanet.layers.batchwise import Rearrange
from singanet.loss.loss import losses_of
from singanet.offload.offloaded import is_large, least_keep
from singanet.optimizer import Accumulator, Adam, AdamW, FactoredAdam
from singanet.optimizer.chain import UpdateChain
from singanet.program.memory import (
    TURNS,
    PlannedStep,
    Rehearsal,
    as_trained,
    expect_alone,
    expect_recorded,
    pages_outside,
    rehearsed_step,
    turns_of,
)
from singanet.program.programs import programs_of
from singanet.program.recompute import CannotKeepError, Recompute
from singanet.training.batches import cut
from singanet.training.options import MEASURES, USUAL

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer import Optimizer, Wrapper

_TRIES = 8
"""The ways with the least estimates that are planned to find the least memory."""
_LITTLE = 1.1
"""A slowdown by recomputation below which no way that changes results is tried."""

_PLANNED = 0.35
"""Python heap fragmentation by planning, relative to the program's objects: measured."""
_CHOOSING = 2_000_000
"""Bytes of the modules that choose recomputation, and their fragmentation: measured."""
_BY_LAYERS = 1_000_000
"""Bytes that steps by the layers leave in Python's heap: measured."""
_HOLES = 0.25
"""Fragmentation by temporary arrays of the layers, relative to the live bytes: measured."""
_MOVED = 4
"""The memory bytes that kernels process in the time of one byte of a file: a fast disk."""

RECOMPUTE, MICRO_BATCHES, LIGHT_STATE, OFFLOAD = MEASURES


@large_arrays_apart()
def plan_memory(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None = None,
    memory_budget: int | str | None = None,
    extent: int | None = None,
    allow: Collection[str] = USUAL,
    beside: dict[str, int] | None = None,
    y: Any = None,
    light: Optimizer | Wrapper | str | None = None,
    same_shape: bool = False,
    filling: int = 0,
    where: str = "net.plan",
    at_once: bool = True,
    widths: int = 1,
) -> MemoryPlan:
    """Implement `FeedForwardNet.plan`.

    ``beside`` are bytes that a training needs outside its steps, by purpose. ``y`` are targets of a
    batch, for the loss's own arrays. ``light`` is the optimizer with less state, or the reason why
    there is none; None determines it. With ``same_shape`` no batch is smaller, so no other program
    is recorded. ``filling`` are bytes that parameters will take when they are filled, in addition
    to parameters without values. The first step is recorded if ``at_once``, otherwise it runs by
    the layers. Batches have as many ``widths``, each of which has a program.
    """
    size = checked_count(where, "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count(where, "extent", extent, 1)
    expect_measures(where, allow)
    limit = None
    if memory_budget is not None:
        limit = checked_bytes(f"{where}, memory_budget", memory_budget)
    expect_alone(where, optimizer)
    level = programs_of(net).recompute
    if light is None:
        light = light_optimizer(optimizer)
    with net._unfilled() as of_these:
        optimizer = as_trained(net, optimizer)
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
            widths,
        )
        try:
            with no_collections(), expect_recorded(where):
                if any(getattr(each, "_compares_samples", False) for each in losses_of(net.loss)):
                    # A loss of a function knows after a step.
                    search._rehearsal(size, light=False)
                whys = {
                    MICRO_BATCHES: not_in_parts(net, optimizer),
                    LIGHT_STATE: light if isinstance(light, str) else None,
                    OFFLOAD: "a folder has floats" if net.executor.can.holds else None,
                }
                notes = [
                    f"no {name}: {whys[name]}" for name in whys if name in allow and whys[name]
                ]
                return search.run(
                    frozenset(name for name in allow if not whys.get(name)), tuple(notes), where
                )
        finally:
            # Free the rehearsals in any case.
            search.steps.clear()
            search.rehearsed = None
            trim()


def expect_measures(where: str, allow: Any) -> None:
    """Refuse an ``allow`` that is not a collection of names in `MEASURES`."""
    names = [allow] if isinstance(allow, str) or not isinstance(allow, Collection) else allow
    unknown = [name for name in names if name not in MEASURES]
    if names is not allow or unknown:
        wrong = unknown[0] if unknown else allow
        raise ArgumentError(
            f"{where}, allow",
            expected=f"some of {one_of(MEASURES)}",
            received=brief(wrong)[:60],
            advice=did_you_mean(str(wrong), MEASURES, f"leave it out to allow {one_of(USUAL)}")
            if unknown
            else f"write allow=({wrong!r},)",
        )


def not_in_parts(net: Net, optimizer: Any) -> str | None:
    """Return the reason why micro-batches would change the steps of ``net``, or None."""
    if not net._passes_are_its_own:
        return "a custom forward or backward sees whole batches"
    losses = losses_of(net.loss)
    for step in net._execution_plan().steps:
        losses += losses_of(getattr(step.layer, "loss", None))
        moved = [p for p in step.layer.params.values() if p.is_state and not p.is_constant]
        if moved and not step.frozen:
            return f"layer {step.name!r} takes statistics of its whole batch"
        if isinstance(step.layer, Rearrange) and step.layer.traits.samples == "own":
            return f"layer {step.name!r} moves the batch axis"
    if getattr(net.loss, "reduction", "mean") == "sum":
        return "the loss is a sum over its batch"
    if any(getattr(each, "_compares_samples", False) for each in losses):
        return "the loss compares the samples of a batch with each other"
    if getattr(net.loss, "_counts_apart", False):
        return "its outputs' losses count apart, and micro-batches have one weight for all"
    if any(stage.traits.gathers for stage in UpdateChain(optimizer).stages):
        return "the optimizer accumulates over batches already"
    return None


@dataclass
class _Search:
    """A search over ways, with the tried ones in ``table``.

    It searches for the least memory with whole batches and with single samples: any size between
    needs more than a sample. So a budget is refused if none of these fits, and any larger
    budget than an accepted one is accepted.
    """

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
    widths: int = 1
    table: list[Way] = field(default_factory=list)
    base: int = 0
    recomputes: bool = False
    outside: dict[str, int] = field(default_factory=dict)
    rehearsed: tuple[tuple[int, bool], Rehearsal] | None = None
    steps: dict[tuple[int, Recompute, bool], PlannedStep] = field(default_factory=dict)
    refused: set[tuple[int, Recompute, bool]] = field(default_factory=set)

    def run(self, allowed: frozenset[str], notes: tuple[str, ...], where: str) -> MemoryPlan:
        self.recomputes = RECOMPUTE in allowed and self.level == "none"
        in_parts = MICRO_BATCHES in allowed
        if self.limit is None:
            self.table += self._every(allowed, in_parts)
            return MemoryPlan(self.size, None, self.table[0], tuple(self.table), notes)
        chosen = self._in_memory(in_parts, light=False)
        if chosen is None and LIGHT_STATE in allowed:
            chosen = self._in_memory(in_parts, light=True)
        if chosen is None and OFFLOAD in allowed:
            chosen = self._cheapest(in_parts, self._offloaded)
        if chosen is None:
            raise self._cannot(allowed, notes, where)
        table = sorted(self.table, key=lambda way: way.slowdown)
        return MemoryPlan(self.size, self.limit, chosen, tuple(table), notes)

    def _every(self, allowed: frozenset[str], in_parts: bool) -> Iterator[Way]:
        """Yield ways of each kind, without a limit."""
        sizes = self._sizes(in_parts)
        for light in (False, True) if LIGHT_STATE in allowed else (False,):
            for micro in sizes:
                plain = self._way(micro, self.level, light)
                yield plain
                if self.recomputes and self._may_save(plain, light):
                    ways = [self._way(micro, "cheap", light)]
                    if micro in (sizes[0], sizes[-1]):
                        ways += [self._way(micro, "blocks", light), self._least(plain, light)]
                    yield from (way for way in ways if way.peak < plain.peak)
        if OFFLOAD in allowed:
            for micro in sizes:
                yield from self._offloaded(micro)

    def _sizes(self, in_parts: bool) -> list[int]:
        """Return the samples of a micro-batch, from the whole batch down to one."""
        parts = 1
        sizes = [self.size]
        while in_parts and sizes[-1] > 1:
            parts *= 2
            sizes.append(-(-self.size // parts))
        return sizes

    def _in_memory(self, in_parts: bool, light: bool) -> Way | None:
        return self._cheapest(in_parts, partial(self._fitting, light=light))

    def _cheapest(self, in_parts: bool, ways: Callable[[int], Iterator[Way]]) -> Way | None:
        """Return the fastest way within the limit, of ``ways`` for each size of micro-batches.

        The first way of each size is the plain one, and the last is the candidate.
        """
        whole, *sizes = self._sizes(in_parts)
        _, best = self._tried(ways(whole))
        if not sizes or (best is not None and best.slowdown <= _LITTLE):
            return best
        if best is None:
            _, best = self._tried(ways(sizes.pop()))
        for micro in sizes if best is not None else ():
            plain, way = self._tried(ways(micro))
            if way is not None and (best is None or way.slowdown < best.slowdown):
                best = way
            if best is not None and plain.slowdown >= best.slowdown:
                break
        return best

    def _tried(self, ways: Iterator[Way]) -> tuple[Way, Way | None]:
        """Return the first of ``ways``, and the last if it is within the limit."""
        found = [*ways]
        self.table += [way for way in found if way not in self.table]
        limit = self.limit or 0
        return found[0], found[-1] if found[-1].peak <= limit else None

    def _fitting(self, micro: int, light: bool) -> Iterator[Way]:
        """Yield the plain way, and the fastest within the limit or the way of least memory."""
        plain, limit = self._way(micro, self.level, light), self.limit or 0
        yield plain
        if plain.peak <= limit or not self.recomputes:
            return
        off = 0
        for guess, level in self._levels(plain, light):
            if guess + off <= limit and (way := self._way_at(micro, level, light)) is not None:
                if way.peak <= limit:
                    yield way
                    return
                off = max(off, way.peak - guess) if self.at_once else 0
        yield self._least(plain, light)

    def _least(self, plain: Way, light: bool) -> Way:
        """Return the way of least memory with the micro-batches of ``plain``."""
        best = plain
        for guess, level in sorted(self._levels(plain, light), key=itemgetter(0))[:_TRIES]:
            if guess >= best.peak:
                break
            way = self._way_at(plain.micro_batch, level, light)
            best = best if way is None or way.peak >= best.peak else way
        return best

    def _levels(self, plain: Way, light: bool) -> list[tuple[int, Recompute]]:
        """Return levels of recomputation with estimated peaks, fastest first.

        They do not depend on the limit, so a larger limit finds all levels of a smaller one.
        """
        # Programs with reductions over ranks may need more bytes than those without.
        if not self.at_once:
            return [(0, "cheap"), (0, "blocks"), (0, "optimal")]
        parts, objects = plain.parts, plain.parts["program"] + self._planning(plain.step)
        fixed = plain.peak - parts["arena"] - parts["planning"] + self._planning(plain.step)
        return [
            (fixed + _CHOOSING + each.nbytes + round(each.again * objects), each.nbytes)
            for each in self._rehearsal(plain.micro_batch, light).targets
            if each.again
        ]

    def _may_save(self, plain: Way, light: bool) -> bool:
        """Return whether recomputation can need less memory than ``plain``, however chosen.

        Not if the values are small: Python's objects for more calls take more.
        """
        more = _CHOOSING - (plain.parts["planning"] - self._planning(plain.step))
        return self._rehearsal(plain.micro_batch, light).most_freed > more

    def _way_at(self, micro: int, level: Recompute, light: bool) -> Way | None:
        """Return the way at ``level``; None if the arena does not fit into its bytes."""
        if (micro, level, light) in self.refused:
            return None
        try:
            return self._way(micro, level, light)
        except CannotKeepError:
            self.refused.add((micro, level, light))
            return None

    def _rehearsal(self, micro: int, light: bool) -> Rehearsal:
        """Return the rehearsed step of a micro-batch; cache the last one, since they are large."""
        if self.rehearsed is None or self.rehearsed[0] != (micro, light):
            self.rehearsed = None
            trim()
            optimizer = self.light if light else self.optimizer
            if micro < self.size and optimizer is not None:
                optimizer = _gathered(optimizer)
            y = cut(self.y, slice(0, micro))
            # Free kernels that are prepared for batches of other sizes.
            self.net.device.ops.trim(prepared=True)
            made = rehearsed_step(self.net, micro, optimizer, self.extent, self.at_once, y)
            self.rehearsed = (micro, light), made
        return self.rehearsed[1]

    def _step(self, micro: int, level: Recompute, light: bool) -> PlannedStep:
        """Return a step of `_rehearsal`, planned once."""
        key = micro, level, light
        if key not in self.steps:
            step = self.steps[key] = self._rehearsal(micro, light).at(level)
            # Measured after the kernels of a step exist.
            self.outside = self.outside or pages_outside()
            self.base = self.base or step.work
        return self.steps[key]

    def _way(self, micro: int, level: Recompute, light: bool) -> Way:
        """Return the way with programs, and the whole net in memory."""
        step, whole = self._step(micro, level, light), micro == self.size
        measures = (
            *((RECOMPUTE,) if level != self.level else ()),
            *(() if whole else (f"{MICRO_BATCHES} of {micro}",)),
            *((LIGHT_STATE,) if light else ()),
        )
        # Another shape, such as a last batch, is rehearsed while the arena exists.
        alone = whole and self.same_shape and turns_of(self.optimizer) == 1
        # The first way is planned before recomputation is chosen.
        chosen = _CHOOSING * (self.recomputes and bool(measures))
        planning = self._planning(step) + chosen
        beside = {"recording": 0 if alone else step.recording, "planning": planning}
        parts = {**step.memory.parts, **beside, **self.beside}
        if self.widths > 1 and "program" in parts:
            beside["other programs"] = (self.widths - 1) * parts["program"]
            parts |= beside
        memory = PeakMemory(parts, self.outside).after(self.filling)
        slowdown = step.work * -(-self.size // micro) / self.base
        optimizer = self.light if light else None
        return Way(measures, micro, level, memory, slowdown, step, optimizer=optimizer)

    def _planning(self, step: PlannedStep) -> int:
        """Return the bytes that planning leaves in the process, besides the program's objects."""
        return round(_PLANNED * step.objects)

    def _offloaded(self, micro: int) -> Iterator[Way]:
        """Yield the way by the layers, with parameters and state in a folder.

        The rest of the limit is the cache.
        """
        if self.net.executor.can.holds:
            # A folder has floats.
            return
        step, whole = self._step(micro, self.level, light=False), micro == self.size
        chain, params = UpdateChain(self.optimizer), self.net.params()
        large = [param for param in params if is_large(param)]
        small = [param for param in params if not is_large(param)]
        read, moved = sum(param.nbytes for param in large), sum(map(chain.state_bytes, large))
        gradients = 0
        if not whole and self.optimizer is not None:
            # Without an optimizer nothing accumulates.
            trained = (param for param in params if param.trainable)
            gradients = sum(prod(p.shape) * chain.rule_type(p).itemsize for p in trained)
        # Programs reuse the memory that planning leaves, layers do not.
        left = self._planning(step) + _CHOOSING * self.recomputes + step.objects + _BY_LAYERS
        held = {
            "arena": round((1 + _HOLES) * step.by_layers),
            "parameters": sum(param.nbytes for param in small),
            "optimizer state": sum(map(chain.state_bytes, small)) + gradients,
            # Without the accumulated gradients, which are counted above.
            "other": step.memory.parts["other"] - gradients,
            "kernels": step.memory.parts["kernels"],
            "planning": left,
            **self.beside,
        }
        # An accumulator updates whole parameters, so that their state is not in parts.
        gathers = not whole and self.optimizer is not None
        updating = UpdateChain(_gathered(self.optimizer)) if gathers else chain
        # At least 1, also if no parameter is large.
        keep = max(least_keep(self.net, updating)[0], 1)
        if self.limit is not None:
            # Room for two layers lets the next one be read while one computes.
            keep = min(max(keep, self.limit - sum(held.values())), max(read + moved, 1))
        held["kept of the folder"] = keep
        count = -(-self.size // micro)
        written = sum(param.nbytes for param in large if param.trainable)
        # Parameters are read in forward and in backward of each part.
        work = step.work * count + _MOVED * (2 * read * count + written + 2 * moved)
        named = (*(() if whole else (f"{MICRO_BATCHES} of {micro}",)), OFFLOAD)
        memory = PeakMemory(held, self.outside)
        yield Way(named, micro, self.level, memory, work / self.base, step, keep)

    def _cannot(self, allowed: frozenset[str], notes: tuple[str, ...], where: str) -> ArgumentError:
        least = min(self.table, key=lambda way: way.peak)
        limit = self.limit or 0
        fixed = least.parts["parameters"] + least.parts["optimizer state"]
        why = ""
        if limit < fixed:
            why = f", below the {bytes_text(fixed)} of parameters and optimizer state"
        told = f" ({'; '.join(notes)})" if notes else ""
        # Find ways that would fit if they were allowed.
        others: list[Way] = []
        if OFFLOAD not in allowed:
            for micro in dict.fromkeys((self.size, self._sizes(MICRO_BATCHES in allowed)[-1])):
                others += self._offloaded(micro)
        if self.light is not None and LIGHT_STATE not in allowed:
            others += self._fitting(least.micro_batch, light=True)
        best = min(others, key=lambda way: way.peak, default=least)
        more = ""
        if best.peak < least.peak:
            how = "an offload_folder" if best.keep is not None else f"allow=({LIGHT_STATE!r},)"
            more = f", or {best.peak} and {how} for {best.name}"
        return ArgumentError(
            f"{where}, memory_budget",
            expected=f"at least {least.peak:,} bytes for batches of {self.size}, which takes "
            f"{least.name}{told}",
            received=f"{limit:,} bytes{why}",
            advice=f"give it {least.peak}{more}; or take a smaller batch or an optimizer with less "
            "state",
        )


def _gathered(optimizer: Optimizer | Wrapper) -> Wrapper:
    """Return ``optimizer`` with accumulation, inside of any loss scaling."""
    scaled = UpdateChain(optimizer).scaled
    if scaled is None:
        return Accumulator(optimizer, TURNS)
    return scaled.around(Accumulator(scaled.optimizer, TURNS))


def light_optimizer(optimizer: Any) -> Optimizer | str:
    """Return a replacement of ``optimizer`` with less state, or the reason why there is none."""
    if type(optimizer) not in (Adam, AdamW) or "largest" in optimizer.slots:
        kind = "no optimizer" if optimizer is None else f"a {optimizer!r}"
        return f"only the state of an Adam or AdamW can be factored, and this is {kind}"
    if any(state.step for state in optimizer.states()):
        return "the optimizer has state already"
    regularized = optimizer.regularizer
    return FactoredAdam(
        learning_rate=optimizer.learning_rate,
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        epsilon_after_correction=optimizer.epsilon_after_correction,
        # A coupled decay is a regularizer.
        weight_decay=optimizer.weight_decay if optimizer.decoupled else None,
        regularizer=regularized,
        constraint=optimizer.constraint,
    )
