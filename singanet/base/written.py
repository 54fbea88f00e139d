"""Memory of which kernels write parts alone: the system has given no pages for the rest."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""From which byte on up to which, in order."""

PAGE = 4096


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same bytes, in order and apart from each other."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def resident_bytes(written: Ranges, nbytes: int) -> int:
    """Resident bytes of an array of ``nbytes`` with these bytes ``written``: whole small pages."""
    # Where pages begin in the array nobody knows: at both ends half of one on the average.
    edge = PAGE // 2
    pages = union((max(0, start - edge), min(nbytes, end + edge)) for start, end in written)
    return sum(end - start for start, end in pages)
