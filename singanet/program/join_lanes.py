"""Calls of equal shape joined into one.

A lane's temporaries are planned separately, as the progress of the other lanes is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from singanet.ops.workers import side_by_side
from singanet.program.cost import bytes_of, passes_at_first
from singanet.program.ir import Bind, Buffer, Call, Kernel, Ref, Token, map_leaves, refs_of
from singanet.program.layout import plan_arena
from singanet.program.lower_sweeps import ready_call
from singanet.types import Array


def moved(call: Call, moves: Mapping[int, tuple[int, int]]) -> Call:
    """``call`` with the tokens of ``moves`` as parts of other tokens, from the given byte on."""
    keys = moves.keys()
    if keys.isdisjoint(call.reads) and keys.isdisjoint(call.writes):
        return call
    touched = keys & {*call.reads, *call.writes}

    def place(ref: Ref) -> Ref:
        return relocated(ref, moves)

    made = placed(call, place, {token: moves[token][0] for token in touched})
    made.in_place = tuple([pair for pair in call.in_place if touched.isdisjoint(pair)])
    parts = [moves[token][0] for token in call.writes if token in touched]
    made.partly = _once((*made.partly, *parts))
    return made


def relocated(ref: Ref, moves: Mapping[int, tuple[int, int]]) -> Ref:
    """The place of ``ref`` after ``moves``."""
    if ref.token not in moves:
        return ref
    token, start = moves[ref.token]
    return Ref(token, ref.offset + start, ref.shape, ref.strides, ref.dtype)


def placed(call: Call, place: Callable[[Ref], Ref], tokens: Mapping[int, int]) -> Call:
    """``call`` with every array moved by ``place``; ``tokens`` maps old to new tokens."""

    def other(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return _once([tokens.get(number, number) for number in numbers]) if numbers else ()

    def led(value: Any) -> Any:
        return place(value) if type(value) is Ref else map_leaves(value, Ref, place)

    # By the constructor: a copy of a dataclass takes ten times as long.
    made = Call(
        call.function,
        tuple([led(value) for value in call.arguments]),
        {key: led(value) for key, value in call.keywords.items()},
        other(call.reads),
        other(call.writes),
        other(call.partly),
        tuple([(tokens.get(a, a), tokens.get(b, b)) for a, b in call.in_place]),
        call.layer,
        call.phase,
        call.name,
        call.barrier,
        None if call.bind is None else _bound(call.bind, place),
        call.passes,
        call.lane,
        call.parts,
        call.once,
    )
    return made


def _bound(bind: Bind, place: Callable[[Ref], Ref]) -> Bind:
    return lambda array_of: bind(lambda ref: array_of(place(ref)))


def _once(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))


Lane = tuple[int, int]
"""The number of a group of lanes, and of one in it."""


def with_lanes_joined(
    calls: Sequence[Call], tokens: list[Token], constant: Collection[int]
) -> list[Call]:
    """``calls`` with each group of lanes joined to one call.

    ``tokens`` are extended by the lanes' working memory; tokens in ``constant`` are outside the
    arena.
    """
    if all(call.lane is None for call in calls):
        return list(calls)
    own = _tokens_of_lanes(calls)
    made: list[Call] = []
    for group, members in groupby(calls, key=lambda call: call.lane and call.lane[0]):
        if group is None:
            made += members
            continue
        lanes: dict[Lane, list[Call]] = {}
        for call in members:
            assert call.lane is not None
            lanes.setdefault(call.lane, []).append(call)
        first, parts = len(tokens), []
        for lane, inside in lanes.items():
            planned = [t for t in own[lane] if tokens[t].held is None and t not in constant]
            parts.append(_by_itself(inside, planned, tokens))
        joined = _joined(parts, frozenset(range(first, len(tokens))))
        inside = [call for part in parts for call in part]
        made.append(replace(joined, passes=_passes(inside, joined, tokens)))
    return made


def _tokens_of_lanes(calls: Sequence[Call]) -> dict[Lane, list[int]]:
    """For each lane the tokens that its calls alone use."""
    users: dict[int, Lane | None] = {}
    for call in calls:
        for token in (*call.reads, *call.writes):
            users[token] = call.lane if users.get(token, call.lane) == call.lane else None
    own: dict[Lane, list[int]] = {call.lane: [] for call in calls if call.lane is not None}
    for token, lane in users.items():
        if lane is not None:
            own[lane].append(token)
    return own


def kernels_of(calls: Sequence[Call], numbers: Mapping[int, int]) -> list[Kernel]:
    """The kernels of ``calls`` for the planner; ``numbers`` are those of tokens."""
    kernels: list[Kernel] = []
    written: set[int] = set()
    number = numbers.__getitem__
    for call in calls:
        read: Iterable[int] = call.reads
        if not written.isdisjoint(call.partly):
            read = _once((*read, *[token for token in call.partly if token in written]))
        written.update(call.writes)
        pairs = call.in_place and [
            (numbers[a], numbers[b]) for a, b in call.in_place if a in numbers and b in numbers
        ]
        kernels.append(
            Kernel(
                call.name,
                tuple(map(number, read)),
                tuple(map(number, call.writes)),
                call.layer,
                call.phase,
                tuple(pairs),
                call.barrier,
            )
        )
    return kernels


def _by_itself(calls: list[Call], own: list[int], tokens: list[Token]) -> list[Call]:
    """The calls of a lane with what is its ``own`` in one token, which is added to ``tokens``."""
    touched = dict.fromkeys(own)
    for call in calls:
        touched.update(dict.fromkeys((*call.reads, *call.writes)))
    # All else lies outside.
    kinds: list[Any] = ["temporary"] * len(own) + ["constant"] * (len(touched) - len(own))
    buffers = [Buffer(tokens[t].nbytes, kind) for t, kind in zip(touched, kinds, strict=True)]
    numbers = {token: number for number, token in enumerate(touched)}
    layout = plan_arena(kernels_of(calls, numbers), buffers)
    moves: dict[int, tuple[int, int]] = {}
    for token, offset in zip(own, layout.offsets, strict=False):
        assert offset is not None
        moves[token] = len(tokens), offset
    if moves:
        tokens.append(Token(layout.nbytes))
    return [moved(call, moves) for call in calls]


def _passes(calls: Sequence[Call], joined: Call, tokens: Sequence[Token]) -> int:
    """The passes of the ``joined`` call over its memory, of which each call has its own part."""
    work = (passes_at_first(call) * bytes_of(call, tokens) for call in calls)
    return max(1, round(sum(work) / max(1, bytes_of(joined, tokens))))


def _joined(lanes: list[list[Call]], inside: Collection[int]) -> Call:
    """One call that does ``lanes`` side by side; ``inside`` are the tokens of their own."""
    calls = [call for lane in lanes for call in lane]
    writes = dict.fromkeys(token for call in calls for token in call.writes)
    reads = dict.fromkeys(t for call in calls for t in call.reads if t not in writes)

    def bind(array_of: Callable[[Ref], Array]) -> Callable[[], object]:
        return partial(side_by_side, [[ready_call(c, array_of) for c in lane] for lane in lanes])

    return Call(
        side_by_side,
        (tuple(dict.fromkeys(ref for call in calls for ref in refs_of(call))),),
        {},
        tuple(reads),
        tuple(writes),
        tuple(token for token in writes if token not in inside),
        layer=calls[0].layer,
        phase=calls[0].phase,
        name="lanes",
        bind=bind,
        once=any(call.once for call in calls),
        parts=len(calls),
    )
