"""Calls whose arrays lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from singanet.program.call import Bind, Call, Ref
from singanet.program.places import map_leaves


def moved(call: Call, moves: Mapping[int, tuple[int, int]]) -> Call:
    """``call`` with the tokens of ``moves`` as parts of others, from the byte given there on."""
    keys = moves.keys()
    if keys.isdisjoint(call.reads) and keys.isdisjoint(call.writes):
        return call
    touched = keys & {*call.reads, *call.writes}

    def place(ref: Ref) -> Ref:
        return relocated(ref, moves)

    made = placed(call, place, {token: moves[token][0] for token in touched})
    kept = tuple(pair for pair in call.in_place if not touched & {*pair})
    parts = (moves[token][0] for token in call.writes if token in touched)
    return replace(made, partly=_once((*made.partly, *parts)), in_place=kept)


def relocated(ref: Ref, moves: Mapping[int, tuple[int, int]]) -> Ref:
    """Where ``ref`` lies now."""
    token, start = moves.get(ref.token, (ref.token, 0))
    return ref._replace(token=token, offset=ref.offset + start)


def placed(call: Call, place: Callable[[Ref], Ref], tokens: Mapping[int, int]) -> Call:
    """``call`` with every array where ``place`` says; ``tokens`` are the new ones of the old."""

    def other(numbers: Iterable[int]) -> tuple[int, ...]:
        return _once(tokens.get(number, number) for number in numbers)

    return replace(
        call,
        arguments=map_leaves(call.arguments, Ref, place),
        keywords=map_leaves(call.keywords, Ref, place),
        reads=other(call.reads),
        writes=other(call.writes),
        partly=other(call.partly),
        in_place=tuple((tokens.get(a, a), tokens.get(b, b)) for a, b in call.in_place),
        bind=None if call.bind is None else _bound(call.bind, place),
    )


def _bound(bind: Bind, place: Callable[[Ref], Ref]) -> Bind:
    return lambda array_of: bind(lambda ref: array_of(place(ref)))


def _once(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
