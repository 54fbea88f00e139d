"""Functions that LLVM compiled as plans beside those of oneDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from singanet.ops.onednn.builder import Builder
from singanet.ops.workers import cuts
from singanet.types import Parts, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

Stages = Sequence[Sequence[tuple[int, ...]]]
"""The numbers of calls: those of a stage are made side by side, one stage after the other."""


def shared(numbers: tuple[int, ...], counts: Sequence[int], threads: int) -> Stages:
    """Calls with ``numbers`` and after them a range for each stage, of so many parts.

    One call is of all stages; of several threads each has the parts of one.
    """
    if threads == 1:
        return [[(*numbers, *chain.from_iterable((0, count) for count in counts))]]
    stages = []
    for stage, count in enumerate(counts):
        before, after = (0, 0) * stage, (0, 0) * (len(counts) - stage - 1)
        calls = [(*numbers, *before, *cut, *after) for cut in cuts(count, threads)]
        stages += [calls] * bool(calls)
    return stages


class CompiledPlan:
    """A plan like `KernelPlan`: calls of a function of operands, of scratch if any, and numbers."""

    open, rounded = frozenset[int](), frozenset[int]()

    def __init__(
        self,
        build: Builder,
        function: CompiledFunction,
        stages: Stages,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        scratch: int = 0,
    ) -> None:
        self._call = function.briefly if build.brief else function.at_length
        self._stages, self._side_by_side = stages, build.side_by_side
        self.threads = max(map(len, stages))
        self.reads, self.writes, self.scratch = reads, writes, scratch
        self.sizes = (0,) * len({*reads, *writes})

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """See `KernelPlan`."""
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCalls:
        """See `KernelPlan`."""
        given = (*addresses, scratch) if self.scratch else tuple(addresses)
        stages = [
            [CompiledCall(self._call, (*given, *numbers)) for numbers in stage]
            for stage in self._stages
        ]
        return CompiledCalls(stages, self._side_by_side)


class CompiledCall:
    """A call with arguments that stay."""

    def __init__(self, function: Callable[[object], None], given: tuple[int, ...]) -> None:
        self.given = (ctypes.c_int64 * len(given))(*given)
        self.call = partial(function, ctypes.c_void_p(ctypes.addressof(self.given)))


class CompiledCalls:
    """The calls of stages; they leave OpenMP's threads as they are."""

    threads = 0

    def __init__(
        self, stages: list[list[CompiledCall]], side_by_side: Callable[[Parts], None]
    ) -> None:
        self.stages = stages
        self._parts: list[Work] = []
        for stage in stages:
            parts = [[each.call] for each in stage]
            self._parts.append(parts[0][0] if len(parts) == 1 else partial(side_by_side, parts))

    def __call__(self) -> None:
        """Make them."""
        for part in self._parts:
            part()

    def after(self, threads: int) -> list[Work]:
        """See `Calls`."""
        return self._parts
