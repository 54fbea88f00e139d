"""The sums of one step, begun in one order on all ranks and finished in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.errors import CallOrderError, RankError, UnknownNameError, one_of
from singanet.ops import ops_for
from singanet.optimizer.reducer import Traffic
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Handed
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.communicators.half import Halves
from singanet.parallel.reductions.order import Order
from singanet.params.gradients import dense_gradient
from singanet.params.param import Param
from singanet.types import Array, RowSparse

_KINDS = ("agree", "count", "preview", "step")


@dataclass(frozen=True, slots=True)
class Said:
    """What all ranks have come for, "" where none has a batch, and what their gradients weigh.

    Where all weigh the same, ``even``, each weighs 1: that costs no product.
    """

    kind: str
    refused: bool
    even: bool
    factor: float


class Announcement:
    """What each rank comes for, told before anything else is: those without a batch listen."""

    def __init__(self, comm: Communicator, numbers: Array) -> None:
        self._comm = comm
        self._request: Request = comm.start_all_reduce(numbers, what="the start of a step")

    def test(self) -> bool:
        """Whether all have told."""
        return self._request.test()

    def wait(self) -> Said:
        """What was told, once all have. Errors: `RankError` where that is not one thing."""
        numbers = self._request.wait()
        came = [(k, int(n)) for k, n in zip(_KINDS, numbers, strict=False) if n]
        refused, summed, *weights = numbers[len(_KINDS) :].tolist()
        ranks = sum(n for _, n in came)
        if len(came) > 1 or summed not in (0, ranks):
            told = " and ".join(f"{n} for {kind!r}" for kind, n in came)
            raise RankError(
                f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                expected="all ranks at the same point of a step, with losses reduced alike",
                received=f"{told}, {int(summed)} with losses that are sums",
                advice="let all ranks run the same code with the same arguments",
            )
        if came and came[0][0] == "agree" and len({n for n in weights if n}) > 1:
            left = [int(n) for n in weights]
            raise RankError(
                f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                expected="as many micro-batches an update on all ranks, in mixed precision",
                received=f"{left} left of each rank's",
                advice="accumulate alike on all ranks; one without samples walks empty batches",
            )
        even = not summed and len(set(weights)) == 1 and weights[0] > 0
        total = 1.0 if summed else float(len(weights)) if even else sum(weights)
        # Where nothing counts, sums are of zeros.
        factor = 1.0 / total if total else 1.0
        return Said(came[0][0] if came else "", bool(refused), even, factor)


def announced(
    comm: Communicator, kind: str, count: float | None = 0.0, refused: bool = False
) -> Announcement:
    """Tell what this rank comes for: one of `_KINDS`, or nothing. ``count`` None is a sum.

    For "agree" it is how many micro-batches are left of the update, this one too.
    """
    came = [float(kind == each) for each in _KINDS]
    weights = [0.0] * comm.size
    weights[comm.rank] = count or 0.0
    return Announcement(comm, np.array([*came, refused, count is None, *weights]))


@dataclass(slots=True, eq=False)
class Flight:
    """The sum of one entry: of a flat ``buffer``, and of the ``rows`` of tables by their names.

    The ``buffer`` has the gradients of the ``dense`` parameters side by side, which are still to
    be multiplied by ``scales``, and behind them which of these there are.
    """

    params: list[Param]
    dense: list[Param]
    buffer: Array | None
    scales: Sequence[Scale]
    rows: Mapping[str, tuple[Array, Array, Scale]]
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


class Round:
    """Takes this rank's gradients as they come, and hands out those of all ranks.

    Entries are begun in the `Order`, each once its gradients are there and it is known what they
    weigh; in `rest` what is not there counts as zeros. A rank of weight 0 has none. Programs
    bring entries ready for their sums to `start`, and get them by `land`.
    """

    def __init__(
        self,
        comm: Communicator,
        order: Order,
        window: int,
        halves: Halves | None,
        announcement: Announcement,
        weight: float,
        traffic: Traffic,
    ) -> None:
        self.comm, self.order, self.window, self.halves = comm, order, window, halves
        self.weight = weight
        self.factor, self.ended = 0.0, False
        self._traffic = traffic
        self._announcement: Announcement | None = announcement
        self._known = {param.name for param in order.params}
        self._given: dict[str, tuple[Any, float]] = {}
        self._gone: set[str] = set()
        self._entries = deque(order.entries)
        self._flying: deque[Flight] = deque()
        self._busy: float | None = None
        self._idle = order.idle()
        self._learnt = False

    @property
    def share(self) -> float:
        """What this rank's gradients weigh in the means of all."""
        return self.weight * self.factor

    @property
    def scale(self) -> float:
        """What sums that are handed out are to be multiplied by, once it is known."""
        return self.factor

    @property
    def under_way(self) -> bool:
        """Whether anything was begun that did not land."""
        return bool(self._flying)

    # -- sums ---------------------------------------------------------------------------------

    def start(self, flight: Flight) -> None:
        """Begin ``flight``, once all ranks have told what their gradients weigh.

        So ranks begin everything in one order, what layers say to each other in between too.
        """
        self._hear()
        if self._busy is None:
            self._busy = time.perf_counter()
        self._begin(flight)
        self._flying.append(flight)

    def start_flat(self, params: list[Param], buffer: Array, scales: Sequence[Scale]) -> None:
        """Begin the entry of ``params``, whose dense gradients a program has in ``buffer``."""
        buffer[-len(params) :] = 1
        self.start(Flight(params, params, buffer, scales, {}))

    def finish_flat(self, buffer: Array) -> None:
        """Wait until ``buffer`` holds what all ranks have of the entry that was begun first."""
        flight = self.land()
        assert flight.sums is not None
        summed = flight.sums.wait()
        if summed is not buffer:
            buffer[...] = summed

    def test(self) -> None:
        """Carry on what is under way."""
        if self._announcement is not None:
            self._announcement.test()
        for flight in self._flying:
            if not flight.done and flight.test():
                self._arrived(flight)

    def land(self) -> Flight:
        """The flight that was begun first, done."""
        flight = self._flying.popleft()
        if not flight.done:
            began = time.perf_counter()
            for request in flight.requests():
                request.wait()
            self._traffic.waited += time.perf_counter() - began
            self._arrived(flight)
        return flight

    def close(self) -> None:
        """End the round: nothing is under way. What was announced is heard."""
        self._hear()
        self.ended = True

    def _arrived(self, flight: Flight) -> None:
        flight.done = True
        if self._busy is not None and all(other.done for other in self._flying):
            self._traffic.busy += time.perf_counter() - self._busy
            self._busy = None

    def _hear(self) -> None:
        """Learn what gradients weigh, and what sums are multiplied by to be means."""
        if self._announcement is not None:
            began = time.perf_counter()
            said = self._announcement.wait()
            waited = time.perf_counter() - began
            self._traffic.waited += waited
            self._traffic.busy += waited
            self._announcement = None
            self.factor = said.factor
            if said.even:
                self.weight = 1.0

    def _begin(self, flight: Flight) -> None:
        for name, (indices, rows, scale) in flight.rows.items():
            flight.gathered[name] = self._gathered(name, indices, rows, scale)
        buffer = flight.buffer
        if buffer is None:
            return
        what = f"the gradients of {listed(flight.dense)}"
        start = 0
        for param, scale in zip(flight.dense, flight.scales, strict=True):
            size = self.order.like(param).size
            part = buffer[start : start + size]
            weight = part.dtype.type(self.weight * float(scale))
            if not self.weight:
                part.fill(0)
            elif weight != 1:
                np.multiply(part, weight, out=part)
            start += size
        self._traffic.sums += 1
        self._traffic.nbytes += buffer.nbytes // (1 if self.halves is None else 2)
        flight.sums = (
            self.comm.start_all_reduce(buffer, what=what)
            if self.halves is None
            else self.halves.start_sum(self.comm, buffer, what)
        )

    def _gathered(
        self, name: str, indices: Array, rows: Array, scale: Scale
    ) -> tuple[Request, Request]:
        weight = rows.dtype.type(self.weight * float(scale))
        rows = np.multiply(rows, weight, order="C") if self.weight else np.zeros_like(rows)
        if self.halves is not None:
            rows = self.halves.rounded(rows)
        self._traffic.sums += 1
        self._traffic.nbytes += indices.nbytes + rows.nbytes
        gather = self.comm.start_all_gather
        what = f"the rows of {name}"
        return gather(indices, what), gather(rows, what)

    def rows_of(self, flight: Flight, name: str) -> tuple[Array, Array] | None:
        """Indices and rows of all ranks of a landed parameter, None where no rank has any."""
        indices, rows = flight.gathered[name]
        where = np.concatenate(indices.wait())
        if not len(where):
            return None
        like = self.order.like(next(p for p in flight.params if p.name == name))
        value = np.concatenate(rows.wait()).astype(like.dtype, copy=False)
        return where[where >= 0], value

    # -- by the layers ------------------------------------------------------------------------

    def give(self, names: Sequence[str], grads: Sequence[Any], scale: float) -> None:
        """Take the gradients of a layer; None is none. Errors: unknown names, or known twice."""
        for name, grad in zip(names, grads, strict=True):
            if name not in self._known:
                raise UnknownNameError(
                    f"AllReduce, parameter {name!r}",
                    expected=f"one of {one_of(sorted(self._known), 6)}",
                    received=repr(name),
                    advice="call meet(net) on all ranks with the net that is trained",
                )
            if name in self._given or name in self._gone:
                raise CallOrderError(
                    f"AllReduce, parameter {name!r}",
                    expected="one gradient a step",
                    received="a second one",
                    advice="call end() after the last update of each step",
                )
            if grad is not None:
                self._given[name] = grad, scale

    def finished(self) -> Iterator[Handed]:
        """Begin what is complete, carry on what flies, and hand out what the window is over."""
        while self._entries and all(p.name in self._given for p in self._entries[0]):
            yield from self._next()
        self.test()

    def rest(self) -> Iterator[Handed]:
        """Begin and hand out all that is left."""
        while self._entries:
            yield from self._next()
        if self._idle:
            # Whether somebody has reached what nobody had before.
            self._ask([param for layer in self._idle for param in layer])
            for layer in self._idle:
                self._start(layer)
        while self.under_way:
            yield from self._land()
        self.close()
        if self._learnt:
            self.order.group()

    def sums(self, items: Iterable[Any]) -> Iterator[Any]:
        """For the gradients ``items`` of this rank, layer by layer, those of all ranks."""
        for names, _, grads in items:
            self.give(names, grads, 1.0)
            # As the walk itself: one layer's gradients are let go before the next one's exist.
            del names, grads
            for handed in self.finished():
                yield _scaled(*handed)
        for handed in self.rest():
            yield _scaled(*handed)

    def _next(self) -> Iterator[Handed]:
        """Begin the next entry, and hand out what the window is over.

        Ranks begin and wait in one order, whenever each has its gradients: none can wait for
        another that waits for it.
        """
        self._start(self._entries.popleft())
        while len(self._flying) > self.window:
            yield from self._land()

    def _ask(self, params: Sequence[Param]) -> None:
        """Let all ranks know how the gradients of ``params`` come."""
        counts = np.zeros((len(params), 2))
        for row, param in zip(counts, params, strict=True):
            if param.name in self._given:
                row[int(isinstance(self._given[param.name][0], tuple))] = 1
        before = dict(self.order.kinds)
        what = f"which ranks reached {listed(params)}"
        self.order.learn(params, self.comm.all_reduce(counts, what=what))
        self._learnt |= before != self.order.kinds

    def _start(self, params: list[Param]) -> None:
        if self.order.unknown(params):
            self._ask(params)
        kinds = self.order.kinds
        rows = {p.name: self._rows(p) for p in params if kinds[p.name] == "rows"}
        dense = [param for param in params if kinds[param.name] == "dense"]
        buffer, scales = self._laid(dense) if dense else (None, [])
        self._gone.update(param.name for param in params)
        if buffer is not None or rows:
            self.start(Flight(params, dense, buffer, scales, rows))

    def _laid(self, params: Sequence[Param]) -> tuple[Array, list[float]]:
        """The gradients side by side, and behind them which of them there are; their scales."""
        likes = [self.order.like(param) for param in params]
        there = self.comm.on_device and self.halves is None
        xp = ops_for(likes[0]).xp if there else np
        buffer = xp.zeros(sum(like.size for like in likes) + len(params), likes[0].dtype)
        start, scales = 0, []
        for k, (param, like) in enumerate(zip(params, likes, strict=True)):
            grad, scale = self._given.pop(param.name, (None, 1.0))
            scales.append(scale)
            if grad is not None:
                ops = ops_for(like)
                if isinstance(grad, tuple):
                    grad = dense_gradient(ops, RowSparse(*grad), like.shape)
                part = buffer[start : start + like.size].reshape(like.shape)
                part[...] = grad if there else ops.host(grad)
                buffer[k - len(params)] = 1
            start += like.size
        return buffer, scales

    def _rows(self, param: Param) -> tuple[Array, Array, float]:
        """The indices and rows of this rank, a −1 before those of one that has any."""
        grad, scale = self._given.pop(param.name, (None, 1.0))
        like = self.order.like(param)
        if grad is None:
            return np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype), scale
        ops = ops_for(like)
        if not isinstance(grad, tuple):
            grad = np.arange(len(like)), grad
        return *marked(ops.host(grad[0]), ops.host(grad[1]).astype(like.dtype, copy=False)), scale

    def _land(self) -> Iterator[Handed]:
        """Hand out the sums that were begun first, of the parameters that any rank reached."""
        flight = self.land()
        found: dict[str, Any] = {}
        if flight.sums is not None:
            buffer, start = flight.sums.wait(), 0
            for k, param in enumerate(flight.dense):
                like = self.order.like(param)
                if buffer[k - len(flight.dense)]:
                    part = buffer[start : start + like.size].reshape(like.shape)
                    found[param.name] = ops_for(like).xp.asarray(part)
                start += like.size
        for name in flight.rows:
            gathered = self.rows_of(flight, name)
            if gathered is not None:
                ops = ops_for(self.order.by_name[name].value)
                indices, rows = map(ops.xp.asarray, gathered)
                found[name] = RowSparse(*ops.sum_rows(indices, rows))
        params = [param for param in flight.params if param.name in found]
        if params:
            names = [param.name for param in params]
            yield names, [param.value for param in params], [found[n] for n in names], self.factor


def _scaled(
    names: Sequence[str], values: Sequence[Array], grads: Sequence[Any], factor: Any
) -> tuple[Sequence[str], Sequence[Array], list[Any]]:
    """What was handed on, with the factor in the gradients, which are nobody else's."""
    for grad in grads:
        array = grad[1] if isinstance(grad, tuple) else grad
        array *= array.dtype.type(factor)
    return names, values, list(grads)


def marked(indices: Array, rows: Array) -> tuple[Array, Array]:
    """What a rank that has ``rows`` sends: others see that it has, even if there are none."""
    return np.concatenate([[-1], indices]).astype(np.int64), rows


def listed(params: Sequence[Param]) -> str:
    """The first of ``params``, and how many more."""
    more = f" and {len(params) - 1} more" if len(params) > 1 else ""
    return f"{params[0].name}{more}" if params else "nothing"
