"""Calls whose arrays lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from singanet.program.array_tree import map_leaves
from singanet.program.ir import Bind, Call, Ref


def moved(call: Call, moves: Mapping[int, tuple[int, int]]) -> Call:
    """``call`` with the tokens of ``moves`` as parts of others, from the byte given there on."""
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
    """Where ``ref`` lies now."""
    if ref.token not in moves:
        return ref
    token, start = moves[ref.token]
    return Ref(token, ref.offset + start, ref.shape, ref.strides, ref.dtype)


def placed(call: Call, place: Callable[[Ref], Ref], tokens: Mapping[int, int]) -> Call:
    """``call`` with every array where ``place`` says; ``tokens`` are the new ones of the old."""

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
