"""What the C library's allocator takes for arrays that come and go."""

from __future__ import annotations

from bisect import bisect_left, insort

from singanet.base.written import PAGE

_LEAST, _MOST = 128 << 10, 32 << 20
"""From how many bytes a block is the system's own, at first and at most: mallopt(3)."""

_HEADER = 16


class HeapUse:
    """The bytes resident for blocks as glibc places them: best fit in a heap that grows at its end.

    A large block for which there is no room is mapped by itself, and what is large grows with such
    blocks that are freed, of which the largest so far was ``freed``. Others leave holes, and the
    heap keeps what is free, but for its end beyond twice that size.
    """

    def __init__(self, freed: int = 0) -> None:
        self.bytes = self.most = 0
        self._large = min(max(freed, _LEAST), _MOST)
        self._end = self._kept = 0
        # By the place where they begin and by size; by the place where they end.
        self._holes: list[tuple[int, int]] = []
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, int]:
        """A block of ``size`` bytes: where it begins, -1 where it is mapped, and its size."""
        size = -(-(size + _HEADER) // 16) * 16
        at = bisect_left(self._holes, (size, 0))
        if at < len(self._holes):
            hole, start = self._holes[at]
            self._forget(start, hole)
            if hole > size:
                self._enter(start + size, hole - size)
            return start, size
        if self._end + size > self._kept and size >= self._large:
            size = -(-size // PAGE) * PAGE
            self._count(size)
            return -1, size
        start, self._end = self._end, self._end + size
        if self._end > self._kept:
            self._count(self._end - self._kept)
            self._kept = self._end
        return start, size

    def give_back(self, block: tuple[int, int]) -> None:
        """Free a block that was taken."""
        start, size = block
        if start < 0:
            self.bytes -= size
            if self._large < size <= _MOST:
                self._large = size
            return
        if (before := self._ends.get(start)) is not None:
            self._forget(before, start - before)
            start, size = before, start - before + size
        if (after := self._starts.get(start + size)) is not None:
            self._forget(start + size, after)
            size += after
        if start + size < self._end:
            self._enter(start, size)
            return
        self._end = start
        if self._kept - start > 2 * self._large:
            self.bytes -= self._kept - start
            self._kept = start

    def _count(self, more: int) -> None:
        self.bytes += more
        self.most = max(self.most, self.bytes)

    def _enter(self, start: int, size: int) -> None:
        insort(self._holes, (size, start))
        self._starts[start], self._ends[start + size] = size, start

    def _forget(self, start: int, size: int) -> None:
        del self._holes[bisect_left(self._holes, (size, start))]
        del self._starts[start], self._ends[start + size]
