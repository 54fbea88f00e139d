"""How two checkpoints differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.formats import open_state
from singanet.checkpoint.matching import weights
from singanet.checkpoint.report import aligned
from singanet.types import Array

_PIECE = 1 << 18


@dataclass(frozen=True)
class Difference:
    """Whether all arrays are equal bit for bit, and a table of those that are not."""

    equal: bool
    text: str

    def __str__(self) -> str:
        return self.text


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """Compare the checkpoints ``a`` and ``b``, in any formats, one array at a time.

    Of a training or a whole model beside weights alone, the net's arrays are compared. Errors: as
    for `open_state` and `Reader.read`.
    """
    rows: list[tuple[object, ...]] = [("name", "in A", "in B", "differ", "most")]
    same = 0
    with open_state(a) as first, open_state(b) as second:
        some: Mapping[str, Entry] = first.entries
        others: Mapping[str, Entry] = second.entries
        if (weights(some) is some) != (weights(others) is others):
            some, others = weights(some), weights(others)
        for name in {**some, **others}:
            here, there = some.get(name), others.get(name)
            if here is None or there is None or not _comparable(here, there):
                rows.append((name, _described(here), _described(there), "", ""))
                continue
            count, most = _compare(first.read(here.name), second.read(there.name))
            same += not count
            if count:
                rows.append((name, _described(here), _described(there), count, f"{most:.6g}"))
    equal = len(rows) == 1
    summary = f"{same} arrays equal, {len(rows) - 1} not"
    return Difference(equal, summary if equal else f"{aligned(rows)}\n{summary}")


def _comparable(here: Entry, there: Entry) -> bool:
    return here.shape == there.shape and here.dtype == there.dtype


def _described(entry: Entry | None) -> str:
    return "-" if entry is None else f"{entry.dtype}{entry.shape}"


def _compare(here: Array, there: Array) -> tuple[int, float]:
    """How many numbers differ in their bits, and by how much at most."""
    count, most = 0, 0.0
    width = here.dtype.itemsize
    for start in range(0, here.size, _PIECE):
        x, y = (a.reshape(-1)[start : start + _PIECE] for a in (here, there))
        differ = (x.view("u1").reshape(-1, width) != y.view("u1").reshape(-1, width)).any(axis=1)
        if differ.any():
            count += int(differ.sum())
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = np.abs(x[differ].astype(np.float64) - y[differ].astype(np.float64))
            most = max(most, float(np.nanmax(gaps, initial=0.0)))
    return count, most
