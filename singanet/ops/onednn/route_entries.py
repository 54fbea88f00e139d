"""Measured choices as plain data, and back with every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from singanet.ops.numpy.windows import Window
from singanet.ops.onednn.cases import KERNELS, ROUTES, Case, Choices

_DTYPE = "float32"


class NotRoutesError(ValueError):
    """What was read is not what was once written."""


def entries_of(choices: Mapping[int, Choices]) -> list[dict[str, Any]]:
    """One dict a choice."""
    return [
        {
            "threads": threads,
            "dtype": _DTYPE,
            "kernel": case.kernel,
            "x": case.x,
            "weight": case.weight,
            "kernel_size": case.window.kernel,
            "stride": case.window.stride,
            "pads": case.window.pads,
            "dilation": case.window.dilation,
            "groups": case.groups,
            "route": route,
        }
        for threads, by_case in sorted(choices.items())
        for case, route in by_case.items()
    ]


def read_entries(entries: Any) -> dict[int, Choices]:
    """What `entries_of` was given. Errors: `NotRoutesError`."""
    if not isinstance(entries, list):
        raise NotRoutesError("it holds no list of choices")
    found: dict[int, dict[Case, str]] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not _is_sound(entry):
            raise NotRoutesError(f"choice {number} is damaged")
        sizes = (entry["kernel_size"], entry["stride"])
        pads = (_pair(entry["pads"][0]), _pair(entry["pads"][1]))
        window = Window(_pair(sizes[0]), _pair(sizes[1]), pads, _pair(entry["dilation"]))
        shapes = tuple(entry["x"]), tuple(entry["weight"])
        case = Case(entry["kernel"], *shapes, window, entry["groups"])
        found.setdefault(entry["threads"], {})[case] = entry["route"]
    return dict(found)


def _pair(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]


def _is_sound(entry: dict[str, Any]) -> bool:
    pads = entry.get("pads")
    return (
        entry.get("dtype") == _DTYPE
        and entry.get("kernel") in KERNELS
        and entry.get("route") in ROUTES
        and _are_counts([entry.get("threads"), entry.get("groups")], 2)
        and all(_are_counts(entry.get(key), 4) for key in ("x", "weight"))
        and all(_are_counts(entry.get(key), 2) for key in ("kernel_size", "stride", "dilation"))
        and isinstance(pads, list)
        and len(pads) == 2
        and all(_are_counts(pair, 2, least=0) for pair in pads)
    )


def _are_counts(values: Any, length: int, least: int = 1) -> TypeGuard[list[int]]:
    if not isinstance(values, list) or len(values) != length:
        return False
    return all(type(value) is int and value >= least for value in values)
