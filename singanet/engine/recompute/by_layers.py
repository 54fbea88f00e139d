"""Recomputation of activations in a pass by layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from singanet.base.kinds import megabytes, text_table
from singanet.engine.backward import BackwardWalk, Pass, apart_from, roots_in
from singanet.engine.feeds import shapes_of
from singanet.engine.plan import NodeStep, Plan, run_step
from singanet.engine.recompute.cheapest_path import expect_repeatable, may_repeat
from singanet.engine.recompute.units import (
    Plans,
    Unit,
    UnitOp,
    Units,
    dropped_alone,
    forced,
    lowered,
    series,
)
from singanet.engine.timeline import Lifetimes
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import SMALL
from singanet.types import Array


class Decision(NamedTuple):
    """The decision on a layer: the number of its further forward ``runs``, and the reason.

    ``released`` bytes of its values are free between forward and backward; ``added`` bytes of its
    inputs stay for it. ``time`` is its fraction of one forward of all layers.
    """

    layer: str
    runs: int
    released: int
    added: int
    time: float
    why: str


class Decisions(tuple[Decision, ...]):
    """The decisions of a step; ``str`` shows the layers that run again as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        head = ["layer", "runs", "MB released", "MB added", "% of forward", "why"]
        rows = [
            [
                one.layer,
                str(one.runs),
                megabytes(one.released),
                megabytes(one.added),
                f"{100 * one.runs * one.time:.2f}",
                one.why,
            ]
            for one in self
            if one.runs
        ]
        return "\n".join(text_table(head, rows)) if rows else "nothing is recomputed"

    def as_dicts(self) -> list[dict[str, Any]]:
        """The decisions as data for JSON."""
        return [one._asdict() for one in self]


def decisions(units: Units, ops: Sequence[UnitOp], why: str) -> list[Decision]:
    """The decisions in ``ops`` on each of ``units`` with values for its backward.

    ``why`` is the reason for the units that no setting forces to run again.
    """
    before, now = _waiting(units, units.kept()), _waiting(units, ops)
    runs = [-1] * len(units)
    for op in ops:
        if op.kind == "forward":
            runs[op.unit] += 1
    late, early = now - before, before - now
    # Of each value, among the units that run again.
    first_reader: dict[int, int] = {}
    for k in reversed(range(len(units))):
        if runs[k]:
            first_reader.update(dict.fromkeys(units.units[k].reads, k))
    whole = sum(unit.time for unit in units.units) or 1.0
    found = []
    for k, unit in enumerate(units.units):
        inputs = [value for value in late & unit.reads if first_reader.get(value) == k]
        released = units.bytes_of(early & unit.makes)
        if unit.makes and (runs[k] or unit.makes & before):
            found.append(
                Decision(
                    unit.name,
                    runs[k],
                    released,
                    units.bytes_of(inputs),
                    unit.time / whole,
                    _why(unit.forced, unit.again, bool(runs[k]), unit.dear, why),
                )
            )
    return found


def _why(forced: bool, again: bool, runs: bool, dear: bool, why: str) -> str:
    if forced:
        return "layer.recompute is True"
    if runs:
        return why
    if not again:
        return "must not run again"
    return "takes long" if dear else "would not take less"


def _waiting(units: Units, ops: Sequence[UnitOp]) -> frozenset[int]:
    """The values that wait at the turn from forward to backward for a use after it."""
    turn = next((at for at, op in enumerate(ops) if op.kind == "backward"), len(ops))
    made = {value for op in ops[:turn] for value in units.units[op.unit].makes}
    waiting: set[int] = set()
    for op in ops[turn:]:
        unit = units.units[op.unit]
        waiting |= (unit.reads if op.kind == "forward" else unit.wants) & made
        if op.kind == "forward":
            made -= unit.makes - units.pinned
    return frozenset(waiting)


_SHARED = 4
"""The number of readers from which a value belongs to all blocks, such as a mask or an encoder's
output.
"""

_TOGETHER = (1, 2, 4)
"""The numbers of blocks to join, if blocks are small compared with the values between them."""


def by_blocks(units: Units) -> list[UnitOp]:
    """The step in which each block but the last runs again before it goes backward.

    It saves the values between blocks: in a residual net the stream. The other values of a block
    are in memory for one block at a time. Layers whose outputs no backward reads, such as the last
    product of a block, do not run again.
    """
    cuts = [*series(units, _crossing(units)), len(units)]
    steps = (_step(units, [*cuts[:-1:each], cuts[-1]]) for each in _TOGETHER)
    return min(steps, key=units.peak)


