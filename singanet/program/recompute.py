"""Recomputation in a program.

In a caller's own loop parameters may change in place between forward and backward. Kernels of the
backward see the changes, as by the layers; forward kernels that run again for it must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np

from singanet.engine.recompute.by_layers import (
    WHYS,
    Decision,
    Level,
    by_blocks,
    decisions,
    order_at,
)
from singanet.engine.recompute.units import Plans, Unit, UnitOp, Units, UnitWay, again_before
from singanet.errors import ArgumentError, brief
from singanet.params.storage import SMALL
from singanet.program.cost import NEVER, bytes_of, passes_of
from singanet.program.ir import Buffer, Call, Kernel, Ref, Token, refs_of
from singanet.program.join_lanes import placed
from singanet.program.layout import Layout, rounded_sizes, shared_memory
from singanet.types import Array

__all__: list[str] = []


def with_kept_parameters(
    calls: Sequence[Call], tokens: list[Token], outside: dict[Ref, Array]
) -> list[Call]:
    """``calls`` whose forward kernels read copies of arrays outside, or run once.

    The copies are added to ``tokens`` and made after the first mark.
    """
    written = {token for call in calls if call.function for token in call.writes}
    copies: dict[Ref, Ref] = {}

    def kept(call: Call) -> Call:
        if call.phase != "forward" or call.function is None:
            return call
        changing = {
            token
            for token in call.reads
            if tokens[token].held is not None
            and not tokens[token].constant
            and token not in written
        }
        if not changing:
            return call
        refs = [ref for ref in refs_of(call) if ref.token in changing]
        # What is stored lies nowhere yet.
        large = any(_nbytes(ref) > SMALL or ref not in outside for ref in refs)
        if large or {ref.token for ref in refs} != changing:
            return replace(call, once=True)
        for ref in refs:
            if ref not in copies:
                like = np.empty_like(outside[ref])
                copies[ref] = ref._replace(token=len(tokens), offset=0, strides=like.strides)
                tokens.append(Token(like.nbytes))
        led = placed(call, lambda ref: copies.get(ref, ref), {})
        reads = [token for token in call.reads if token not in changing]
        reads += [copies[ref].token for ref in refs]
        return replace(led, reads=tuple(dict.fromkeys(reads)))

    made = [kept(call) for call in calls]
    start = next(at for at, call in enumerate(made) if call.function is None) + 1
    return [*made[:start], *(_copy(ref, copy) for ref, copy in copies.items()), *made[start:]]


def _copy(ref: Ref, copy: Ref) -> Call:
    return Call(
        np.copyto, (copy, ref), {}, (ref.token,), (copy.token,), name="copy", phase="forward",
        once=True,
    )  # fmt: skip


def _nbytes(ref: Ref) -> int:
    return int(np.prod(ref.shape, dtype=np.int64)) * ref.dtype.itemsize


_SMALL = 16
"""Values smaller than a layer's largest by this factor are saved, such as statistics."""


class RecordedUnits(NamedTuple):
    """Units, the ``kernels`` of each, and the kernel at which its backward ``begins``.

    Small values are not in the units: they are saved. The kernels in ``once`` must not run twice.
    """

    units: Units
    kernels: list[list[int]]
    begins: list[int]
    once: frozenset[int]

    def keeping(self, kernel: int) -> RecordedUnits:
        """The same, but the unit of ``kernel``, if any, does not run again."""
        units = [
            unit._replace(again=False) if kernel in own else unit
            for unit, own in zip(self.units.units, self.kernels, strict=True)
        ]
        return self._replace(units=Units(units, self.units.sizes))


def traced_units(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    passes: Sequence[int],
    touched: Sequence[int],
    wishes: Mapping[str, bool | None],
) -> list[RecordedUnits]:
    """``kernels`` by layers; ``wishes`` are the layers' settings of recompute.

    ``passes`` has for each kernel the number of passes over its operands, ``touched`` the bytes of
    these. A step that takes the norm of all gradients first runs forward and backward twice, and
    gives two results.
    """
    changes = [
        k
        for k, (one, two) in enumerate(pairwise(kernels), 1)
        if two.phase == "forward" and one.phase != "forward"
    ]
    made = []
    for first, last in pairwise([0, *changes, len(kernels)]):
        builder = _Builder(kernels, buffers, passes, touched, wishes, first, last)
        if builder.turn < last:
            made.append(builder.made())
    return made


