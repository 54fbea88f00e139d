"""What the host asks a device for at each replay of a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Launches(NamedTuple):
    """Graphs that are launched, the calls ``in_graphs``, and what stands between them.

    ``singly`` are calls that are launched one by one, as all are the first time, ``draws`` arrays
    that random numbers fill, ``on_host`` calls of the host, which looks at values. Several calls
    of each element that run as one kernel are one.
    """

    graphs: int = 0
    in_graphs: int = 0
    singly: int = 0
    draws: int = 0
    on_host: int = 0

    @classmethod
    def of_all(cls, parts: Iterable[Launches]) -> Launches:
        """Those of all ``parts``."""
        return cls(*map(sum, zip(cls(), *parts, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.graphs:,} graphs of {self.in_graphs:,} calls, {self.singly:,} calls by"
            f" themselves, {self.draws:,} draws, {self.on_host:,} calls of the host"
        )
