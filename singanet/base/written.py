"""Memory of which kernels write parts alone: the system has given no pages for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

Ranges = tuple[tuple[int, int], ...]
"""From which byte on up to which, in order."""

PAGE, _LARGE_PAGE = 4096, 2 << 20
_ON_LARGE_PAGES = 4 << 20
"""From how many bytes NumPy asks for large pages for an array."""


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
    """What the system gives for an array of ``nbytes`` that is written there: whole pages."""
    large = nbytes >= _ON_LARGE_PAGES and _gives_large_pages()
    # Where pages begin in the array nobody knows: at both ends half of one on the average.
    edge = (_LARGE_PAGE if large else PAGE) // 2
    pages = union((max(0, start - edge), min(nbytes, end + edge)) for start, end in written)
    return sum(end - start for start, end in pages)


@cache
def _gives_large_pages() -> bool:
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return "[never]" not in setting