class _Builder:
    """The builder of units from the kernels ``first`` up to ``last``."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        buffers: Sequence[Buffer],
        passes: Sequence[int],
        touched: Sequence[int],
        wishes: Mapping[str, bool | None],
        first: int,
        last: int,
    ) -> None:
        self.kernels, self.buffers = kernels, buffers
        self.passes, self.touched, self.wishes = passes, touched, wishes
        self.sizes: list[int] = rounded_sizes(buffers).tolist()
        self.first, self.last = first, last
        phases = (k for k in range(first, last) if kernels[k].phase != "forward")
        self.turn = next(phases, last)
        number: dict[str, int] = {}
        # The unit of each kernel; kernels of the loss are in the last one.
        self.unit_of = {
            k: number.setdefault(kernels[k].layer, len(number)) for k in range(first, self.turn)
        }
        self.names = list(number)
        now = len(number) - 1
        for k in range(self.turn, last):
            if kernels[k].phase == "backward":
                now = min(number.get(kernels[k].layer, now), now)
            self.unit_of[k] = now

    def made(self) -> RecordedUnits:
        """The units."""
        kernels, unit_of, turn = self.kernels, self.unit_of, self.turn
        forwards, inside = range(self.first, turn), range(self.first, self.last)
        repeatable = {
            at: not kernels[at].barrier
            and bool(kernels[at].writes)
            and self.passes[at] < NEVER
            and all(self.buffers[buffer].planned for buffer in kernels[at].writes)
            for at in forwards
        }
        users: dict[int, set[tuple[int, bool]]] = {}
        seen: tuple[set[int], set[int]] = set(), set()
        for at in inside:
            used = {*kernels[at].reads, *kernels[at].writes}
            for buffer in used:
                users.setdefault(buffer, set()).add((unit_of[at], at >= turn))
            if kernels[at].barrier:
                seen[at >= turn].update(used)
        forward: set[int] = set()
        # A layer's own Python may refer to its arrays for the backward, at their places.
        once: set[int] = seen[0] & seen[1]
        for at in forwards:
            forward.update(kernels[at].writes)
            if not repeatable[at]:
                once.update(kernels[at].writes)
        # The values that other units or the backward need; the rest is scratch.
        values = {b for b in forward if self.buffers[b].planned and len(users[b]) > 1}
        count = range(len(self.names))
        reads: list[set[int]] = [set() for _ in count]
        makes: list[set[int]] = [set() for _ in count]
        wants: list[set[int]] = [set() for _ in count]
        own: list[list[int]] = [[] for _ in count]
        for at in inside:
            unit, kernel = unit_of[at], kernels[at]
            if at >= turn:
                wants[unit] |= values.intersection((*kernel.reads, *kernel.writes))
                continue
            own[unit].append(at)
            makes[unit] |= values.intersection(kernel.writes)
            reads[unit] |= values.intersection(kernel.reads)
        scratch, gradients = self._beside(values)
        units, runs = [], []
        for unit, name in enumerate(self.names):
            largest = max((self.sizes[b] for b in makes[unit]), default=0)
            stay = {b for b in makes[unit] if _SMALL * self.sizes[b] <= largest}
            again = self._needed(own[unit], values, stay, repeatable)
            runs.append(again)
            wish = self.wishes.get(name)
            units.append(
                Unit(
                    name,
                    float(sum(self.passes[at] * self.touched[at] for at in again)),
                    frozenset(reads[unit] - makes[unit]),
                    frozenset(makes[unit]),
                    frozenset(wants[unit]),
                    frozenset(makes[unit] & (once | stay)),
                    again=wish is not False and bool(again),
                    forced=wish is True,
                    dear=any(self.passes[at] > 1 for at in again),
                    forward_bytes=scratch[unit],
                    backward_bytes=gradients[unit],
                )
            )
        once_only = frozenset(at for at in forwards if not repeatable[at])
        return RecordedUnits(Units(units, self.sizes), runs, self._begins(), once_only)

    def _begins(self) -> list[int]:
        """The first kernel of each unit's backward; without one, the next unit's."""
        first: dict[int, int] = {}
        for at in range(self.turn, self.last):
            first.setdefault(self.unit_of[at], at)
        made, following = [], self.last
        for unit in range(len(self.names)):
            following = first.get(unit, following)
            made.append(following)
        return made

    def _needed(
        self, own: Sequence[int], values: set[int], stay: set[int], repeatable: Mapping[int, bool]
    ) -> list[int]:
        """The kernels among a unit's ``own`` that compute ``values`` other than ``stay``.

        Other effects, such as updating running statistics, happen once.
        """
        needed = {b for at in own for b in self.kernels[at].writes if b in values} - stay
        found = []
        for at in reversed(own):
            if repeatable[at] and not needed.isdisjoint(self.kernels[at].writes):
                found.append(at)
                needed.update(b for b in self.kernels[at].reads if b not in stay)
        return found[::-1]

    def _beside(self, values: set[int]) -> tuple[list[int], list[int]]:
        """The peaks of each unit's bytes without values: forward, and backward."""
        lives = shared_memory(self.kernels, self.buffers).lives
        lives.size[list(values)] = 0
        live = lives.live(len(self.kernels) + 2, -1)[1:-1]
        most = [[0] * len(self.names), [0] * len(self.names)]
        for at in range(self.first, self.last):
            nbytes = int(live[at])
            way = most[at >= self.turn]
            way[self.unit_of[at]] = max(way[self.unit_of[at]], nbytes)
        return most[0], most[1]


