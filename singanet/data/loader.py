"""The base class of loaders, and checks of ranks and positions for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, SupportsIndex, TypeAlias

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError

Batch: TypeAlias = tuple[Any, Any]
"""``(x, y)``: each an array, or a dict of arrays."""


class Loader(Protocol):
    """Batches by epoch, with a position that can be saved and restored.

    Iterating goes on from the current position to the end of the epoch. The position counts
    the batches handed out, so one saved while a batch is worked on is the position after it.
    """

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of the epoch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The current position."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position saved by `state_dict`."""
        ...


def checked_rank(where: str, rank: SupportsIndex, world_size: SupportsIndex) -> tuple[int, int]:
    """``(rank, world_size)`` as ints, 0 <= rank < world_size. Errors: `ArgumentError`."""
    count = checked_count(where, "world_size", world_size, 1)
    number = checked_count(where, "rank", rank, 0)
    if number >= count:
        raise ArgumentError(
            where,
            expected=f"a rank from 0 to {count - 1}",
            received=f"{number}",
            advice="number the processes from 0",
        )
    return number, count


def restored_position(
    where: str, state: Mapping[str, Any], identity: Mapping[str, int], most: int
) -> tuple[int, int]:
    """``(epoch, position)`` of ``state``, saved by a loader with the same ``identity``.

    Errors: `ArgumentError` naming the entries that are missing or differ, or a position
    beyond ``most`` batches.
    """
    wanted = ["epoch", "position", *identity]
    missing = [name for name in wanted if name not in state]
    if missing:
        raise ArgumentError(
            f"{where}, state",
            expected=f"the entries {', '.join(wanted)}",
            received=f"none for {', '.join(missing)}",
            advice="load what this loader's state_dict() gave",
        )
    different = [name for name in identity if int(state[name]) != identity[name]]
    if different:
        raise ArgumentError(
            f"{where}, state",
            expected=", ".join(f"{name} {identity[name]}" for name in different),
            received=", ".join(f"{name} {int(state[name])}" for name in different),
            advice="build the loader as it was when the position was saved",
        )
    epoch, position = int(state["epoch"]), int(state["position"])
    if epoch < 0 or not 0 <= position <= most:
        raise ArgumentError(
            f"{where}, state",
            expected=f"an epoch from 0 on and a position from 0 to {most}",
            received=f"epoch {epoch}, position {position}",
            advice="load what this loader's state_dict() gave",
        )
    return epoch, position
