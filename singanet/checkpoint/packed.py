"""Arrays of the net that other files hold as one: SINGA's recurrent weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from singanet.checkpoint.entry import Entry, Source, State, sources_of
from singanet.checkpoint.matching import Target, spellings, weights
from singanet.types import Array

T = TypeVar("T")


@dataclass(frozen=True)
class Packed:
    """One array, ``name``, for ``members``: `fetch` makes it of them, `assign` takes it apart."""

    name: str
    target: Target
    members: tuple[str, ...]
    fetch: Callable[[], Array]
    assign: Callable[[Array], None]


def in_file(
    packed: Sequence[Packed],
    entries: Mapping[str, Entry],
    targets: Mapping[str, Target],
    rename: Mapping[str, str],
) -> list[Packed]:
    """The packed arrays of a file, under any spelling, if the file lacks all their members."""
    there = weights(entries).keys() | set(rename.values())

    def has(name: str) -> bool:
        return any(spelled in there and spelled not in targets for spelled in spellings(name))

    return [each for each in packed if has(each.name) and not there & set(each.members)]


def fold(targets: Mapping[str, Target], packed: Sequence[Packed]) -> dict[str, Target]:
    """``targets`` with each of ``packed`` in the place of its members."""
    return _in_place(targets, {each.name: each.target for each in packed}, packed)


def pack(state: State, packed: Sequence[Packed]) -> list[Source]:
    """``state`` with each of ``packed`` in the place of its members, made when its turn comes."""
    return list(
        _in_place(
            {source.name: source for source in sources_of(state, "state")},
            {
                each.name: Source(each.name, each.target.shape, each.target.dtype, each.fetch)
                for each in packed
            },
            packed,
        ).values()
    )


def _in_place(
    items: Mapping[str, T], whole: Mapping[str, T], packed: Sequence[Packed]
) -> dict[str, T]:
    first = {each.members[0]: each.name for each in packed}
    members = {member for each in packed for member in each.members}
    placed: dict[str, T] = {}
    for name, item in items.items():
        if name in first:
            placed[first[name]] = whole[first[name]]
        elif name not in members:
            placed[name] = item
    return placed