_DEEPEST = 500
"""The maximum depth of calls that run again for each other."""


class CannotRepeatError(Exception):
    """A kernel to be run again needs a lost buffer, whose kernel must not run twice."""

    def __init__(self, kernel: int) -> None:
        super().__init__(kernel)
        self.kernel = kernel


class Dataflow:
    """What each of ``calls`` reads, and which call has written it last."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.reads: list[tuple[int, ...]] = []
        # By token, -1 for memory from outside.
        self.writers: list[dict[int, int]] = []
        written: dict[int, int] = {}
        for at, call in enumerate(calls):
            reads = (*call.reads, *(token for token in call.partly if token in written))
            self.reads.append(tuple(dict.fromkeys(reads)))
            self.writers.append({token: written.get(token, -1) for token in self.reads[-1]})
            written.update(dict.fromkeys(call.writes, at))


def with_runs(
    flow: Dataflow,
    runs: Sequence[tuple[RecordedUnits, Mapping[int, Sequence[int]]]],
    tokens: list[Token],
) -> list[Call]:
    """The calls of ``flow``, with further runs of units before the backward of a unit.

    ``runs`` have units by their numbers. Results are added to ``tokens``. Raises
    `CannotRepeatError`.
    """
    before: dict[int, list[int]] = {}
    once: frozenset[int] = frozenset()
    for traced, again in runs:
        once |= traced.once
        for unit in sorted(again, reverse=True):
            kernels = [at for other in again[unit] for at in traced.kernels[other]]
            before.setdefault(traced.begins[unit], []).extend(kernels)
    writer = _Writer(flow, once, tokens)
    for at in range(len(flow.calls)):
        for other in before.get(at, ()):
            try:
                writer.run(other)
            except _LostValueError as error:
                raise CannotRepeatError(other) from error
        writer.go_on(at)
    return without_unread(writer.made)


class _LostValueError(Exception):
    """A value that a call reads is lost."""


class _Writer:
    """Writes calls, and tracks the copies of each token: which kernel's result each one has."""

    def __init__(self, flow: Dataflow, once: frozenset[int], tokens: list[Token]) -> None:
        self.calls, self.once, self.tokens = flow.calls, once, tokens
        self.made: list[Call] = []
        self._reads, self._found = flow.reads, flow.writers
        # Newest first: (token, kernel whose result it has).
        self._copies: dict[int, list[tuple[int, int]]] = {}

    def go_on(self, at: int) -> None:
        """Write the next call, which reads the newest copy of each value."""
        call = self.calls[at]
        led = {token: self._where(token, at) for token in self._reads[at] if token in self._copies}
        for token in call.writes:
            where = led.get(token, token)
            self._note(token, where, at)
        led = {token: where for token, where in led.items() if where != token}
        self.made.append(_led(call, led) if led else call)

    def run(self, at: int, depth: int = 0) -> None:
        """Run kernel ``at`` again, after the kernels of its lost inputs."""
        if at < 0 or at in self.once or depth > _DEEPEST:
            raise _LostValueError
        call = self.calls[at]
        led: dict[int, int] = {}
        for token in self._reads[at]:
            if not self._is_there(token, at) or (
                token in call.writes and self._where(token, at) == token
            ):
                self.run(self._found[at][token], depth + 1)
        for token in self._reads[at]:
            led[token] = self._where(token, at)
        for token in call.writes:
            if token not in led:
                led[token] = len(self.tokens)
                self.tokens.append(Token(self.tokens[token].nbytes))
            self._note(token, led[token], at)
        made = _led(call, {token: where for token, where in led.items() if token != where})
        self.made.append(replace(made, phase="recompute"))

    def _is_there(self, token: int, at: int) -> bool:
        """Whether the value that kernel ``at`` has read from ``token`` still exists."""
        copies = self._copies.get(token)
        wanted = self._found[at][token]
        return wanted == -1 if copies is None else any(held == wanted for _, held in copies)

    def _where(self, token: int, at: int) -> int:
        wanted = self._found[at][token]
        for where, held in self._copies.get(token, ()):
            if held == wanted:
                return where
        if wanted == -1:
            return token
        raise _LostValueError

    def _note(self, token: int, where: int, at: int) -> None:
        """Note that ``where`` has the result of kernel ``at`` now."""
        others = [copy for copy in self._copies.get(token, ()) if copy[0] != where]
        self._copies[token] = [(where, at), *others]


