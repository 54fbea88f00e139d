"""Recomputation in a program.

Between the passes of a caller's own loop parameters may change in place. Kernels of the way back
see that, as they do by the layers; those of the forward pass that run again for it must not.
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
    """``calls`` whose forward kernels read copies of what lies outside, or run once.

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
        if {ref.token for ref in refs} != changing or any(_nbytes(ref) > SMALL for ref in refs):
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
"""Values smaller than a layer's largest by this factor stay: statistics, for example."""


class RecordedUnits(NamedTuple):
    """Units, the ``kernels`` of each, and the kernel with which its backward ``begins``.

    Units with small values are left out: these stay. The kernels in ``once`` must not run twice.
    """

    units: Units
    kernels: list[list[int]]
    begins: list[int]
    once: frozenset[int]

    def keeping(self, kernel: int) -> RecordedUnits:
        """The same, but the unit of ``kernel``, if there is one, does not run again."""
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
    """``kernels`` by layers, whose ``wishes`` are to be recomputed, or not, or either.

    ``passes`` tells for each kernel how often it goes over its operands, ``touched`` the bytes of
    these. A step that takes the norm of all gradients first goes forward and backward twice: one
    of these for each.
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
        # Which unit a kernel belongs to; those of the loss go with the last one.
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
        # A layer's own Python may keep what it has seen for its way back, where it lay.
        once: set[int] = seen[0] & seen[1]
        for at in forwards:
            forward.update(kernels[at].writes)
            if not repeatable[at]:
                once.update(kernels[at].writes)
        # What other units, or the way back, need; all else is scratch.
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
        """Before which kernel each unit goes backward; one that does not: the next that does."""
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
        """The kernels among ``own``, those of a unit, that make ``values`` but what may ``stay``.

        What else they do, such as moving running statistics, happens once.
        """
        needed = {b for at in own for b in self.kernels[at].writes if b in values} - stay
        found = []
        for at in reversed(own):
            if repeatable[at] and not needed.isdisjoint(self.kernels[at].writes):
                found.append(at)
                needed.update(b for b in self.kernels[at].reads if b not in stay)
        return found[::-1]

    def _beside(self, values: set[int]) -> tuple[list[int], list[int]]:
        """For each unit the most bytes at a time that are no values: forward, and backward."""
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
"""Calls that one may need to run again beside it, one for the other."""


class CannotRepeatError(Exception):
    """A kernel to be run again needs a lost buffer, whose kernel must not run twice."""

    def __init__(self, kernel: int) -> None:
        super().__init__(kernel)
        self.kernel = kernel


def with_runs(
    calls: Sequence[Call],
    runs: Sequence[tuple[RecordedUnits, Mapping[int, Sequence[int]]]],
    tokens: list[Token],
) -> list[Call]:
    """``calls`` where before the backward of a unit others run once more, by their numbers.

    What they write then is added to ``tokens``. Raises `CannotRepeatError`.
    """
    before: dict[int, list[int]] = {}
    once: frozenset[int] = frozenset()
    for traced, again in runs:
        once |= traced.once
        for unit in sorted(again, reverse=True):
            kernels = [at for other in again[unit] for at in traced.kernels[other]]
            before.setdefault(traced.begins[unit], []).extend(kernels)
    writer = _Writer(calls, once, tokens)
    for at in range(len(calls)):
        for other in before.get(at, ()):
            try:
                writer.run(other)
            except _GoneError as error:
                raise CannotRepeatError(other) from error
        writer.go_on(at)
    return without_unread(writer.made)


class _GoneError(Exception):
    """The value that a call has read is lost."""


class _Writer:
    """Writes calls down, and knows what lies where: by token, whose work each copy holds."""

    def __init__(self, calls: Sequence[Call], once: frozenset[int], tokens: list[Token]) -> None:
        self.calls, self.once, self.tokens = calls, once, tokens
        self.made: list[Call] = []
        self._reads: list[tuple[int, ...]] = []
        # The kernel that has written to a token last, for each that reads it.
        self._found: list[dict[int, int]] = []
        written: dict[int, int] = {}
        for at, call in enumerate(calls):
            reads = (*call.reads, *(token for token in call.partly if token in written))
            self._reads.append(tuple(dict.fromkeys(reads)))
            self._found.append({token: written.get(token, -1) for token in self._reads[-1]})
            written.update(dict.fromkeys(call.writes, at))
        # Newest first: (where, whose work it holds).
        self._copies: dict[int, list[tuple[int, int]]] = {}

    def go_on(self, at: int) -> None:
        """The next of the calls, which reads the newest of what is the same."""
        call = self.calls[at]
        led = {token: self._where(token, at) for token in self._reads[at] if token in self._copies}
        for token in call.writes:
            where = led.get(token, token)
            self._note(token, where, at)
        led = {token: where for token, where in led.items() if where != token}
        self.made.append(_led(call, led) if led else call)

    def run(self, at: int, depth: int = 0) -> None:
        """Kernel ``at`` once more, after the kernels that make its lost inputs anew."""
        if at < 0 or at in self.once or depth > _DEEPEST:
            raise _GoneError
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
        """Whether what kernel ``at`` has read from ``token`` is still somewhere."""
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
        raise _GoneError

    def _note(self, token: int, where: int, at: int) -> None:
        """``where`` holds the work of kernel ``at`` now."""
        others = [copy for copy in self._copies.get(token, ()) if copy[0] != where]
        self._copies[token] = [(where, at), *others]


def without_unread(calls: Sequence[Call]) -> list[Call]:
    """``calls`` without recomputations whose results are not read."""
    read: set[int] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        if call.phase == "recompute" and read.isdisjoint(call.writes):
            continue
        # What is overwritten whole is not needed from before.
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
"""Plans tried for a number of bytes: an arena takes a little other than the model of its units."""

_APART = 0.985
"""What the bytes of a target are of those of the one before, at most."""


def checked_recompute(where: str, value: object) -> Recompute:
    """``value``, if it is a level. Errors: anything else."""
    if isinstance(value, str) and value in WHYS:
        return cast("Recompute", str(value))
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ArgumentError(
        f"{where}, recompute",
        expected=f"{', '.join(map(repr, WHYS))}, or the bytes that the arena may take",
        received=brief(value),
        advice="start with recompute='cheap'; program.report() tells what it saves",
    )


class Planned(Protocol):
    """Calls with their memory planned."""

    @property
    def calls(self) -> list[Call]:
        """In their order."""

    @property
    def kernels(self) -> list[Kernel]:
        """The same, for planners."""

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers that these read and write."""

    @property
    def layout(self) -> Layout:
        """Where it lies."""


