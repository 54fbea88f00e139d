"""The sums of one step, begun in one order on all ranks and finished in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.errors import CallOrderError
from singanet.ops import ops_for
from singanet.optimizer.reduction import Found, Reduction, RoundKind
from singanet.optimizer.scale import Scale
from singanet.optimizer.traffic import Traffic
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.communicators.half import Halves
from singanet.parallel.reductions.announcement import Announcement, announced
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.params.gradients import dense_gradient
from singanet.types import Array, RowSparse


@dataclass(slots=True, eq=False)
class Flight:
    """An entry under way: the sum of its ``buffer``, and the rows of tables by their names."""

    sums: Request | None = None
    gathered: dict[str, tuple[Request, Request]] = field(default_factory=dict)
    done: bool = False

    def requests(self) -> Iterator[Request]:
        """What it was begun by."""
        if self.sums is not None:
            yield self.sums
        for pair in self.gathered.values():
            yield from pair

    def test(self) -> bool:
        """Carry it on; whether it is done."""
        # Each is carried on by being asked.
        waiting = [request for request in self.requests() if not request.test()]
        return not waiting


class Round(Reduction):
    """Sums over the ranks of ``owner``, one round after the other.

    Entries are those of the `Order`, begun once it is known what gradients weigh; what is not there
    counts as zeros. A rank that comes by `join` has none, and weight 0.
    """

    def __init__(self, owner: RankReducer, window: int, halves: Halves | None = None) -> None:
        self._owner, self.order = owner, owner.order
        self.window, self.halves, self.traffic = window, halves, Traffic()
        self.weight = self.mean = 1.0
        self.forget()

    def forget(self) -> None:
        """Begin anew, though the round before has no end."""
        self._ended = True
        self._announcement: Announcement | None = None
        self._flying: deque[Flight] = deque()
        self._busy: float | None = None
        self._learnt = False

    @property
    def comm(self) -> Communicator:
        """The communicator of the ranks."""
        return self._owner.comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def entries(self) -> Sequence[Sequence[str]]:
        return self.order.entries

    @property
    def settled(self) -> bool:
        """As `Reduction`: all ranks know how the gradients of all parameters come."""
        return self._owner.has_met and self.order.is_settled()

    @property
    def share(self) -> float:
        return self.weight * self.mean

    @property
    def factor(self) -> float:
        return self.mean

    @property
    def under_way(self) -> bool:
        return bool(self._flying)

    def value(self, name: str) -> Array:
        return self.order.by_name[name].value

    def like(self, name: str) -> Array:
        return self.order.like(self.order.by_name[name])

    def is_rows(self, name: str) -> bool:
        return self.order.kinds.get(name) == "rows"

    def module(self, like: Array) -> Any:
        """As `Reduction`; that of the device, where the communicator takes arrays from there."""
        there = self.comm.on_device and self.halves is None
        return ops_for(like).xp if there else np

    # -- a round ------------------------------------------------------------------------------

    def open(self, kind: RoundKind) -> None:
        """As `Reduction`. Errors: `CallOrderError` where the round before did not end."""
        self._owner.expect_begun()
        if not self._ended:
            raise CallOrderError(
                "AllReduce",
                expected="the end of the step before",
                received="another step: that one was left by an error, and others may wait in it",
                advice="end all ranks, and go on from a checkpoint",
            )
        count = self._owner.count
        self._begin(announced(self.comm, kind, count), 1.0 if count is None else float(count))

    def join(self, heard: Announcement) -> None:
        """Take part in the others' round, which was ``heard`` of, without gradients."""
        self._begin(heard, 0.0)

    def _begin(self, announcement: Announcement, weight: float) -> None:
        self._announcement, self.weight, self._ended = announcement, weight, False

    def prepare(self, names: Sequence[str], given: Mapping[str, Any]) -> Sequence[str]:
        kinds = self.order.kinds
        if self.order.unknown(names):
            self._ask(names, given)
        return [name for name in names if kinds[name] != "idle"]

    def late(self, gone: Collection[str], given: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """As `Reduction`: whether somebody has reached what nobody had before is asked."""
        idle = [[name for name in layer if name not in gone] for layer in self.order.idle()]
        if any(idle):
            self._ask([name for layer in idle for name in layer], given)
        return idle

    def _ask(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """Let all ranks know how the gradients of ``names`` come."""
        counts = np.zeros((len(names), 2))
        for row, name in zip(counts, names, strict=True):
            if name in given:
                row[int(isinstance(given[name][0], tuple))] = 1
        before = dict(self.order.kinds)
        what = f"which ranks reached {listed(names)}"
        self.order.learn(names, self.comm.all_reduce(counts, what=what))
        self._learnt |= before != self.order.kinds

    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """As `Reduction`, once all ranks have told what their gradients weigh.

        So ranks begin everything in one order, what layers say to each other in between too.
        """
        self._hear()
        if self._busy is None:
            self._busy = time.perf_counter()
        self._flying.append(self._begun(names, buffer, scales, rows))

    def _begun(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> Flight:
        """What begins an entry."""
        of = dict(zip(names, scales, strict=True))
        flight = Flight()
        for name in filter(self.is_rows, names):
            flight.gathered[name] = self._gathered(name, rows.get(name), of[name])
        parts = self.parts(names, buffer)
        for name, part in parts.items():
            if name in rows:
                self.lay(part, dense_gradient(ops_for(self.like(name)), rows[name], part.shape))
            self._weigh(part, of[name])
        if buffer is not None:
            for k, name in enumerate(parts):
                buffer[k - len(parts)] = of[name] is not None
            flight.sums = self._summed(names, buffer, f"the gradients of {listed([*parts])}")
        return flight

    def _weigh(self, part: Array, scale: Scale | None) -> None:
        weight = part.dtype.type(self.weight * float(1.0 if scale is None else scale))
        if not self.weight:
            part.fill(0)
        elif weight != 1:
            np.multiply(part, weight, out=part)

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        """What sums the ``buffer`` of the gradients ``names``, and of one element for each."""
        self.count(buffer.nbytes // (1 if self.halves is None else 2))
        if self.halves is None:
            return self.comm.start_all_reduce(buffer, what=what)
        return self.halves.start_sum(self.comm, buffer, what)

    def _gathered(
        self, name: str, grad: RowSparse | None, scale: Scale | None
    ) -> tuple[Request, Request]:
        """Begin to gather the rows of all ranks, a −1 before the indices of one that has any."""
        like = self.like(name)
        ops = ops_for(like)
        indices, rows = np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype)
        if grad is not None:
            indices = np.concatenate([[-1], ops.host(grad.indices)]).astype(np.int64)
            rows = ops.host(grad.rows).astype(like.dtype, copy=False)
        weight = rows.dtype.type(self.weight * float(1.0 if scale is None else scale))
        rows = np.multiply(rows, weight, order="C") if self.weight else np.zeros_like(rows)
        if self.halves is not None:
            rows = self.halves.rounded(rows)
        self.count(indices.nbytes + rows.nbytes)
        gather, what = self.comm.start_all_gather, f"the rows of {name}"
        return gather(indices, what), gather(rows, what)

    def count(self, nbytes: int) -> None:
        """Count a message of so many bytes."""
        self.traffic.sums += 1
        self.traffic.nbytes += nbytes

    def test(self) -> None:
        if self._announcement is not None:
            self._announcement.test()
        for flight in self._flying:
            if not flight.done and flight.test():
                self._arrived(flight)

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        flight = self._land()
        dense = [name for name in names if name not in flight.gathered]
        there: dict[str, Any] = {}
        if buffer is not None and flight.sums is not None:
            summed = flight.sums.wait()
            if summed is not buffer:
                buffer[...] = summed
            there = dict(zip(dense, buffer[-len(dense) :].tolist(), strict=True))
        return [
            bool(there[name]) if name in there else self._rows_of(flight, name) for name in names
        ]

    def _rows_of(self, flight: Flight, name: str) -> RowSparse | None:
        """The rows of all ranks, None where no rank has any."""
        indices, rows = flight.gathered[name]
        where = np.concatenate(indices.wait())
        if not len(where):
            return None
        like = self.like(name)
        ops = ops_for(like)
        value = np.concatenate(rows.wait()).astype(like.dtype, copy=False)
        return RowSparse(*ops.sum_rows(ops.xp.asarray(where[where >= 0]), ops.xp.asarray(value)))

    def close(self, kind: RoundKind) -> None:
        """As `Reduction`: what was announced is heard."""
        self._hear()
        self._ended = True
        if self._learnt:
            self._learnt = False
            self.order.group()
        if kind == "step":
            self._owner.ended()

    def _land(self) -> Any:
        """The flight that was begun first, done."""
        flight = self._flying.popleft()
        if not flight.done:
            began = time.perf_counter()
            for request in flight.requests():
                request.wait()
            self.traffic.waited += time.perf_counter() - began
            self._arrived(flight)
        return flight

    def _arrived(self, flight: Flight) -> None:
        flight.done = True
        if self._busy is not None and all(other.done for other in self._flying):
            self.traffic.busy += time.perf_counter() - self._busy
            self._busy = None

    def _hear(self) -> None:
        """Learn what gradients weigh, and what sums are multiplied by to be means."""
        if self._announcement is not None:
            began = time.perf_counter()
            said = self._announcement.wait()
            waited = time.perf_counter() - began
            self.traffic.waited += waited
            self.traffic.busy += waited
            self._announcement = None
            self.mean = said.factor
            if said.even:
                self.weight = 1.0


def listed(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else "nothing"
