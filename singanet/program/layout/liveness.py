"""Lifetimes: the first and the last kernel between which a buffer must keep its contents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.errors import ArgumentError
from singanet.program.ir import Buffer, Kernel

Ints = npt.NDArray[np.int64]


class Lifetimes(NamedTuple):
    """``first`` and ``last``: the kernels between which, both included, each buffer is needed.

    An input is needed from -1 on, that is before the first kernel; an output up to ``kernels``,
    after the last. What is never needed has ``first`` above ``last``. Buffers outside the arena
    have the kernels that use them.
    """

    first: Ints
    last: Ints
    kernels: int


def lifetimes(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> Lifetimes:
    """The lifetimes of ``buffers`` when ``kernels`` run in the order given.

    Errors: a number that is no buffer's; a temporary or output that is read before it is written.
    """
    count, end = len(buffers), len(kernels)
    first, last = [end] * count, [-1] * count
    for at, kernel in enumerate(kernels):
        for buffer in kernel.reads:
            if not 0 <= buffer < count:
                raise _unknown(at, kernel, buffer, count)
            last[buffer] = at
            if first[buffer] == end:
                if buffers[buffer].kind in ("temporary", "output"):
                    raise _unwritten(at, kernel, buffer, buffers[buffer])
                first[buffer] = at
        for buffer in kernel.writes:
            if not 0 <= buffer < count:
                raise _unknown(at, kernel, buffer, count)
            last[buffer] = at
            if first[buffer] == end:
                first[buffer] = at
    for number, what in enumerate(buffers):
        if what.kind == "input":
            first[number] = -1
        elif what.kind == "output":
            last[number] = end
    return Lifetimes(np.array(first, np.int64), np.array(last, np.int64), end)


def live_bytes(lives: Lifetimes, sizes: npt.ArrayLike) -> Ints:
    """Bytes needed before the first kernel, at each kernel, and after the last: ``kernels + 2``.

    ``sizes`` holds the bytes of each buffer, 0 for those not to be counted. The largest of the
    result is the least that any arena can do with.
    """
    counted: npt.NDArray[Any] = np.asarray(sizes, np.int64)
    used = lives.first <= lives.last
    change = np.zeros(lives.kernels + 3, np.int64)
    np.add.at(change, lives.first[used] + 1, counted[used])
    np.add.at(change, lives.last[used] + 2, -counted[used])
    return np.cumsum(change[:-1])


def releases(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> list[list[int]]:
    """For each kernel the temporaries and inputs that nobody needs after it."""
    lives = lifetimes(kernels, buffers)
    freed: list[list[int]] = [[] for _ in kernels]
    for number, buffer in enumerate(buffers):
        last = int(lives.last[number])
        if buffer.kind in ("temporary", "input") and last >= 0:
            freed[last].append(number)
    return freed


def never_read(kernels: Iterable[Kernel], buffers: Sequence[Buffer]) -> list[int]:
    """Temporaries that are written for nothing."""
    written: set[int] = set()
    read: set[int] = set()
    for kernel in kernels:
        written.update(kernel.writes)
        read.update(kernel.reads)
    return sorted(n for n in written - read if buffers[n].kind == "temporary")


def _unknown(at: int, kernel: Kernel, buffer: int, count: int) -> ArgumentError:
    return ArgumentError(
        f"program, kernel {at} {kernel.name!r}",
        expected=f"numbers of buffers from 0 to {count - 1}",
        received=str(buffer),
        advice="list every buffer before the kernels that use it",
    )


def _unwritten(at: int, kernel: Kernel, buffer: int, what: Buffer) -> ArgumentError:
    label = f" {what.label!r}" if what.label else ""
    return ArgumentError(
        f"program, kernel {at} {kernel.name!r}",
        expected=f"buffer {buffer}{label} written before it is read",
        received=f"a read while this {what.kind} is empty",
        advice="record the kernel that writes it, or make the buffer an input or a constant",
    )
