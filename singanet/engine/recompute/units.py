"""A step as units that run forward and backward, and the choice of units to run again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np

from singanet.engine.recompute.cheapest_path import ChainStage, Option, Schedules
from singanet.engine.timeline import Ints, Lifetimes

_MANY_UNITS = 12
"""The maximum number of units in a stage with every choice tried; larger stages are divided if
possible.
"""

_MANY_STAGES = 80
"""The maximum number of stages of a chain, so that scheduling takes seconds."""

_CHOICES, _MANY_CHOICES = 9, 4096
"""The maximum number of kinds of units with every set tried, and of sets tried for all stages."""

_LEAST, _ATTEMPTS = 2000, 200
"""Units of less than this fraction of the peak are not tried; the maximum number of trials."""

_NEXT = 0.94
"""The ratio of the bytes of consecutive steps by stages."""


class Unit(NamedTuple):
    """A layer's part in a step, with the numbers of its values.

    Its forward reads the values ``reads``, and writes ``makes`` for others or for its backward,
    which reads ``wants``. No other run could reproduce the values ``pinned``, such as draws.
    ``again``: it may run again. ``forced``: its values must not be saved. ``dear``: it is a product
    or convolution. The bytes are the scratch and gradients of each direction.
    """

    name: str
    time: float
    reads: frozenset[int] = frozenset()
    makes: frozenset[int] = frozenset()
    wants: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    again: bool = True
    forced: bool = False
    dear: bool = False
    forward_bytes: int = 0
    backward_bytes: int = 0


class UnitOp(NamedTuple):
    """A unit runs ``forward``, for the first time or again, or goes ``backward``."""

    kind: Literal["forward", "backward"]
    unit: int


class Units:
    """The units of a step in the order of their forwards, with the ``sizes`` of values."""

    def __init__(self, units: Iterable[Unit], sizes: Sequence[int]) -> None:
        self.units = [
            # A unit that cannot run again saves all its values.
            unit if unit.again else unit._replace(pinned=unit.makes, forced=False)
            for unit in units
        ]
        self.sizes = sizes
        self.maker: dict[int, int] = {}
        for at, unit in enumerate(self.units):
            for value in unit.makes:
                self.maker.setdefault(value, at)
        self.pinned = frozenset(value for unit in self.units for value in unit.pinned)
        self.last_reader: dict[int, int] = {}
        for at, unit in enumerate(self.units):
            for value in unit.reads | unit.wants:
                self.last_reader[value] = at

        # One object each: orders have many of them.
        self.forwards = [UnitOp("forward", k) for k in range(len(self.units))]
        self.backwards = [UnitOp("backward", k) for k in range(len(self.units))]
        # How many values, and how many bytes, go on from before each unit to it or later ones.
        self.crossing = self._crossing()

    @cached_property
    def lowerings(self) -> list[UnitWay]:
        """The steps of the function `lowerings`, without long units."""
        return lowerings(self, dear=False)

    def _crossing(self) -> list[tuple[int, int]]:
        made = ((v, at) for v, at in self.maker.items() if v not in self.pinned)
        lives = Lifetimes.of(
            [(at + 1, self.last_reader.get(v, -1), self.sizes[v]) for v, at in made]
        )
        count, moments = lives._replace(size=np.ones_like(lives.size)), len(self.units) + 1
        return [*zip(count.live(moments).tolist(), lives.live(moments).tolist(), strict=True)]

    def __len__(self) -> int:
        return len(self.units)

    def bytes_of(self, values: Iterable[int]) -> int:
        """The bytes of ``values``."""
        return sum(self.sizes[value] for value in values)

    def handed_on(self, inside: range) -> frozenset[int]:
        """The values that the units ``inside`` make and later ones need, without the pinned."""
        return frozenset(
            value
            for at in inside
            for value in self.units[at].makes - self.pinned
            if self.maker[value] == at and self.last_reader.get(value, -1) >= inside.stop
        )

    # -- time and memory of an order ----------------------------------------------------------

    def kept(self) -> list[UnitOp]:
        """The step in which no unit runs again."""
        return [*self.forwards, *reversed(self.backwards)]

    def time(self, ops: Iterable[UnitOp]) -> float:
        """The time of all forwards."""
        return sum(self.units[op.unit].time for op in ops if op.kind == "forward")

    def peak(self, ops: Sequence[UnitOp]) -> int:
        """The most bytes at a time; each value lives from a run that makes it to its last use."""
        return max(self.live(ops), default=0)

    def live(
        self,
        ops: Sequence[UnitOp],
        there: Collection[int] | None = None,
        after: Collection[int] = (),
    ) -> list[int]:
        """The bytes that are needed at each of ``ops``, before which the values ``there`` are made.

        Earlier values that are not ``there`` do not count; the values ``after`` are needed later.
        """
        born = dict.fromkeys(there or (), 0)
        run: set[int] = set()
        until: dict[tuple[int, int], int] = {}
        for moment, op in enumerate(ops):
            unit, first_time = self.units[op.unit], op.unit not in run and there is None
            for value in unit.reads if op.kind == "forward" else unit.wants:
                if value in born:
                    until[value, born[value]] = moment
            if op.kind == "forward":
                run.add(op.unit)
                for value in unit.makes if first_time else unit.makes - self.pinned:
                    born[value] = moment
                    until[value, moment] = moment
        until.update({(value, born[value]): len(ops) - 1 for value in after if value in born})
        # The sums of `Lifetimes.live` in Python, which takes 0.8 of its time for short lists.
        change = [0] * (len(ops) + 1)
        for (value, first), last in until.items():
            change[first] += self.sizes[value]
            change[last + 1] -= self.sizes[value]
        live = [*accumulate(change[:-1])]
        for at, op in enumerate(ops):
            unit = self.units[op.unit]
            live[at] += unit.forward_bytes if op.kind == "forward" else unit.backward_bytes
        return live

    # -- dropped values are computed again when needed -----------------------------------------

    def dropping(
        self, dropped: Collection[int], units: range, there: Collection[int]
    ) -> list[UnitOp]:
        """The backwards of ``units``, each preceded by the units that have to run again for it.

        ``dropped`` are units whose values are not saved; ``there`` values that are saved anyway.
        """
        ops: list[UnitOp] = []
        made: set[int] = set()
        for at in reversed(units):
            needed: set[int] = set()
            todo = list(self.units[at].wants)
            while todo:
                value = todo.pop()
                maker = self.maker.get(value, -1)
                if maker not in dropped or maker not in units or maker in needed:
                    continue
                if value in made or value in there or value in self.pinned:
                    continue
                needed.add(maker)
                todo += self.units[maker].reads
            ops += [self.forwards[k] for k in sorted(needed)]
            made.update(value for k in needed for value in self.units[k].makes)
            ops.append(self.backwards[at])
        return ops


def dropped_alone(units: Units, dropped: Collection[int]) -> list[UnitOp]:
    """The step in which ``dropped`` units run again when their values are needed."""
    every = range(len(units))
    return [*units.forwards, *units.dropping(dropped, every, ())]


def forced(units: Units) -> set[int]:
    """The units whose values must not be saved."""
    return {k for k, unit in enumerate(units.units) if unit.forced}


class DroppedUnits:
    """Units that run again when what they make is wanted, and the bytes that this takes.

    More of them may be dropped, for a time that grows with what changes.
    """

    def __init__(self, units: Units, dropped: Iterable[int]) -> None:
        self.units = units
        count = range(len(units))
        # Before the backward of which unit each runs again, or -1.
        self.before = [-1] * len(units)
        self._dropped: set[int] = set()
        self._wanted = [-1] * len(units)
        self._makers: list[list[int]] = [[] for _ in count]
        self._readers: list[list[int]] = [[] for _ in count]
        for at, unit in enumerate(units.units):
            for value in unit.wants - units.pinned:
                if value in units.maker:
                    self._wanted[units.maker[value]] = at
            for value in unit.reads - units.pinned:
                if value in units.maker:
                    self._makers[at].append(units.maker[value])
                    self._readers[units.maker[value]].append(at)
        each = units.units
        self._reads = _pairs(unit.reads for unit in each)
        self._wants = _pairs(unit.wants for unit in each)
        self._makes = _pairs(unit.makes for unit in each)
        self._remakes = _pairs(unit.makes - units.pinned for unit in each)
        self._sizes = np.array(units.sizes, np.int64)
        self._own = np.array([(u.forward_bytes, u.backward_bytes) for u in each], np.int64)
        self.drop(dropped)

    def drop(self, some: Iterable[int]) -> Callable[[], None]:
        """Drop ``some`` more units. Return a function that takes it back, if it is called next."""
        before, some = self.before, list(some)
        was: dict[int, int] = {}
        self._dropped.update(some)
        todo = [(k, max([self._wanted[k], *(before[m] for m in self._readers[k])])) for k in some]
        while todo:
            k, at = todo.pop()
            if k in self._dropped and at > before[k]:
                was.setdefault(k, before[k])
                before[k] = at
                # What it reads is wanted then.
                todo += [(maker, at) for maker in self._makers[k]]

        def restore() -> None:
            self._dropped.difference_update(some)
            for k, at in was.items():
                before[k] = at

        return restore

    def live(self) -> Ints:
        """The bytes that are needed at each moment of the step, as by `Units.live`."""
        count, before = len(self.units), np.array(self.before, np.int64)
        forward = np.arange(count)
        # Each backward, and each run before it, in the order of units.
        again = (before >= 0).nonzero()[0]
        again = again[np.argsort(-before[again], kind="stable")]
        ran = np.full(count, -1)
        ran[again] = count + np.arange(len(again)) + count - 1 - before[again]
        until = np.cumsum(np.bincount(before[again], minlength=count)[::-1])[::-1]
        backward = count + until + count - 1 - forward
        moments = 2 * count + len(again)
        # What is read at a moment comes before what is made then.
        events = np.sort(
            np.concatenate(
                [
                    2 * (value * moments + moment[unit]) + made
                    for (value, unit), moment, made in (
                        (self._makes, forward, 1),
                        (self._remakes, ran, 1),
                        (self._reads, forward, 0),
                        (self._reads, ran, 0),
                        (self._wants, backward, 0),
                    )
                    for value, unit in [(value[moment[unit] >= 0], unit[moment[unit] >= 0])]
                ]
            )
        )
        values, moment = np.divmod(events >> 1, moments)
        # A value lives from where it is made to where nothing more is read of that.
        makes = (events & 1).astype(bool)
        starts = (makes | np.diff(values, prepend=-1).astype(bool)).nonzero()[0]
        ends = np.append(starts, len(events))[1:] - 1
        ends, starts = ends[makes[starts]], starts[makes[starts]]
        live = Lifetimes(moment[starts], moment[ends], self._sizes[values[starts]]).live(moments)
        live[forward] += self._own[:, 0]
        live[ran[again]] += self._own[again, 0]
        live[backward] += self._own[:, 1]
        return live

    def way(self, nbytes: int) -> UnitWay:
        """The step, which takes ``nbytes`` bytes."""
        before, every = [*self.before], range(len(self.units))
        again = sorted((k for k in every if before[k] >= 0), key=lambda k: -before[k])
        time = sum(self.units.units[k].time for k in (*every, *again))

        def ops() -> list[UnitOp]:
            runs: dict[int, list[UnitOp]] = {}
            for k in again:
                runs.setdefault(before[k], []).append(UnitOp("forward", k))
            made = [UnitOp("forward", k) for k in every]
            for k in reversed(every):
                made += [*runs.get(k, ()), UnitOp("backward", k)]
            return made

        return UnitWay(nbytes, time, ops)


def _pairs(of_units: Iterable[Iterable[int]]) -> tuple[Ints, Ints]:
    """The values ``of_units``, and the unit of each."""
    found = [(value, at) for at, values in enumerate(of_units) for value in values]
    values, units = np.array(found, np.int64).reshape(-1, 2).T
    return values, units


def lowered(units: Units) -> list[UnitOp]:
    """The step of the last of `lowerings`, which takes the fewest bytes, without long units."""
    return units.lowerings[-1].ops()


def lowerings(units: Units, dear: bool) -> list[UnitWay]:
    """Steps in which one more unit runs again after the other.

    No step needs more bytes than the previous one. Units with the most bytes for their time are
    tried first, long ones only if ``dear``. A unit runs again if that frees more than its inputs'
    longer lives add: the rule of MXNet's mirroring, by liveness instead of counts.
    """
    wanted = {value for unit in units.units for value in unit.wants}
    first = forced(units)
    may = [k for k, unit in enumerate(units.units) if unit.again and (dear or not unit.dear)]
    # What no backward wants is made again rather than kept for what runs again.
    first.update(k for k in may if wanted.isdisjoint(units.units[k].makes - units.pinned))
    dropped = DroppedUnits(units, first)
    live = dropped.live()
    most = int(live.max(initial=0))
    found = [dropped.way(most)]
    nbytes = {k: units.bytes_of(units.units[k].makes - units.pinned) for k in may}
    may = [k for k in may if k not in first and nbytes[k]]
    may.sort(key=lambda k: -nbytes[k] / (units.units[k].time or 1))
    # Many small ones are tried together, so that long chains take seconds.
    may = [k for k in may if nbytes[k] * _LEAST > most]
    together = -(-len(may) // _ATTEMPTS)
    for start in range(0, len(may), together or 1):
        restore = dropped.drop(may[start : start + together])
        now = dropped.live()
        # Where most is needed elsewhere, what waits at other times tells.
        if now.max() <= most and int(now.sum()) / len(now) < int(live.sum()) / len(live):
            live, most = now, int(now.max())
            found.append(dropped.way(most))
        else:
            restore()
    return found


class UnitWay(NamedTuple):
    """A step that runs units again: its bytes, the time of all forwards, and its order."""

    nbytes: int
    time: float
    ops: Callable[[], list[UnitOp]]


class Plans:
    """Steps that run units again, by their bytes; ``others`` are candidates too."""

    def __init__(self, units: Units, *others: list[UnitOp]) -> None:
        self.units = units
        self._others = others

    @cached_property
    def ways(self) -> list[UnitWay]:
        """Steps of decreasing bytes and increasing time.

        by stages, or by units one after the other.

        For few units every set is tried.
        """
        units = self.units
        kept = dropped_alone(units, forced(units))
        found = [self._way(ops) for ops in (kept, *self._others)]
        found += units.lowerings
        if any(unit.dear for unit in units.units):
            found += lowerings(units, dear=True)
        may = [k for k, unit in enumerate(units.units) if unit.again and unit.makes]
        if len(may) <= _CHOICES:
            must = forced(units)
            for number in range(1 << len(may)):
                some = must.union(k for bit, k in enumerate(may) if number >> bit & 1)
                found.append(self._way(dropped_alone(units, some)))
        goal, least = found[0].nbytes, self.least()
        while goal > least:
            found.append(self._way(self.within(goal)))
            goal = int(goal * _NEXT)
        found.append(self._way(self.within(least)))
        best: list[UnitWay] = []
        for way in sorted(found, key=lambda way: (way.time, way.nbytes)):
            if not best or way.nbytes < best[-1].nbytes:
                best.append(way)
        return best

    def _way(self, ops: list[UnitOp]) -> UnitWay:
        return UnitWay(self.units.peak(ops), self.units.time(ops), lambda: ops)

    def quickest(self, goal: int) -> UnitWay:
        """The way of least time within ``goal`` bytes, or the way of fewest bytes."""
        return next((way for way in self.ways if way.nbytes <= goal), self.ways[-1])

    @cached_property
    def chains(self) -> list[_Chain]:
        """The units as chains, of short stages and of longer ones."""
        return [_Chain(self.units, cuts) for cuts in _coarser(_cuts(self.units))]

    def least(self) -> int:
        """The fewest bytes of any plan."""
        return min(chain.least() for chain in self.chains)

    def within(self, budget: int) -> list[UnitOp]:
        """The plan of least time within ``budget`` bytes, which are at least `least`."""
        return min(self.chains, key=lambda chain: chain.time(budget)).within(budget)

    def segments(self) -> list[UnitOp]:
        """The square root of as many segments as there are stages; all but the last run again."""
        return _Chain(self.units, _cuts(self.units)).segments()


class _Chain:
    """The stages between ``cuts``, and their schedules."""

    def __init__(self, units: Units, cuts: list[int]) -> None:
        self.units = units
        self.cuts = cuts
        alike = [_signature(units, first, last) for first, last in pairwise(self.cuts)]
        bits = min(_CHOICES, max(_MANY_CHOICES // len(set(alike)), 2).bit_length() - 1)
        known: dict[object, ChainStage] = {}
        for like, (first, last) in zip(alike, pairwise(self.cuts), strict=True):
            if like not in known:
                known[like] = _stage(units, first, last, bits)
        self.stages = [known[like] for like in alike]
        # Pinned values and inputs are always in memory.
        self.base = units.bytes_of(value for value in units.pinned if value in units.last_reader)

    @cached_property
    def _schedules(self) -> Schedules:
        saved = sum(stage.options[0].saved for stage in self.stages)
        most = max(o.backward + o.forward for stage in self.stages for o in stage.options)
        return Schedules(self.stages, saved + most)

    def least(self) -> int:
        """The fewest bytes of any plan."""
        found = self._schedules.least()
        assert found is not None, "all stages saved is a schedule"
        return self.base + found

    def time(self, budget: int) -> float:
        """The time of all forwards of `within`, infinity if no schedule fits."""
        return self._schedules.time(budget - self.base) if budget >= self.base else float("inf")

    def within(self, budget: int) -> list[UnitOp]:
        """The plan of least time."""
        return self._ops(self._schedules.actions(budget - self.base))

    def segments(self) -> list[UnitOp]:
        count = len(self.stages)
        length = max(round(count**0.5), 1)
        starts = list(range(0, count, length))
        actions = [("sweep", k) for k in range(starts[-1])]
        for start in reversed(starts):
            inside = range(start, min(start + length, count))
            actions += [("save", k) for k in inside]
            actions += [("backward", k) for k in reversed(inside)]
        return self._ops([(kind, k, 0) for kind, k in actions])

    def _ops(self, actions: Iterable[tuple[str, int, int]]) -> list[UnitOp]:
        ops: list[UnitOp] = []
        chosen: dict[int, int] = {}
        run: set[int] = set()
        for kind, stage, option in actions:
            inside = range(self.cuts[stage], self.cuts[stage + 1])
            if kind == "backward":
                ops += self.stages[stage].options[chosen[stage]].again(inside.start)
                continue
            chosen[stage] = option
            forwards, units = self.units.forwards, self.units.units
            ops += [forwards[k] for k in inside if k not in run or units[k].again]
            run.update(inside)
        return ops


def series(units: Units, crossing: Sequence[int]) -> list[int]:
    """The first units of stages that at most one value enters; each but the last has a product.

    ``crossing`` is the number of values that pass each unit.
    """
    cuts, dear = [0], False
    for k in range(1, len(units)):
        dear |= units.units[k - 1].dear
        if dear and crossing[k] <= 1:
            cuts.append(k)
            dear = False
    return cuts


def _cuts(units: Units) -> list[int]:
    """The first units of the stages, and the end of the last one.

    Series-parallel nets are cut at points that a single value passes. Long stages between them are
    divided at the points of the fewest bytes; short runs of little time join the next stage.
    """
    crossing = [values for values, _ in units.crossing]
    whole = series(units, crossing)
    if len(whole) == 1:
        # No product: all cuts are used.
        whole += [k for k in range(1, len(units)) if crossing[k] <= 1]
    made = [0]
    for first, last in pairwise([*whole, len(units)]):
        made += _divided(units, first, last)
    while len(made) - 1 > _MANY_STAGES:
        made = [*made[:-1:2], made[-1]]
    return made


def _coarser(cuts: list[int]) -> Iterator[list[int]]:
    """``cuts``, and longer stages of several of these.

    In longer stages the values between the joined ones may be dropped.
    """
    for together in (1, 2, 4, 8):
        yield [*cuts[:-1:together], cuts[-1]]
        if len(cuts) <= 2 * together:
            return


def _divided(units: Units, first: int, last: int) -> list[int]:
    """The ends of the stages that the units from ``first`` to ``last`` make."""
    if last - first <= _MANY_UNITS:
        return [last]
    quarter = (last - first) // 4
    middle = min(
        range(first + quarter, last - quarter + 1),
        key=lambda k: (units.crossing[k][1], abs(2 * k - first - last)),
    )
    return [*_divided(units, first, middle), *_divided(units, middle, last)]


def _signature(units: Units, first: int, last: int) -> object:
    """A key that is equal for equal stages."""
    numbers: dict[int, int] = {}

    def renumbered(values: Iterable[int]) -> tuple[tuple[int, int, bool, bool, bool], ...]:
        # Numbered in the order of tokens, so that identical stages match.
        return tuple(
            (
                numbers.setdefault(value, len(numbers)),
                units.sizes[value],
                value in units.pinned,
                units.maker.get(value, -1) >= first,
                units.last_reader.get(value, -1) >= last,
            )
            for value in sorted(values)
        )

    return tuple(
        (
            unit.time, unit.again, unit.forced, unit.dear, unit.forward_bytes, unit.backward_bytes,
            renumbered(unit.reads), renumbered(unit.makes), renumbered(unit.wants),
        )
        for unit in units.units[first:last]
    )  # fmt: skip


class _Again:
    """The backwards and repeated forwards of a stage, counted from the stage's first unit."""

    def __init__(self, ops: Sequence[UnitOp], first: int) -> None:
        self._ops = [(op.kind, op.unit - first) for op in ops]

    def __call__(self, first: int) -> Iterator[UnitOp]:
        return (UnitOp(kind, first + unit) for kind, unit in self._ops)