_P = TypeVar("_P", bound=Planned)


def recomputed(
    kept: _P, choice: Choice, level: Recompute, lay_out: Callable[[list[Call]], _P]
) -> tuple[_P, tuple[Decision, ...]]:
    """``kept``, or by ``choice`` calls that run again, which ``lay_out`` gives their places; why.

    Errors: bytes in which the arena cannot be kept.
    """
    asked = choice.asked
    if not asked and kept.layout.nbytes <= _bytes(level):
        return kept, ()
    best: _P | None = None
    decided: tuple[Decision, ...] = ()
    reached: list[int] = []
    for plan, why in choice.plans(level, reached):
        made = lay_out(choice.calls(plan))
        reached.append(made.layout.nbytes)
        if best is None or made.layout.nbytes < best.layout.nbytes:
            best, decided = made, choice.decisions(plan, why)
        if made.layout.nbytes <= _bytes(level):
            break
    if best is None or not (asked or worth(best, kept)):
        best, decided = kept, ()
    if isinstance(level, int) and best.layout.nbytes > level:
        raise CannotKeepError(level, best.layout.nbytes)
    return best, decided


def worth(made: Planned, kept: Planned) -> bool:
    """Whether what runs again takes fewer bytes."""
    return made.layout.nbytes < kept.layout.nbytes