def without_unread(calls: Sequence[Call]) -> list[Call]:
    """``calls`` without recomputations whose results are not read."""
    read: set[int] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        if call.phase == "recompute" and read.isdisjoint(call.writes):
            continue
        # Earlier contents of a wholly overwritten token are not needed.
        if call.phase == "recompute":
            read.difference_update(set(call.writes) - set(call.partly) - set(call.reads))
        read.update(call.reads, call.partly)
        kept.append(call)
    return kept[::-1]


def _led(call: Call, led: Mapping[int, int]) -> Call:
    """``call`` on other tokens."""
    return placed(
        call, lambda ref: ref._replace(token=led[ref.token]) if ref.token in led else ref, led
    )


Recompute = Level

_TRIES = 8
"""Plans tried for a number of bytes: an arena differs a little from the model of its units."""

_APART = 0.985
"""The maximum ratio of the bytes of consecutive targets."""


def checked_recompute(where: str, value: object) -> Recompute:
    """``value``, if it is a level. Errors: any other value."""
    if isinstance(value, str) and value in WHYS:
        return cast("Recompute", str(value))
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ArgumentError(
        f"{where}, recompute",
        expected=f"{', '.join(map(repr, WHYS))}, or the bytes that the arena may take",
        received=brief(value),
        advice="start with recompute='cheap'; program.report() shows the savings",
    )


