"""Positions of loaders: whole numbers checked, states compared before they are restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from singanet.errors import ArgumentError


def checked_count(where: str, name: str, value: SupportsIndex, least: int) -> int:
    """``value`` as an int of at least ``least``. Errors: `ArgumentError` naming the argument."""
    index = getattr(type(value), "__index__", None)
    whole = None if index is None or isinstance(value, bool) else int(index(value))
    if whole is None or whole < least:
        raise ArgumentError(
            f"{where}, {name}",
            expected=f"a whole number of at least {least}",
            received=f"{value!r}",
            advice="give a plain int",
        )
    return whole


def restored_position(
    where: str, state: Mapping[str, Any], identity: Mapping[str, int]
) -> tuple[int, int]:
    """``(epoch, position)`` of ``state``, saved by a loader with the same ``identity``.

    Errors: `ArgumentError` naming the entries that are missing or differ.
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
    if epoch < 0 or position < 0:
        raise ArgumentError(
            f"{where}, state",
            expected="an epoch and a position from 0 on",
            received=f"epoch {epoch}, position {position}",
            advice="load what this loader's state_dict() gave",
        )
    return epoch, position
