"""Outputs that take the memory of an input of the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.liveness import Ints, Lifetimes, lifetimes, live_bytes

Pair = tuple[int, int]


def merge_in_place(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], lives: Lifetimes
) -> tuple[list[int], list[Pair]]:
    """For each buffer the one whose memory it is, itself mostly; and the pairs that were taken.

    A kernel's pair (read, written) is taken where the read buffer is a temporary that nobody needs
    after the kernel, the written one lies in the arena and begins there, and both are of equal
    size. Each memory goes to one output only, the first that its kernel lists.
    """
    holder = list(range(len(buffers)))
    taken: list[Pair] = []
    first, last = lives.first.tolist(), lives.last.tolist()
    for at, kernel in enumerate(kernels):
        given: set[int] = set()
        for read, written in kernel.in_place:
            old, new = buffers[read], buffers[written]
            if (
                old.kind == "temporary"
                and new.kind in ("temporary", "output")
                and old.nbytes == new.nbytes
                and last[read] == at == first[written]
                and first[read] < at
                and not given & {read, written}
            ):
                holder[written] = holder[read]
                given |= {read, written}
                taken.append((read, written))
    return holder, taken


class SharedMemory(NamedTuple):
    """The memory of buffers, of which some take that of others.

    A ``holder``, the buffer whose memory each one has, lives as long as any that has it: ``lives``.
    ``pairs`` are those of `merge_in_place`.
    """

    lives: Lifetimes
    holder: Ints
    pairs: list[Pair]

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Which buffers have memory of their own."""
        return self.holder == np.arange(len(self.holder))

    def live_bytes(self, sizes: npt.ArrayLike) -> Ints:
        """As `liveness.live_bytes`, of the memory of buffers that have ``sizes``."""
        return live_bytes(self.lives, np.where(self.holds, sizes, 0))


def shared_memory(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> SharedMemory:
    """The memory of ``buffers`` when ``kernels`` run in the order given.

    Errors: those of `lifetimes`.
    """
    lives = lifetimes(kernels, buffers)
    holder, pairs = merge_in_place(kernels, buffers, lives)
    first, last = lives.first.copy(), lives.last.copy()
    np.minimum.at(first, holder, lives.first)
    np.maximum.at(last, holder, lives.last)
    merged = Lifetimes(first, last, lives.kernels)
    return SharedMemory(merged, np.array(holder, np.int64), pairs)
