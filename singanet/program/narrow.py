"""Memory of a program that only kernels of oneDNN use, stored in bfloat16.

Float32 memory that several calls round is rounded once, into a copy that they all read. If programs
store bfloat16 and no other call uses the memory, it is bfloat16 from the start. Memory that NumPy,
Python or a caller reads or writes does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from singanet.base.heap import address
from singanet.base.kinds import PAGE
from singanet.program.ir import Bind, Call, Ref, Token

Place = tuple[int, int]
"""The number of a call, and of one of its operands."""


class PlannedKernel(NamedTuple):
    """The recipe of a call of oneDNN's, to make it again with operands in bfloat16.

    ``places`` are its operands, ``working`` is the token of its scratch memory.
    """

    runtime: Any
    what: tuple[Any, ...]
    plan: Any
    places: tuple[Ref, ...]
    working: int | None

    def offers(self, stored: frozenset[int]) -> bool:
        """Whether there is a kernel for these operands in bfloat16."""
        return self.runtime.plan(*self.what, stored) is not None

    def remade(self, call: Call, given: Mapping[int, Ref], tokens: list[Token]) -> Call:
        """``call`` with the operands ``given`` in bfloat16."""
        plan = self.runtime.plan(*self.what, frozenset(given))
        places = [given.get(number, place) for number, place in enumerate(self.places)]
        working = None
        if plan.scratch:
            tokens.append(Token(plan.scratch + PAGE))
            working = Ref(len(tokens) - 1, 0, (plan.scratch + PAGE,), (1,), np.dtype(np.uint8))
        stay = {place.token for place in places}
        left = {place.token for place in self.places} | {self.working}
        reads = [token for token in call.reads if token in stay or token not in left]
        writes = [token for token in call.writes if token in stay or token not in left]
        reads += [given[number].token for number in plan.reads if number in given]
        writes += [] if working is None else [working.token]
        return replace(
            call,
            function=plan.run,
            arguments=tuple(places[number] for number in plan.reads),
            reads=tuple(dict.fromkeys(reads)),
            writes=tuple(writes),
            partly=tuple(token for token in call.partly if token in writes),
            bind=bind_to(plan, places, working),
            planned=None,
        )


def bind_to(plan: Any, places: Sequence[Ref], working: Ref | None = None) -> Bind:
    """A function that makes ``plan`` ready to run on its operands and scratch memory."""

    def bind(array_of: Any) -> Any:
        addresses = [address(array_of(place)) for place in places]
        work = 0 if working is None else address(array_of(working))
        return plan.bound(addresses, work + -work % PAGE)

    return bind


def narrowed(calls: list[Call], tokens: list[Token], stores: bool) -> list[Call]:
    """``calls`` with values rounded once and, if programs ``stores``, memory in bfloat16."""
    if not any(call.planned for call in calls):
        return calls
    stored = _stored(calls, tokens) if stores else set()
    given: dict[int, dict[int, Ref]] = {}
    for number, operand, place in _places(calls):
        if place.token in stored:
            given.setdefault(number, {})[operand] = _narrow(place, place.token)
    before = _copied(calls, tokens, stored, given)
    for token in stored:
        tokens[token].nbytes //= 2
    made: list[Call] = []
    for number, call in enumerate(calls):
        made += before.get(number, ())
        if number in given:
            assert call.planned is not None
            call = call.planned.remade(call, given[number], tokens)
        made.append(call)
    return made


def _places(calls: Sequence[Call]) -> Iterator[tuple[int, int, Ref]]:
    for number, call in enumerate(calls):
        for operand, place in enumerate(call.planned.places if call.planned else ()):
            yield number, operand, place


def _narrow(place: Ref, token: int) -> Ref:
    size = math.prod(place.shape)
    return Ref(token, 0, (size,), (2,), np.dtype(np.uint16))


def _stored(calls: Sequence[Call], tokens: Sequence[Token]) -> set[int]:
    """The tokens whose memory every call supports in bfloat16."""
    refused: set[int] = set()
    touched: dict[int, set[int]] = {}
    for number, call in enumerate(calls):
        open_here: set[int] = set()
        if call.planned:
            for operand, place in enumerate(call.planned.places):
                fits = operand in call.planned.plan.open and _is_whole(place, tokens)
                (open_here if fits else refused).add(place.token)
        for token in (*call.reads, *call.writes):
            touched.setdefault(token, set()).add(number)
            if token not in open_here:
                refused.add(token)
    stored = {token for token in touched if token not in refused and _is_planned(tokens[token])}
    waiting = sorted({number for token in stored for number in touched[token]})
    while waiting:
        number = waiting.pop()
        planned: Any = calls[number].planned
        mine = {k for k, place in enumerate(planned.places) if place.token in stored}
        if mine and not planned.offers(frozenset(mine)):
            gone = {planned.places[k].token for k in mine}
            stored -= gone
            waiting += sorted({other for token in gone for other in touched[token]} - {number})
    return stored


def _is_planned(token: Token) -> bool:
    return token.held is None and token.fill is None and token.written is None


def _is_whole(place: Ref, tokens: Sequence[Token]) -> bool:
    size = math.prod(place.shape) * place.dtype.itemsize
    return place.dtype == np.float32 and size == tokens[place.token].nbytes


def _copied(
    calls: Sequence[Call],
    tokens: list[Token],
    stored: set[int],
    given: dict[int, dict[int, Ref]],
) -> dict[int, list[Call]]:
    """The calls that round for several others, by the number of the first of these.

    The copies are added to ``given``.
    """
    readers: dict[int, list[Place]] = {}
    for number, operand, place in _places(calls):
        planned: Any = calls[number].planned
        if (
            operand in planned.plan.rounded
            and place.token not in stored
            and _is_whole(place, tokens)
        ):
            readers.setdefault(place.token, []).append((number, operand))
    changes: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        for token in call.writes:
            changes.setdefault(token, []).append(number)
    before: dict[int, list[Call]] = {}
    for token, every in readers.items():
        for group in _between(every, changes.get(token, ())):
            if len(group) > 1 and all(_takes(calls, place, given) for place in group):
                number, operand = group[0]
                planned = calls[number].planned
                call, copy = _rounding(calls[number], planned.places[operand], tokens)
                before.setdefault(number, []).append(call)
                for number, operand in group:
                    given.setdefault(number, {})[operand] = copy
    return before


def _between(places: Sequence[Place], changes: Sequence[int]) -> list[list[Place]]:
    """``places`` in groups between which the memory changes."""
    groups: dict[int, list[Place]] = {}
    for place in places:
        groups.setdefault(sum(change < place[0] for change in changes), []).append(place)
    return list(groups.values())


def _takes(calls: Sequence[Call], place: Place, given: Mapping[int, Mapping[int, Ref]]) -> bool:
    number, operand = place
    planned: Any = calls[number].planned
    return planned.offers(frozenset({*given.get(number, ()), operand}))


def _rounding(reader: Call, place: Ref, tokens: list[Token]) -> tuple[Call, Ref]:
    """The call that rounds the memory at ``place`` into a copy, and the copy."""
    planned: Any = reader.planned
    plan = planned.runtime.rounding(math.prod(place.shape))
    tokens.append(Token(tokens[place.token].nbytes // 2))
    copy = _narrow(place, len(tokens) - 1)
    call = Call(
        plan.run,
        (place,),
        {},
        (place.token,),
        (copy.token,),
        layer=reader.layer,
        phase=reader.phase,
        name="round",
        bind=bind_to(plan, (place, copy)),
    )
    return call, copy
