"""Outputs that take the memory of an input of the same kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.liveness import Lifetimes

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


def merged_lifetimes(lives: Lifetimes, holder: Sequence[int]) -> Lifetimes:
    """``lives`` in which each holder lives as long as any buffer whose memory it is."""
    first, last = lives.first.copy(), lives.last.copy()
    np.minimum.at(first, holder, lives.first)
    np.maximum.at(last, holder, lives.last)
    return Lifetimes(first, last, lives.kernels)