def _bytes(level: Recompute) -> int:
    return level if isinstance(level, int) else -1


_Plan = Callable[[Plans], list[UnitOp]]
_Recorded = list[tuple[RecordedUnits, Plans]]


class MemoryTarget(NamedTuple):
    """What a step within a number of bytes of the arena comes to, before it is laid out.

    ``again`` calls run once more for each one that there is.
    """

    nbytes: int
    again: float


class Choice:
    """The calls of ``kept`` that can run again; it walks once or, for all gradients, twice.

    ``wishes`` are those of layers, by name, to be recomputed or not.
    """

    def __init__(
        self, kept: Planned, tokens: list[Token], wishes: Mapping[str, bool | None]
    ) -> None:
        self._kept, self._tokens, self._wishes = kept, tokens, wishes

    @property
    def asked(self) -> bool:
        """Whether a layer is to be recomputed."""
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
        """What is repeatable as far as the level that was asked for last has shown."""
        return self._first

    @cached_property
    def _beside(self) -> int:
        """Bytes by which the arena is above what units tell of it."""
        told = (traced.units.peak(traced.units.kept()) for traced, _ in self._first)
        return self._kept.layout.nbytes - max(told, default=0)

    @cached_property
    def targets(self) -> list[MemoryTarget]:
        """Bytes of the arena that can be asked for, the most first."""
        found: list[MemoryTarget] = []
        count = sum(call.parts for call in self._kept.calls)
        for goal in sorted({way.nbytes for _, plans in self._first for way in plans.ways})[::-1]:
            ways = [(traced, plans.quickest(goal)) for traced, plans in self._first]
            nbytes = max(way.nbytes for _, way in ways) + self._beside
            if not found or nbytes < _APART * found[-1].nbytes:
                again = sum(self._calls_again(traced, way) for traced, way in ways)
                found.append(MemoryTarget(nbytes, again / count))
        return found

    def _calls_again(self, traced: RecordedUnits, way: UnitWay) -> int:
        runs = again_before(way.ops).values()
        kernels = (at for units in runs for unit in units for at in traced.kernels[unit])
        return sum(self._kept.calls[at].parts for at in kernels)

    def plans(self, level: Recompute, reached: Sequence[int]) -> Iterator[tuple[_Plan, str]]:
        """Plans for ``level``, and why; ``reached`` are the bytes of those before."""
        # What another level has found not to be repeatable tells nothing of this one.
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

    def calls(self, plan: _Plan) -> list[Call]:
        """The calls by ``plan``; what turns out not to be repeatable is kept."""
        while True:
            runs = [(traced, again_before(plan(plans))) for traced, plans in self._recorded]
            try:
                return with_runs(self._kept.calls, runs, self._tokens)
            except CannotRepeatError as error:
                kept = [traced.keeping(error.kernel) for traced, _ in self._recorded]
                self._recorded = [(traced, _plans(traced)) for traced in kept]

    def decisions(self, plan: _Plan, why: str) -> tuple[Decision, ...]:
        """The decision of ``plan`` on each layer."""
        found = []
        for traced, plans in self._recorded:
            found += decisions(traced.units, plan(plans), why)
        return tuple(found)


def _plans(traced: RecordedUnits) -> Plans:
    return Plans(traced.units, by_blocks(traced.units))


class CannotKeepError(ArgumentError):
    """An arena takes ``least`` bytes, however much is made again."""

    def __init__(self, budget: int, least: int) -> None:
        super().__init__(
            "recompute",
            expected=f"bytes that the arena can be kept in; the least found is {least:,}",
            received=f"{budget:,}",
            advice="give it more, or take a smaller batch",
        )