def _stage(units: Units, first: int, last: int, bits: int) -> ChainStage:
    """The units from ``first`` up to ``last`` as one stage, with the ways to save it."""
    inside = range(first, last)
    out, (_, passing) = units.handed_on(inside), units.crossing[last]
    options = []
    for dropped in _choices(units, inside, out, bits):
        ops = units.dropping(dropped, inside, out)
        options.append(_option(units, inside, out, ops, passing - units.bytes_of(out)))
    sweep = max(units.live(units.forwards[inside.start : inside.stop], (), out), default=0)
    time = sum(units.units[k].time for k in inside)
    return ChainStage(time, passing, sweep, _undominated(options))


def _choices(
    units: Units, inside: range, out: Collection[int], bits: int
) -> Iterator[frozenset[int]]:
    """Sets of units whose values are not saved, first the forced ones.

    Every set of the ``bits`` kinds of units (equal time and bytes) with the most bytes; of the
    other kinds the quick ones are always included.
    """
    must = frozenset(k for k in inside if units.units[k].forced)
    kinds: dict[tuple[float, int], list[int]] = {}
    for k in inside:
        nbytes = units.bytes_of(units.units[k].makes - units.pinned - frozenset(out))
        if nbytes and units.units[k].again and k not in must:
            kinds.setdefault((units.units[k].time, nbytes), []).append(k)
    most = sorted(kinds.values(), key=lambda alike: -units.bytes_of(
        value for k in alike for value in units.units[k].makes
    ))  # fmt: skip
    free, others = most[:bits], most[bits:]
    yield must
    base = must.union(k for alike in others for k in alike if not units.units[k].dear)
    for number in range(1 << len(free)):
        chosen = (alike for bit, alike in enumerate(free) if number >> bit & 1)
        yield base.union(k for alike in chosen for k in alike)
    yield must.union(k for alike in most for k in alike)


