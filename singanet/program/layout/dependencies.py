"""Which kernel must run before which, and the orders that this leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from singanet.program.ir import Kernel

EdgeKind = Literal["read", "overwrite after read", "overwrite after write"]


class Edge(NamedTuple):
    """``target`` waits for ``source`` because of ``buffer``.

    ``source`` is None if a buffer is read that no kernel wrote before. ``target`` is None for a
    leaf: a buffer that no kernel reads after the write.
    """

    buffer: int
    source: int | None
    target: int | None
    kind: EdgeKind


def edges(kernels: Sequence[Kernel]) -> list[Edge]:
    """Every reason to wait, once, in the order in which the kernels give it.

    A read waits for the last write. A write waits for every read of the overwritten contents, or,
    without such reads, for the write before it. A kernel without any buffer reads and owns all
    leaves. Counted as by SINGA's scheduler, with one difference: a write also waits for reads of
    contents from outside, as an update does for the forward pass that read the parameter.
    """
    found: list[Edge] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for number, kernel in enumerate(kernels):
        reads: Sequence[int] = tuple(dict.fromkeys(kernel.reads))
        writes: Sequence[int] = tuple(dict.fromkeys(kernel.writes))
        if not (reads or writes):
            reads = writes = [buffer for buffer in writer if not readers.get(buffer)]
        for buffer in reads:
            found.append(Edge(buffer, writer.get(buffer), number, "read"))
            readers.setdefault(buffer, []).append(number)
        for buffer in writes:
            before = readers.get(buffer, [])
            found += [
                Edge(buffer, reader, number, "overwrite after read")
                for reader in before
                if reader != number
            ]
            if not before and buffer in writer:
                found.append(Edge(buffer, writer[buffer], number, "overwrite after write"))
            writer[buffer], readers[buffer] = number, []
    leaves = ((buffer, last) for buffer, last in writer.items() if not readers[buffer])
    return found + [Edge(buffer, last, None, "read") for buffer, last in leaves]


def is_barrier(kernel: Kernel) -> bool:
    """Whether nothing moves across it: it says so, or names no buffer that could tell."""
    return kernel.barrier or not (kernel.reads or kernel.writes)


def successors(kernels: Sequence[Kernel]) -> list[list[int]]:
    """For each kernel those that wait for it, each once; barriers are not counted in."""
    after: list[dict[int, None]] = [{} for _ in kernels]
    for edge in edges(kernels):
        if edge.source is not None and edge.target is not None:
            after[edge.source][edge.target] = None
    return [list(targets) for targets in after]


def serial_order(kernels: Sequence[Kernel]) -> list[int]:
    """The numbers of the kernels as they were recorded."""
    return list(range(len(kernels)))


def dependency_order(kernels: Sequence[Kernel]) -> list[int]:
    """The numbers of the kernels breadth first: ready ones, then the ones that these free, ...

    Every barrier keeps its place among the kernels before and after it.
    """
    after = successors(kernels)
    order: list[int] = []
    for stretch in _stretches(kernels):
        order += _breadth_first(stretch, after)
    return order


def _stretches(kernels: Sequence[Kernel]) -> Iterator[range]:
    """Barriers alone, and the kernels between two of them together."""
    start = 0
    for number, kernel in enumerate(kernels):
        if is_barrier(kernel):
            yield range(start, number)
            yield range(number, number + 1)
            start = number + 1
    yield range(start, len(kernels))


def _breadth_first(stretch: range, after: Sequence[Sequence[int]]) -> list[int]:
    waits_for = dict.fromkeys(stretch, 0)
    for number in stretch:
        for target in after[number]:
            if target in stretch:
                waits_for[target] += 1
    ready = deque(number for number in stretch if not waits_for[number])
    order = []
    while ready:
        number = ready.popleft()
        order.append(number)
        for target in after[number]:
            if target in stretch:
                waits_for[target] -= 1
                if not waits_for[target]:
                    ready.append(target)
    return order
