"""The sums of one step, of the few elements that each rank sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Handed
from singanet.parallel.reductions.round import Round, listed
from singanet.parallel.reductions.unsent import Unsent
from singanet.params.param import Param
from singanet.types import Array, RowSparse

Choice = Callable[[Array, int], Array]
"""``choice(values, count)``: the rising places to send of flat ``values``, ``count`` known."""

_NONE, _DENSE = -1, 0
"""How a rank's gradient of a parameter comes; above 0 are rows, one less than the number."""


@dataclass(slots=True, eq=False)
class _Flight:
    """The messages of one entry under way."""

    params: list[Param]
    request: Any
    done: bool = False

    def requests(self) -> Iterator[Any]:
        """What it was begun by."""
        yield self.request

    def test(self) -> bool:
        """Carry it on; whether it is done."""
        return bool(self.request.test())


class SparseRound(Round):
    """A `Round` to which each rank gives some elements of an entry, all in one message.

    A message is the number of elements and a number a parameter (int32), the places of the
    elements in the entry laid end to end (uint32), and their values; then of each row-sparse
    gradient the indices (int64) and the rows, which are sent whole. All ranks add up all messages
    in the order of ranks, and so have the same bits. What a rank has not reached it sends
    nothing of.
    """

    def __init__(self, *args: Any, unsent: Unsent, choice: Choice, keep: bool) -> None:
        super().__init__(*args)
        self.unsent, self.choice, self.keep = unsent, choice, keep

    @property
    def scale(self) -> float:
        """As `Round`: messages are weighed before."""
        return 1.0

    def close(self) -> None:
        """As `Round`; where it is no preview, a step of what is kept."""
        super().close()
        if self.keep:
            self.unsent.steps += 1

    def start_flat(self, params: list[Param], buffer: Array, scales: Sequence[Scale]) -> None:
        start = 0
        for param, scale in zip(params, scales, strict=True):
            like = self.order.like(param)
            start, begin = start + like.size, start
            self._given[param.name] = buffer[begin:start].reshape(like.shape), float(scale)
        self._start(params)

    def finish_flat(self, buffer: Array) -> None:
        for _, _, grads, _ in self._land():
            dense: Any = grads  # what was given so is
            parts = np.concatenate([grad.reshape(-1) for grad in dense])
            buffer[: parts.size] = parts

    def _start(self, params: list[Param]) -> None:
        # What was not sent belongs to the mean of its own step.
        self._hear()
        message = self._message(params)
        self._gone.update(param.name for param in params)
        self._traffic.sums += 1
        self._traffic.nbytes += message.nbytes
        if self._busy is None:
            self._busy = time.perf_counter()
        request = self.comm.start_all_gather(message, f"the gradients of {listed(params)}")
        self._flying.append(_Flight(params, request))  # type: ignore[arg-type]

    def _message(self, params: Sequence[Param]) -> Array:
        """What this rank tells the others of an entry, as bytes."""
        factor = self.weight * self.factor
        codes, parts, rows, count = [], [], [], 0
        for param in params:
            like = self.order.like(param)
            grad, scale = self._given.pop(param.name, (None, 1.0))
            rows_of = isinstance(grad, tuple)
            if grad is None or not (self.weight or rows_of):
                # What weighs nothing is there, and nothing of it is sent but which rows it has.
                codes.append(_NONE if grad is None else _DENSE)
                parts.append(np.zeros(like.size, like.dtype))
                continue
            host = ops_for(like).host
            if rows_of:
                own = np.multiply(host(grad[1]), like.dtype.type(scale * factor), order="C")
                codes.append(len(own) + 1)
                parts.append(np.zeros(like.size, like.dtype))
                rows += [host(grad[0]).astype(np.int64), own]
                continue
            codes.append(_DENSE)
            given = host(grad).astype(like.dtype, copy=False)
            alone = self.comm.size == 1
            parts.append(self.unsent.plus(param.name, given, scale * factor, self.keep, alone))
            count += like.size
        offered = parts[0] if len(parts) == 1 else np.concatenate(parts)
        places = self.choice(offered, count) if count else np.empty(0, np.int64)
        values = offered[places].astype(self.order.like(params[0]).dtype, copy=False)
        if self.keep and self.weight and self.comm.size > 1:
            self._sent(params, codes, parts, places)
        head = np.array([len(places), *codes], np.int32)
        pieces = [head, places.astype(np.uint32), values, *rows]
        return np.concatenate([np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in pieces])

    def _sent(
        self, params: Sequence[Param], codes: list[int], parts: list[Array], places: Array
    ) -> None:
        """Of the elements at ``places`` nothing is left to send."""
        start = 0
        for param, code, part in zip(params, codes, parts, strict=True):
            stop = start + part.size
            if code == _DENSE:
                first, last = np.searchsorted(places, (start, stop))
                self.unsent.drop(param.name, places[first:last] - start)
            start = stop

    def _land(self) -> Iterator[Handed]:
        """Hand out the sums that were begun first, of the parameters that any rank reached."""
        flight: Any = self.land()
        params: list[Param] = flight.params
        likes = [self.order.like(param) for param in params]
        heard = [_Message(part, likes) for part in flight.request.wait()]
        total = None
        if any(code == _DENSE for each in heard for code in each.codes):
            total = np.zeros(sum(like.size for like in likes), likes[0].dtype)
            for each in heard:
                total[each.places] += each.values
        found, start = {}, 0
        for k, (param, like) in enumerate(zip(params, likes, strict=True)):
            start, begin = start + like.size, start
            dense = total is not None and any(each.codes[k] == _DENSE for each in heard)
            rows = [each.rows[k] for each in heard if k in each.rows]
            ops = ops_for(like)
            if total is not None and dense:
                part = total[begin:start].reshape(like.shape).astype(like.dtype, copy=False)
                for indices, values in rows:
                    part[indices] += values
                found[param.name] = ops.xp.asarray(part)
            elif rows:
                parts = [np.concatenate(each) for each in zip(*rows, strict=True)]
                found[param.name] = RowSparse(*ops.sum_rows(*map(ops.xp.asarray, parts)))
        reached = [param for param in params if param.name in found]
        if reached:
            names = [param.name for param in reached]
            yield names, [param.value for param in reached], [found[n] for n in names], 1.0


class _Message:
    """What one rank has told of an entry whose gradients are as ``likes``."""

    def __init__(self, message: Array, likes: Sequence[Array]) -> None:
        self._message, self._start = message, 0
        head = self._read((len(likes) + 1,), np.int32)
        self.codes = head[1:]
        count = (int(head[0]),)
        self.places = self._read(count, np.uint32)
        self.values = self._read(count, likes[0].dtype)
        self.rows: dict[int, tuple[Array, Array]] = {}
        for k, (code, like) in enumerate(zip(self.codes, likes, strict=True)):
            if code > _DENSE:
                indices = self._read((int(code) - 1,), np.int64)
                self.rows[k] = indices, self._read((int(code) - 1, *like.shape[1:]), like.dtype)

    def _read(self, shape: tuple[int, ...], dtype: Any) -> Array:
        found = np.frombuffer(self._message, dtype, prod(shape), self._start)
        self._start += found.nbytes
        return found.reshape(shape)
