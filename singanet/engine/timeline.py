"""The memory of a step over time, as pieces that are made and freed, and its peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.base.kinds import bytes_text
from singanet.base.notebooks import html_table, short_note

Ints = npt.NDArray[np.int64]


class Lifetimes(NamedTuple):
    """Pieces of ``size`` bytes, each needed from moment ``first`` to ``last``, both included."""

    first: Ints
    last: Ints
    size: Ints

    @classmethod
    def of(cls, pieces: Sequence[Sequence[int]]) -> Lifetimes:
        """Return the timeline of ``pieces`` of (first, last, size)."""
        return cls(*np.array(pieces, np.int64).reshape(-1, 3).T)

    def live(self, moments: int, start: int = 0) -> Ints:
        """Return the bytes at each of ``moments`` moments, the first of which is ``start``."""
        size = np.where(self.first <= self.last, self.size, 0)
        # Sums of floats, which have all bytes below 2^53.
        begins = np.bincount(self.first - start, size, moments + 1)
        ends = np.bincount(self.last + 1 - start, size, moments + 1)
        return (begins - ends)[:moments].cumsum().astype(np.int64)


Kind = Literal["input", "array", "scratch", "state"]
"""Inputs, arrays of layers, memory that kernels work in, and state of the optimizer."""


class LogMoment(NamedTuple):
    """The ``layer`` at work, the ``phase`` of the step, and the number of ``calls`` before."""

    layer: str
    phase: str
    calls: int


class AllocationLog:
    """The memory of a step by the layers: a moment each time that a piece is made or freed."""

    def __init__(self) -> None:
        self.moments: list[LogMoment] = []
        self._pieces: list[list[int]] = []
        self._kinds: list[Kind] = []
        self._owned: dict[int, list[int]] = {}
        self._paused = False

    def make(self, moment: LogMoment, nbytes: int, kind: Kind = "array", owner: int = -1) -> None:
        """Note a piece of ``owner``, which may have others; -1 is nobody."""
        if self._paused and kind == "array":
            return
        self._owned.setdefault(owner, []).append(len(self._pieces))
        self._pieces.append([len(self.moments), -1, nbytes])
        is_input = kind == "array" and moment.phase == "forward" and not moment.layer
        self._kinds.append("input" if is_input else kind)
        self.moments.append(moment)

    def free(self, moment: LogMoment, owner: int) -> None:
        """Note that the pieces of ``owner`` are freed."""
        pieces = self._owned.pop(owner, ())
        for piece in pieces:
            self._pieces[piece][1] = len(self.moments)
        if pieces:
            self.moments.append(moment)

    def bytes_of(self, owner: int) -> int:
        """Return the bytes that ``owner`` has."""
        return sum(self._pieces[piece][2] for piece in self._owned.get(owner, ()))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note no arrays that are made in the block."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def timeline(self, *kinds: Kind) -> Lifetimes:
        """Return the pieces of these ``kinds``; unfreed pieces last until the end."""
        chosen = [p for p, kind in zip(self._pieces, self._kinds, strict=True) if kind in kinds]
        found = Lifetimes.of(chosen)
        return found._replace(last=np.where(found.last < 0, len(self.moments) - 1, found.last))

    def peak(self, *kinds: Kind) -> tuple[int, LogMoment]:
        """Return the most bytes of these ``kinds`` at a time, and the first moment with them."""
        live = self.timeline(*kinds).live(len(self.moments))
        if not len(live):
            return 0, LogMoment("", "forward", 0)
        most = int(live.argmax())
        return int(live[most]), self.moments[most]

    @cached_property
    def kept(self) -> dict[str, int]:
        """The bytes that layers store from forward to backward, by the layer that frees them."""
        found: dict[str, int] = {}
        for first, last, size in zip(*self.timeline("array"), strict=True):
            made, freed = self.moments[first], self.moments[last]
            if made.phase == "forward" and freed.phase == "backward":
                found[freed.layer] = found.get(freed.layer, 0) + int(size)
        return found


@dataclass(frozen=True, repr=False)
class PeakMemory:
    """Bytes of memory: ``parts`` maps "arena", "parameters", "optimizer state", ... to bytes.

    ``outside`` has the pages of libraries' files by library. They are not counted: the system has
    them once for all processes, and drops them if memory is short.
    """

    parts: Mapping[str, int]
    outside: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self.parts.values())

    def after(self, filling: int) -> PeakMemory:
        """Return the peak including ``filling`` bytes, the peak while the parameters are filled."""
        parts = {**self.parts, "filling": max(0, filling - self.total)}
        return replace(self, parts=parts)

    def __repr__(self) -> str:
        return short_note(f"PeakMemory: {bytes_text(self.total)}")

    def _repr_html_(self) -> str:
        """Return the parts as a table, for notebooks."""
        sizes = {name: size for name, size in self.parts.items() if size}
        rows = [
            (name, bytes_text(size), f"{size / max(self.total, 1):.0%}")
            for name, size in sorted(sizes.items(), key=lambda part: -part[1])
        ]
        rows.append(("in all", bytes_text(self.total), ""))
        rows += [(f"outside: {n}'s file", bytes_text(s), "") for n, s in self.outside.items()]
        return html_table(("memory", "bytes", "share"), rows)

    def __str__(self) -> str:
        shown = [f"{bytes_text(size)} {name}" for name, size in self.parts.items() if size]
        told = f"{bytes_text(self.total)} = {' + '.join(shown) or 'nothing'}"
        if self.outside:
            files = [f"{bytes_text(size)} of {name}'s file" for name, size in self.outside.items()]
            told += f"\noutside of it {', '.join(files)}, in pages that the system shares and drops"
        return told