def _option(
    units: Units, inside: range, out: frozenset[int], ops: Sequence[UnitOp], passing: int
) -> Option:
    """The cost of saving a stage with the backward ``ops``; ``passing`` bytes pass it by."""
    made = {value for k in inside for value in units.units[k].makes} - units.pinned
    saved, remade = set(out), set(units.pinned)
    for op in ops:
        unit = units.units[op.unit]
        needs = unit.reads if op.kind == "forward" else unit.wants
        saved |= (needs & made) - remade
        if op.kind == "forward":
            remade |= unit.makes
    return Option(
        units.bytes_of(saved) + passing,
        max(units.live(units.forwards[inside.start : inside.stop], (), saved), default=0) + passing,
        max(units.live(ops, saved)),
        units.time(ops),
        _Again(ops, inside.start),
    )


def _undominated(options: Sequence[Option]) -> tuple[Option, ...]:
    """The first option, which saves all, and the options that no other beats in every respect."""
    first, *rest = options
    found: list[Option] = []
    for option in sorted(rest, key=lambda o: (o.cost, o.saved, o.backward, o.forward)):
        if not any(
            o.saved <= option.saved
            and o.backward <= option.backward
            and o.forward <= option.forward
            for o in (first, *found)
            if o.cost <= option.cost
        ):
            found.append(option)
    return (first, *found)


def again_before(ops: Sequence[UnitOp]) -> Mapping[int, list[int]]:
    """By the unit that goes backward next, the units that run again before it, in their order."""
    run: set[int] = set()
    waiting: list[int] = []
    found: dict[int, list[int]] = {}
    for op in ops:
        if op.kind == "backward":
            if waiting:
                found[op.unit], waiting = waiting, []
        elif op.unit in run:
            waiting.append(op.unit)
        else:
            run.add(op.unit)
    return found