def _step(units: Units, cuts: list[int]) -> list[UnitOp]:
    ops = [UnitOp("forward", k) for k in range(len(units))]
    for first, last in reversed(list(pairwise(cuts))):
        inside = range(first, last)
        is_last = last == len(units)
        dropped = forced(units) if is_last else {k for k in inside if units.units[k].again}
        ops += units.dropping(dropped, inside, units.handed_on(inside))
    return ops


def _crossing(units: Units) -> list[int]:
    """The number of values that pass each unit to later ones, without the shared ones."""
    readers: dict[int, list[int]] = {}
    for at, unit in enumerate(units.units):
        for value in unit.reads:
            readers.setdefault(value, []).append(at)
    pieces = [
        (at + 1, readers[value][-1], 1)
        for value, at in units.maker.items()
        if value in readers and value not in units.pinned and len(readers[value]) <= _SHARED
    ]
    return Lifetimes.of(pieces).live(len(units) + 1).tolist()


Level = Literal["none", "cheap", "blocks", "sqrt", "optimal"] | int
"""What runs again.

nothing; the cheap units that save memory; all values inside blocks; segments of a chain; the units
for the least memory; or enough for a number of bytes of activations and gradients.
"""

WHYS = {
    "none": "", "cheap": "takes little time", "blocks": "in a block that runs again",
    "sqrt": "in a segment that runs again", "optimal": "for the least memory",
}  # fmt: skip
"""Why units run again, by the level."""


def order_at(level: Level, plans: Plans) -> list[UnitOp]:
    """The step at ``level``; the step of fewest bytes if none fits a number of bytes."""
    units = plans.units
    if level == "none":
        return dropped_alone(units, forced(units))
    if level == "cheap":
        return lowered(units)
    if level == "blocks":
        return by_blocks(units)
    if level == "sqrt":
        return plans.segments()
    return (plans.ways[-1] if level == "optimal" else plans.quickest(level)).ops()


_ADDS_A_BYTE = 2
"""The multiply-adds in the time of reading a byte, as in `singanet.program.cost`."""

_SPARING = 1.1
"""Times the quickest step within given bytes that blocks may take, which leave most of them free.

Scratch and gradients are not counted here, as they are in a program.
"""

Seen = dict[int, tuple[frozenset[int], int]]
"""By step the slots that its context refers to, and the bytes of its other arrays."""

_State = tuple[Any, list[tuple[Array, Array]]]
"""The generator's state, and arrays of parameters with copies of their values."""


def ordered(units: Units, level: Level, known: bool) -> list[UnitOp]:
    """The order at ``level``; the sizes of contexts are ``known`` after a pass.

    Before that, a number of bytes is met by blocks: the way of least memory takes many times as
    long.
    """
    if level in ("none", "cheap", "sqrt"):
        return order_at(level, Plans(units))
    blocks = by_blocks(units)
    if level == "blocks" or (isinstance(level, int) and not known):
        return blocks
    plans = Plans(units, blocks)
    goal = max(level, plans.least()) if isinstance(level, int) else plans.least()
    made = order_at(goal, plans)
    # A backward takes about twice the time of its forward.
    back = 2 * sum(unit.time for unit in units.units)
    hardly = units.time(blocks) + back <= _SPARING * (units.time(made) + back)
    return blocks if hardly and units.peak(blocks) <= goal else made


def units_of(
    plan: Plan,
    batch: int,
    itemsize: int,
    seen: Mapping[int, tuple[frozenset[int], int]],
    whole: bool = True,
) -> Units:
    """The steps of ``plan`` as units; slots are values, followed by contexts' private parts.

    ``seen`` has by step the slots that its context refers to, and the bytes of its other arrays;
    for other steps all adjacent slots are assumed. ``whole`` is False in a loop of the caller's.
    """
    slots = plan.slot_bytes(batch, itemsize)
    sizes = slots + [seen[i][1] if i in seen else 0 for i in range(len(plan.steps))]
    units = []
    for i, step in enumerate(plan.steps):
        around = frozenset((*step.in_slots, *step.out_slots))
        holds, private = seen.get(i, (around, 0))
        own = len(slots) + i
        touched = sum(sizes[slot] for slot in around)
        products = _multiply_adds(step, plan, batch)
        units.append(
            Unit(
                step.name,
                touched + products / _ADDS_A_BYTE,
                frozenset(step.in_slots),
                frozenset(step.out_slots) | ({own} if private else frozenset()),
                (holds & around) | ({own} if private else frozenset()),
                again=_may_run(step, whole),
                forced=step.layer.recompute is True,
                dear=products > 0,
                backward_bytes=touched,
            )
        )
    return Units(units, sizes)