class Planned(Protocol):
    """Calls with their memory planned."""

    @property
    def calls(self) -> list[Call]:
        """The calls in order."""

    @property
    def kernels(self) -> list[Kernel]:
        """The calls as kernels for planners."""

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of the kernels."""

    @property
    def layout(self) -> Layout:
        """The layout of the buffers."""


_P = TypeVar("_P", bound=Planned)


def recomputed(
    kept: _P, choice: Choice, level: Recompute, lay_out: Callable[[list[Call]], _P]
) -> tuple[_P, tuple[Decision, ...]]:
    """``kept``, or calls that run again by ``choice``, laid out by ``lay_out``; and the decisions.

    Errors: bytes that are too few for the arena.
    """
    asked = choice.asked
    if not asked and kept.layout.nbytes <= _bytes(level):
        return kept, ()
    best: _P | None = None
    decided: tuple[Decision, ...] = ()
    reached: list[int] = []
    for plan, why in choice.plans(level, reached):
        calls, orders = choice.calls(plan)
        made = kept if calls is kept.calls else lay_out(calls)
        reached.append(made.layout.nbytes)
        if best is None or made.layout.nbytes < best.layout.nbytes:
            best, decided = made, choice.decisions(orders, why)
        if made.layout.nbytes <= _bytes(level):
            break
    if best is None or not (asked or worth(best, kept)):
        best, decided = kept, ()
    if isinstance(level, int) and best.layout.nbytes > level:
        raise CannotKeepError(level, best.layout.nbytes)
    return best, decided


def worth(made: Planned, kept: Planned) -> bool:
    """Whether recomputation needs fewer bytes."""
    return made.layout.nbytes < kept.layout.nbytes


def _bytes(level: Recompute) -> int:
    return level if isinstance(level, int) else -1


_Plan = Callable[[Plans], list[UnitOp]]
_Recorded = list[tuple[RecordedUnits, Plans]]


class MemoryTarget(NamedTuple):
    """An estimate for a step within a number of bytes of the arena, before layout.

    ``again`` is the ratio of further calls to all calls.
    """

    nbytes: int
    again: float


class Choice:
    """The calls of ``kept`` that can run again, in one walk or, for a norm, in two.

    ``wishes`` are the settings of layers, by name, to be recomputed or not.
    """

    def __init__(
        self, kept: Planned, tokens: list[Token], wishes: Mapping[str, bool | None]
    ) -> None:
        self._kept, self._tokens, self._wishes = kept, tokens, wishes

    @property
    def asked(self) -> bool:
        """Whether a layer has recompute=True."""
        return True in self._wishes.values()

    @cached_property
    def _first(self) -> _Recorded:
        kept, tokens = self._kept, self._tokens
        passes = [passes_of(call) for call in kept.calls]
        touched = [bytes_of(call, tokens) for call in kept.calls]
        traced = traced_units(kept.kernels, kept.buffers, passes, touched, self._wishes)
        return [(each, _plans(each)) for each in traced]

    @cached_property
    def _recorded(self) -> _Recorded:
        """The repeatable units, as found for the last level."""
        return self._first

    @cached_property
    def _flow(self) -> Dataflow:
        return Dataflow(self._kept.calls)

    @cached_property
    def _beside(self) -> int:
        """The bytes by which the arena exceeds the estimate by units."""
        told = (traced.units.peak(traced.units.kept()) for traced, _ in self._first)
        return self._kept.layout.nbytes - max(told, default=0)

    @cached_property
    def targets(self) -> list[MemoryTarget]:
        """Possible bytes of the arena, the most first."""
        found: list[MemoryTarget] = []
        count = sum(call.parts for call in self._kept.calls)
        for goal in sorted({way.nbytes for _, plans in self._first for way in plans.ways})[::-1]:
            ways = [(traced, plans.quickest(goal)) for traced, plans in self._first]
            nbytes = max(way.nbytes for _, way in ways) + self._beside
            if not found or nbytes < _APART * found[-1].nbytes:
                again = sum(self._calls_again(traced, way) for traced, way in ways)
                found.append(MemoryTarget(nbytes, again / count))
        return found

    def most_freed(self, of_call: int) -> int:
        """The most live bytes that further runs free, if each call takes ``of_call`` bytes.

        A unit that runs again frees at most what it makes, by at least one call.
        """
        return sum(
            max(0, traced.units.bytes_of(unit.makes - traced.units.pinned) - of_call)
            for traced, _ in self._first
            for unit in traced.units.units
            if unit.again
        )

    def _calls_again(self, traced: RecordedUnits, way: UnitWay) -> int:
        runs = again_before(way.ops()).values()
        kernels = (at for units in runs for unit in units for at in traced.kernels[unit])
        return sum(self._kept.calls[at].parts for at in kernels)

    def plans(self, level: Recompute, reached: Sequence[int]) -> Iterator[tuple[_Plan, str]]:
        """Plans for ``level``, and why; ``reached`` are the bytes of the earlier plans."""
        # Units that could not repeat at another level may repeat at this one.
        self._recorded = self._first
        if not self._recorded:
            return
        if isinstance(level, int):
            yield from self._within(level, reached)
        else:
            yield partial(order_at, level), WHYS[level]

    def _within(self, budget: int, reached: Sequence[int]) -> Iterator[tuple[_Plan, str]]:
        goal, least = budget - self._beside, max(plans.ways[-1].nbytes for _, plans in self._first)
        for _ in range(_TRIES):
            if goal <= least:
                break
            yield partial(order_at, goal), "least time within the bytes"
            goal -= max(reached[-1] - budget, goal // 200)
        yield partial(order_at, least), "least time within the bytes"

    def calls(self, plan: _Plan) -> tuple[list[Call], list[list[UnitOp]]]:
        """The calls by ``plan``, and the orders of units; ones that cannot repeat are saved.

        If no unit runs again, they are the calls of ``kept`` themselves.
        """
        while True:
            orders = [plan(plans) for _, plans in self._recorded]
            pairs = zip(self._recorded, orders, strict=True)
            runs = [(traced, again_before(order)) for (traced, _), order in pairs]
            if not any(again for _, again in runs):
                return self._kept.calls, orders
            try:
                return with_runs(self._flow, runs, self._tokens), orders
            except CannotRepeatError as error:
                kept = [traced.keeping(error.kernel) for traced, _ in self._recorded]
                self._recorded = [(traced, _plans(traced)) for traced in kept]

    def decisions(self, orders: Sequence[list[UnitOp]], why: str) -> tuple[Decision, ...]:
        """The decision of the ``orders`` of units on each layer."""
        found = []
        for (traced, _), order in zip(self._recorded, orders, strict=True):
            found += decisions(traced.units, order, why)
        return tuple(found)


def _plans(traced: RecordedUnits) -> Plans:
    return Plans(traced.units, by_blocks(traced.units))


class CannotKeepError(ArgumentError):
    """An arena takes ``least`` bytes, however much is recomputed."""

    def __init__(self, budget: int, least: int) -> None:
        super().__init__(
            "recompute",
            expected=f"enough bytes for the arena; the least found is {least:,}",
            received=f"{budget:,}",
            advice="allow more bytes, or use a smaller batch",
        )
