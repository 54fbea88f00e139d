"""The sums of one step, begun in one order on all ranks and finished in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.errors import CallOrderError, RankError, UnknownNameError, one_of
from singanet.ops import ops_for
from singanet.optimizer.wrapper import Handed
from singanet.parallel.communicator import Communicator, Request
from singanet.parallel.half import Halves
from singanet.parallel.order import Order
from singanet.params.gradients import dense_gradient
from singanet.params.param import Param
from singanet.types import Array, RowSparse

_KINDS = ("agree", "preview", "step")


@dataclass(frozen=True, slots=True)
class Said:
    """What all ranks have come for, "" where none has a batch; ``total`` of their weights."""

    kind: str
    refused: bool
    total: float


class Announcement:
    """What each rank comes for, told before anything else is: those without a batch listen."""

    def __init__(self, comm: Communicator, numbers: Array) -> None:
        self._comm = comm
        self._request: Request = comm.start_all_reduce(numbers, what="the start of a step")

    def wait(self) -> Said:
        """What was told, once all have. Errors: `RankError` where that is not one thing."""
        numbers = self._request.wait()
        came = [(k, int(n)) for k, n in zip(_KINDS, numbers, strict=False) if n]
        refused, summed, total = numbers[len(_KINDS) :]
        ranks = sum(n for _, n in came)
        if len(came) > 1 or summed not in (0, ranks):
            told = " and ".join(f"{n} for {kind!r}" for kind, n in came)
            raise RankError(
                f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                expected="all ranks at the same point of a step, with losses reduced alike",
                received=f"{told}, {int(summed)} with losses that are sums",
                advice="let all ranks run the same code with the same arguments",
            )
        kind = came[0][0] if came else ""
        return Said(kind, bool(refused), float(ranks and 1.0) if summed else float(total))


def announced(
    comm: Communicator, kind: str, count: float | None = 0.0, refused: bool = False
) -> Announcement:
    """Tell what this rank comes for: one of `_KINDS`, or nothing. ``count`` None is a sum."""
    came = [float(kind == each) for each in _KINDS]
    return Announcement(comm, np.array([*came, refused, count is None, count or 0.0]))


@dataclass(slots=True)
class _Flight:
    """The sum of one entry under way, and what it needs to be read."""

    params: list[Param]
    dense: list[Param]
    sums: Request | None
    rows: dict[str, tuple[Request, Request]]

    def test(self) -> None:
        """Carry it on."""
        for request in [self.sums, *(each for pair in self.rows.values() for each in pair)]:
            if request is not None:
                request.test()


class Round:
    """Takes this rank's gradients as they come, and hands out those of all ranks.

    Entries are begun in the `Order`, each once its gradients are there; in `rest` what is not
    there counts as zeros. A rank of weight 0 has none.
    """

    def __init__(
        self,
        comm: Communicator,
        order: Order,
        window: int,
        halves: Halves | None,
        announcement: Announcement,
        weight: float,
    ) -> None:
        self.comm, self.order, self.window, self.halves = comm, order, window, halves
        self.weight = weight
        self._announcement: Announcement | None = announcement
        self._factor = 0.0
        self._known = {param.name for param in order.params}
        self._given: dict[str, tuple[Any, float]] = {}
        self._gone: set[str] = set()
        self._entries = deque(order.entries)
        self._flying: deque[_Flight] = deque()
        self._idle = order.idle()
        self._learnt = False

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
        for flight in self._flying:
            flight.test()

    def rest(self) -> Iterator[Handed]:
        """Begin and hand out all that is left."""
        while self._entries:
            yield from self._next()
        if self._idle:
            # Whether somebody has reached what nobody had before.
            self._ask([param for layer in self._idle for param in layer])
            for layer in self._idle:
                self._start(layer)
        while self._flying:
            yield from self._land()
        self._heard()
        if self._learnt:
            self.order.group()

    def _next(self) -> Iterator[Handed]:
        """Begin the next entry, and hand out what the window is over.

        Ranks begin and wait in one order, whenever each has its gradients: none can wait for
        another that waits for it.
        """
        self._start(self._entries.popleft())
        while len(self._flying) > self.window:
            yield from self._land()

    def _heard(self) -> float:
        """What sums are multiplied by to be means."""
        if self._announcement is not None:
            total = self._announcement.wait().total
            self._factor, self._announcement = 1.0 / total if total else 0.0, None
        return self._factor

    def _ask(self, params: Sequence[Param]) -> None:
        """Let all ranks know how the gradients of ``params`` come."""
        counts = np.zeros((len(params), 2))
        for row, param in zip(counts, params, strict=True):
            if param.name in self._given and self.weight:
                row[int(isinstance(self._given[param.name][0], tuple))] = 1
        before = dict(self.order.kinds)
        what = f"which ranks reached {listed(params)}"
        self.order.learn(params, self.comm.all_reduce(counts, what=what))
        self._learnt |= before != self.order.kinds

    def _start(self, params: list[Param]) -> None:
        if self.order.unknown(params):
            self._ask(params)
        kinds = self.order.kinds
        rows = {p.name: self._gathered(p) for p in params if kinds[p.name] == "rows"}
        dense = [param for param in params if kinds[param.name] == "dense"]
        sums = None
        if dense:
            what = f"the gradients of {listed(dense)}"
            buffer = self._weighed(dense)
            sums = (
                self.comm.start_all_reduce(buffer, what=what)
                if self.halves is None
                else self.halves.start_sum(self.comm, buffer, what)
            )
        self._gone.update(param.name for param in params)
        if sums is not None or rows:
            self._flying.append(_Flight(params, dense, sums, rows))

    def _taken(self, param: Param) -> tuple[Any, float]:
        """The rank's own gradient of ``param``, None for none, and what it weighs."""
        grad, scale = self._given.pop(param.name, (None, 1.0))
        return (grad, self.weight * scale) if self.weight else (None, 0.0)

    def _weighed(self, params: Sequence[Param]) -> Array:
        """The weighed gradients side by side, and behind them which of them there are."""
        likes = [self.order.like(param) for param in params]
        buffer = np.zeros(sum(like.size for like in likes) + len(params), likes[0].dtype)
        start = 0
        for k, (param, like) in enumerate(zip(params, likes, strict=True)):
            grad, weight = self._taken(param)
            if grad is not None:
                ops = ops_for(like)
                if isinstance(grad, tuple):
                    grad = dense_gradient(ops, RowSparse(*grad), like.shape)
                part = buffer[start : start + like.size].reshape(like.shape)
                np.multiply(ops.host(grad), part.dtype.type(weight), out=part)
                buffer[k - len(params)] = 1
            start += like.size
        return buffer

    def _gathered(self, param: Param) -> tuple[Request, Request]:
        """The indices and weighed rows of all ranks, a −1 before those of a rank that has any."""
        grad, weight = self._taken(param)
        like = self.order.like(param)
        indices = np.empty(0, np.int64)
        rows = np.empty((0, *like.shape[1:]), like.dtype)
        if grad is not None:
            ops = ops_for(like)
            if not isinstance(grad, tuple):
                grad = np.arange(len(like)), grad
            indices = np.concatenate([[-1], ops.host(grad[0])]).astype(np.int64)
            rows = np.multiply(ops.host(grad[1]), like.dtype.type(weight), order="C")
        if self.halves is not None:
            rows = self.halves.rounded(rows)
        gather = self.comm.start_all_gather
        what = f"the rows of {param.name}"
        return gather(indices, what), gather(rows, what)

    def _land(self) -> Iterator[Handed]:
        """Hand out the sums that were begun first, of the parameters that any rank reached."""
        flight = self._flying.popleft()
        factor = self._heard()
        found: dict[str, Any] = {}
        if flight.sums is not None:
            buffer, start = flight.sums.wait(), 0
            for k, param in enumerate(flight.dense):
                like = self.order.like(param)
                if buffer[k - len(flight.dense)]:
                    part = buffer[start : start + like.size].reshape(like.shape)
                    found[param.name] = ops_for(like).xp.asarray(part)
                start += like.size
        for name, (indices, rows) in flight.rows.items():
            where = np.concatenate(indices.wait())
            if len(where):
                like = self.order.like(next(p for p in flight.params if p.name == name))
                value = np.concatenate(rows.wait()).astype(like.dtype, copy=False)
                found[name] = (where[where >= 0], value)
        params = [param for param in flight.params if param.name in found]
        for param in params:
            if isinstance(found[param.name], tuple):
                ops = ops_for(param.value)
                indices, rows = map(ops.xp.asarray, found[param.name])
                found[param.name] = RowSparse(*ops.sum_rows(indices, rows))
        if params and factor:
            names = [param.name for param in params]
            yield names, [param.value for param in params], [found[n] for n in names], factor


def listed(params: Sequence[Param]) -> str:
    """The first of ``params``, and how many more."""
    more = f" and {len(params) - 1} more" if len(params) > 1 else ""
    return f"{params[0].name}{more}" if params else "nothing"