def _may_run(step: NodeStep, whole: bool) -> bool:
    """Whether a second forward of the step is like the first one, and wanted."""
    layer = step.layer
    if step.fed or layer.recompute is False:
        return False
    small = whole or all(p.nbytes <= SMALL for p in layer.params.values())
    return small and (layer.recompute is True or may_repeat(layer))


def _multiply_adds(step: NodeStep, plan: Plan, batch: int) -> int:
    """The multiply-adds of the step's products with weights, over all positions."""
    weights = sum(
        int(np.prod(param.shape)) for param in step.layer.params.values() if len(param.shape) > 1
    )
    shape = plan.slot_shapes[step.out_slots[0]]
    positions = shape[1:] if len(shape) > 2 else shape[:-1]
    return batch * weights * int(np.prod([max(axis, 1) for axis in positions]))


class RecomputingPass(Pass):
    """A pass in the order of ``ops``; contexts are from the last run of each step.

    Contexts leave out the arrays between layers, the values of ``units``, which are made and freed
    once. ``seen`` gets the sizes of the contexts.
    """

    def __init__(
        self,
        net: Any,
        plan: Plan,
        units: Units,
        ops: list[UnitOp],
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        seen: Seen,
        starts: Callable[[Mapping[int, Array]], None] | None,
        whole: bool,
    ) -> None:
        self._whole = whole
        self.plan = plan
        self.shapes: Mapping[str, Any] = {}
        self._kernels, self._rng, self._device = net.device.ops, net.rng, net.device
        self._ops, self._feed, self._seen, self._starts = ops, feed, seen, starts
        self._wanted: Collection[str] = {*self.plan.outputs, *asked}
        self._keeps = self.plan.keeping(asked)
        slots = frozenset(range(len(self.plan.slot_shapes)))
        self._fills = [unit.wants & slots for unit in units.units]
        self._frees = _frees(self.plan, ops, self._fills)
        self._left = [0] * len(self.plan.steps)
        for op in ops:
            self._left[op.unit] += op.kind == "forward"
        self._at = 0
        self._outputs: dict[str, Any] = {}
        self._slots: dict[int, Any] = {}
        self._contexts: list[Any] = [None] * len(self.plan.steps)
        self._holes: dict[int, list[tuple[str, int]]] = {}
        self._first: dict[int, _State] = {}

    def run(self, checked: set[int]) -> None:
        """The first forward; ``checked`` are the steps known to do the same in a second one."""
        with self._device.scope():
            while self._ops[self._at].kind == "forward":
                self._forward(checked)
        self.shapes = {name: shapes_of(value) for name, value in self._outputs.items()}

    def hand_out(self) -> dict[str, Any]:
        outputs: dict[str, Any] = apart_from(
            self._outputs, roots_in([*self._contexts, self._slots])
        )
        self._outputs = {}
        return outputs

    def release(self) -> None:
        self._contexts, self._slots = [], {}

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """Walk backward. Errors: a visited step without a saved context."""
        if self._starts is not None:
            self._starts(slot_grads)
        walk = BackwardWalk(self.plan, self._contexts, slot_grads, asked, self._come_to, zeros=True)
        return walk.run()

    def _come_to(self, i: int) -> None:
        """Run the units due before step ``i`` goes backward, and complete its context."""
        with self._device.scope():
            while self._ops[self._at].kind == "forward":
                self._forward()
        for key, slot in self._holes.pop(i, ()):
            self._contexts[i].saved[key] = self._slots[slot]
        self._go_on()

    def _go_on(self) -> None:
        for slot in self._frees[self._at]:
            self._slots.pop(slot, None)
        self._at += 1

    def _forward(self, checked: set[int] | None = None) -> None:
        i = self._ops[self._at].unit
        step, first = self.plan.steps[i], self._first.get(i)
        if step.fed:
            x = self._feed[step.members[0]]
        else:
            given = [self._slots[slot] for slot in step.in_slots]
            x = given if step.many_in else given[0]
        if step.foreign and self._left[i] > 1:
            # A user's layer may work in place, and its input is needed again.
            x = [part.copy() for part in x] if step.many_in else x.copy()
        if checked is not None and i not in checked and self._left[i] > 1:
            if not may_repeat(step.layer):
                expect_repeatable(step.layer, partial(self._run, step, x))
            checked.add(i)
        self._left[i] -= 1
        last = not self._left[i]
        params, now = step.params(), None
        if first is not None:
            # The layer reads the arrays of the first run, even if others were assigned since: the
            # arrays that it saves and returns may be views of them.
            pairs = [*zip(self._kept(step), first[1], strict=True)]
            others = {id(param.value): array for param, (array, _) in pairs}
            params = {name: others.get(id(a), a) for name, a in params.items()}
            now = self._state([*(param.value for param, _ in pairs), *others.values()])
            self._restore(first)
            for param, (array, value) in pairs:
                if param.value is not array:
                    param.value[...] = value
        elif not last:
            self._first[i] = self._state([param.value for param in self._kept(step)])
        # With the same kernels as the last run, as others may differ in the last bits.
        y, ctx = self._run(step, x, step.layer, self._rng, self._keeps[i], params)
        if now is not None:
            self._restore(now)
        elif step.name in self._wanted:
            self._outputs[step.name] = y
        self._slots.update(zip(step.out_slots, y if step.many_out else [y], strict=True))
        del x, y
        if last:
            self._seen[i] = _held(step, ctx, self._slots)
            fills = {id(self._slots[slot]): slot for slot in self._fills[i] if slot in self._slots}
            holes = [(key, fills[id(v)]) for key, v in ctx.saved.items() if id(v) in fills]
            ctx.saved.update(dict.fromkeys((key for key, _ in holes), None))
            self._holes[i] = holes
        else:
            # Only the shapes of this run are needed; the arrays come from the last run.
            ctx.saved.clear()
        self._contexts[i] = ctx
        self._go_on()

    def _run(
        self,
        step: NodeStep,
        x: Any,
        layer: Layer,
        rng: Any,
        keep: bool,
        params: Mapping[str, Array] | None = None,
    ) -> tuple[Any, Context]:
        return run_step(
            step, x, self._feed, self._kernels, rng, step.in_training, keep, layer, params=params
        )

    def _kept(self, step: NodeStep) -> list[Param]:
        """The parameters of ``step`` that may be others when it runs again."""
        params = step.layer.params.values()
        return [p for p in params if not p.is_constant and (p.is_state or not self._whole)]

    def _state(self, arrays: Sequence[Array]) -> _State:
        return self._rng.bit_generator.state, [(array, array.copy()) for array in arrays]

    def _restore(self, state: _State) -> None:
        self._rng.bit_generator.state = state[0]
        for array, value in state[1]:
            array[...] = value


def _frees(plan: Plan, ops: list[UnitOp], fills: Sequence[frozenset[int]]) -> list[list[int]]:
    """For each op the slots that no later op reads, or that are written again first.

    ``fills`` are the slots that contexts are completed from.
    """
    frees: list[list[int]] = []
    needed: set[int] = set()
    for op in reversed(ops):
        step = plan.steps[op.unit]
        made = set(step.out_slots) if op.kind == "forward" else set()
        read = set(step.in_slots) if op.kind == "forward" else fills[op.unit]
        frees.append(sorted((made | read) - needed))
        needed = (needed - made) | read
    return frees[::-1]


def _held(step: NodeStep, ctx: Context, slots: Mapping[int, Any]) -> tuple[frozenset[int], int]:
    """The slots that a context refers to as they are, and the bytes of its other arrays."""
    around = {id(slots[slot]): slot for slot in (*step.out_slots, *step.in_slots)}
    found = {around[id(value)] for value in ctx.saved.values() if id(value) in around}
    params = roots_in(ctx.params)
    private = roots_in([value for value in ctx.saved.values() if id(value) not in around])
    beside = sum(int(root.nbytes) for key, root in private.items() if key not in params)
    return frozenset(found), beside
