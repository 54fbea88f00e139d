"""Kernels as what they make and need: what of it can be made again, and what that costs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.arena import rounded_sizes

LATER = frozenset(("recompute", "backward", "communication", "update"))
"""Phases before whose kernels others may be put."""


class Flow:
    """Who makes and who needs each buffer of ``kernels``, which run in the order given.

    ``passes`` tells for each kernel how often it goes over its operands, or how long it computes
    in what a pass takes; ``touched`` the bytes of these operands. Moments are counted twice as fine
    as kernels: 2 k is just before kernel k, where others may be put, 2 k + 1 the kernel itself.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        buffers: Sequence[Buffer],
        passes: Sequence[int],
        touched: Sequence[int],
    ) -> None:
        self.kernels = kernels
        self.passes = passes
        self.touched = touched
        self.size: list[int] = rounded_sizes(buffers).tolist()
        self.planned = [buffer.planned for buffer in buffers]
        self.writers: list[list[int]] = [[] for _ in buffers]
        self.uses: list[list[int]] = [[] for _ in buffers]
        for at, kernel in enumerate(kernels):
            for buffer in kernel.writes:
                self.writers[buffer].append(at)
            for buffer in {*kernel.reads, *kernel.writes}:
                self.uses[buffer].append(at)
        # What draws, runs Python, or changes a parameter or running statistics happens once.
        self.repeatable = [
            not kernel.barrier
            and bool(kernel.writes)
            and all(self.planned[buffer] for buffer in kernel.writes)
            for kernel in kernels
        ]
        self.split = [self._split(uses) for uses in self.uses]

    def _split(self, uses: list[int]) -> int:
        """How many of ``uses`` come before the longest time without, 0 where there is none."""
        waits = [
            (at - uses[number], number + 1)
            for number, at in enumerate(uses[1:])
            if self.kernels[at].phase in LATER
        ]
        return max(waits, default=(0, 0))[1]

    def gap(self, buffer: int) -> tuple[int, int] | None:
        """The moments between which nobody needs what lies in ``buffer``, if that is long."""
        split, uses = self.split[buffer], self.uses[buffer]
        if not self.planned[buffer] or not split:
            return None
        # A layer's own Python may keep what it has seen for its way back, where it lay.
        if self._seen(uses[:split]) and self._seen(uses[split:]):
            return None
        return self.end(buffer, uses[split - 1]), 2 * uses[split]

    def _seen(self, uses: list[int]) -> bool:
        return any(self.kernels[at].barrier for at in uses)

    def end(self, buffer: int, at: int) -> int:
        """The moment until which ``buffer`` is needed, if kernel ``at`` uses it last."""
        given: set[int] = set()
        for read, written in self.kernels[at].in_place:
            last = read == buffer or self.uses[read][-1] == at
            if last and self._takes(written, read, at) and not given & {read, written}:
                if read == buffer:
                    return 2 * at
                given |= {read, written}
        return 2 * at + 1

    def _takes(self, new: int, old: int, at: int) -> bool:
        """Whether ``new`` may begin in the memory of ``old``; as `merge_in_place` has it."""
        same = self.planned[new] and self.size[new] == self.size[old]
        return same and self.uses[new][0] == at and self.uses[old][0] < at

    def makers(self, buffer: int, before: int) -> list[int]:
        """The kernels whose work ``buffer`` holds at kernel ``before``.

        Those from the last one on that overwrote all of it.
        """
        writers = self.writers[buffer]
        found = writers[: bisect_left(writers, before)]
        for number in reversed(range(len(found))):
            if buffer not in self.kernels[found[number]].reads:
                return found[number:]
        return found

    def changed(self, buffer: int, after: int, before: int) -> bool:
        """Whether a kernel between these two writes ``buffer``."""
        writers = self.writers[buffer]
        return bisect_left(writers, after + 1) < bisect_left(writers, before)

    def makes_again(self, buffer: int, before: int, most: int) -> bool:
        """Whether what makes it may run twice, and takes at most that many passes."""
        makers = self.makers(buffer, before)
        return bool(makers) and all(self.may(at, most) for at in makers)

    def may(self, at: int, most: int) -> bool:
        """Whether kernel ``at`` may run twice, and takes at most that many passes."""
        return self.repeatable[at] and self.passes[at] <= most

    def cost(self, at: int) -> int:
        """What running kernel ``at`` again takes, in bytes gone over."""
        return self.passes[at] * self.touched[at]
