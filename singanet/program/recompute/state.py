"""Which kernels run again and when, with the bytes that are needed at each moment."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np

from singanet.program.layout.liveness import Ints
from singanet.program.recompute.flow import Flow

MOST_KERNELS = 1000
"""Kernels that may run again for one buffer, so that long recurrent layers are given up early."""


class CannotRepeatError(Exception):
    """What was to be made again needs what is gone, or must not run twice."""


class RecomputeState:
    """Buffers that are dropped after the forward pass, and the kernels that make them again.

    A kernel runs at most once more: ``slot`` tells before which kernel. What it writes then is a
    buffer of its own, the copy of the one it wrote first; ``through`` holds the pairs (kernel,
    buffer) of repeated kernels that read a copy. All readers of the backward pass take the copy
    of what is in ``dropped``. ``live`` are the bytes needed at each moment of `Flow`; ``most``
    limits the passes of what runs again.
    """

    def __init__(self, flow: Flow, most: int) -> None:
        self.flow = flow
        self.most = most
        self.slot: dict[int, int] = {}
        self.dropped: set[int] = set()
        self.through: set[tuple[int, int]] = set()
        self.cost = 0
        self._at: dict[int, tuple[int, ...]] = {}
        self._readers: dict[int, tuple[int, ...]] = {}
        self._copied: dict[int, tuple[int, ...]] = {}
        self._spans: dict[tuple[int, bool], tuple[int, int]] = {}
        self._inside: dict[int, int] = {}
        self._touched: set[int] = set()
        self._slots: set[int] = set()
        self._waiting: list[tuple[int, int]] = []
        self.live: Ints = np.zeros(2 * len(flow.kernels) + 2, np.int64)
        for buffer, uses in enumerate(flow.uses):
            if flow.planned[buffer] and uses:
                self._lie(buffer, False, (2 * uses[0] + 1, flow.end(buffer, uses[-1])))

    def copy(self) -> RecomputeState:
        """Another one, to try something on."""
        made = copy.copy(self)
        made.slot, made._at = self.slot.copy(), self._at.copy()
        made.dropped, made.through = self.dropped.copy(), self.through.copy()
        made._readers, made._copied = self._readers.copy(), self._copied.copy()
        made._spans, made._inside = self._spans.copy(), self._inside.copy()
        made.live = self.live.copy()
        return made

    @property
    def peak(self) -> int:
        """The most bytes that are needed at a moment."""
        return int(self.live.max(initial=0))

    def drop(self, buffer: int) -> None:
        """Drop ``buffer`` after the forward pass and make it again for the backward pass.

        Errors: `CannotRepeatError`, after which the state is to be thrown away.
        """
        self._touched, self._slots, self._waiting = {buffer}, set(), []
        flow, readers = self.flow, self._readers.pop(buffer, ())
        self.dropped.add(buffer)
        waiting = [at for at in readers if self._is_gone(buffer, self.slot[at])]
        self._readers[buffer] = tuple(at for at in readers if at not in waiting)
        back = flow.uses[buffer][flow.split[buffer]]
        self.through.update((at, buffer) for at in waiting)
        self._copied[buffer] = (*self._copied.get(buffer, ()), *waiting)
        self._make(buffer, back, min([back, *(self.slot[at] for at in waiting)]))
        known = len(self.slot)
        while self._waiting:
            self._run(*self._waiting.pop())
            if len(self.slot) - known > MOST_KERNELS:
                raise CannotRepeatError
        self._settle()

    # -- what has to run ----------------------------------------------------------------------

    def _make(self, buffer: int, before: int, slot: int) -> None:
        """Run again what ``buffer`` held at kernel ``before``."""
        # In a list, not by recursion: states of recurrent layers are made by thousands in a row.
        self._waiting += [(at, slot) for at in self.flow.makers(buffer, before)]

    def _run(self, at: int, slot: int) -> None:
        now = self.slot.get(at)
        if now is not None and now <= slot:
            return
        flow, kernel = self.flow, self.flow.kernels[at]
        if not flow.may(at, self.most):
            raise CannotRepeatError
        if now is None:
            self.cost += flow.cost(at)
        else:
            self._at[now] = tuple(other for other in self._at[now] if other != at)
            self._slots.add(now)
        self.slot[at] = slot
        self._at[slot] = (*self._at.get(slot, ()), at)
        self._slots.add(slot)
        self._touched.update(kernel.writes)
        for buffer in kernel.reads:
            self._touched.add(buffer)
            self._give(buffer, at, slot)

    def _is_gone(self, buffer: int, slot: int) -> bool:
        """Whether ``buffer`` is dropped by then."""
        flow = self.flow
        return buffer in self.dropped and flow.uses[buffer][flow.split[buffer] - 1] < slot

    def _give(self, buffer: int, at: int, slot: int) -> None:
        """Find what kernel ``at``, which runs again in ``slot``, read from ``buffer``."""
        flow = self.flow
        gone = self._is_gone(buffer, slot) or (at, buffer) in self.through
        gone = gone or buffer in flow.kernels[at].writes or flow.changed(buffer, at, slot)
        if not flow.planned[buffer]:
            if gone:
                raise CannotRepeatError
            return
        if not gone and self._span(buffer, False)[1] < 2 * slot:
            # Small things stay; what cannot be made again has to.
            small = 16 * flow.size[buffer] <= max(flow.size[b] for b in flow.kernels[at].writes)
            gone = not small and flow.makes_again(buffer, at, self.most)
        if not gone:
            if at not in self._readers.get(buffer, ()):
                self._readers[buffer] = (*self._readers.get(buffer, ()), at)
            return
        if (at, buffer) not in self.through:
            self.through.add((at, buffer))
            self._copied[buffer] = (*self._copied.get(buffer, ()), at)
        self._make(buffer, at, slot)

    # -- what that needs ----------------------------------------------------------------------

    def _settle(self) -> None:
        """Check the order of what was touched, and count its bytes."""
        for buffer in self._touched:
            self._expect_order(buffer)
            if self.flow.planned[buffer]:
                for again in (False, True):
                    self._lie(buffer, again, self._span(buffer, again))
        for slot in self._slots | {self.slot[at] for b in self._touched for at in self._users(b)}:
            inside = self._needed_inside(slot)
            self.live[2 * slot] += inside - self._inside.get(slot, 0)
            self._inside[slot] = inside

    def _users(self, buffer: int) -> Iterable[int]:
        """The repeated kernels that write or read the copy of ``buffer``."""
        made = (at for at in self.flow.writers[buffer] if at in self.slot)
        return {*made, *self._copied.get(buffer, ())}

    def _expect_order(self, buffer: int) -> None:
        """Readers of the copy find what they found at first."""
        readers = set(self._copied.get(buffer, ()))
        written = latest = -1
        for at in sorted(self._users(buffer)):
            slot, writes = self.slot[at], buffer in self.flow.kernels[at].writes
            if slot < (latest if writes else written):
                raise CannotRepeatError
            latest = max(latest, slot)
            written = max(written, slot) if writes else written
        if buffer in self.dropped and readers:
            # The backward pass may write into the copy that it gets.
            back = self.flow.uses[buffer][self.flow.split[buffer]] - 1
            if any(self.flow.changed(buffer, back, self.slot[at]) for at in readers):
                raise CannotRepeatError

    def _span(self, buffer: int, again: bool) -> tuple[int, int]:
        """The moments from which to which ``buffer`` is needed, or its copy."""
        flow, uses = self.flow, self.flow.uses[buffer]
        if again:
            slots = [2 * self.slot[at] for at in self._users(buffer)]
            if not slots:
                return 0, -1
            if buffer in self.dropped:
                slots.append(flow.end(buffer, uses[-1]))
            return min(slots), max(slots)
        last = uses[flow.split[buffer] - 1] if buffer in self.dropped else uses[-1]
        waits = [2 * self.slot[at] for at in self._readers.get(buffer, ())]
        return 2 * uses[0] + 1, max([flow.end(buffer, last), *waits])

    def _lie(self, buffer: int, again: bool, span: tuple[int, int]) -> None:
        """Count the bytes of ``buffer`` or its copy from one moment to another."""
        key, size = (buffer, again), self.flow.size[buffer]
        first, last = self._spans.get(key, (0, -1))
        # What lives and dies between two kernels is counted there.
        self.live[first : last + 1] -= size if first < last or not again else 0
        self._spans[key] = first, last = span
        self.live[first : last + 1] += size if first < last or not again else 0

    def _needed_inside(self, slot: int) -> int:
        """The most bytes of copies that the kernels of ``slot`` make for each other alone."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        kernels, inside = self.flow.kernels, sorted(self._at.get(slot, ()))
        for step, at in enumerate(inside):
            copies = [b for b in kernels[at].reads if (at, b) in self.through]
            for buffer in (*copies, *kernels[at].writes):
                if self._spans[buffer, True] == (2 * slot, 2 * slot):
                    first.setdefault(buffer, step)
                    last[buffer] = step
        change = np.zeros(len(inside) + 1, np.int64)
        for buffer, step in first.items():
            change[step] += self.flow.size[buffer]
            end = inside[last[buffer]]
            change[last[buffer] + (self.flow.end(buffer, end) > 2 * end)] -= self.flow.size[buffer]
        return int(np.cumsum(change).max(initial=0))
