"""The parts of parameters that this rank updates, and what it tells the others of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.cutting import Cutting
from singanet.optimizer.scale import on_host
from singanet.parallel.communicators.communicator import Communicator, Done, Request
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.cut import Cut
from singanet.parallel.reductions.round import listed
from singanet.parallel.slices.storage import slices_of
from singanet.types import Array, RowSparse


class Parts(Cutting):
    """The parts of ``cut`` that are the rank's of ``owner``.

    Large arrays are gathered where they lie, small ones side by side. Of gradients that are rows
    only these rows are told, and of arrays in slices nothing.
    """

    def __init__(self, owner: AllReduce, cut: Cut, ahead: int) -> None:
        self._owner, self._cut, self.ahead = owner, cut, ahead
        self.forget()

    def forget(self) -> None:
        """Begin anew, whatever was under way."""
        self._telling: deque[list[Request]] = deque()

    @property
    def _comm(self) -> Communicator:
        return self._owner.comm

    def part(self, name: str, array: Any) -> Any:
        slices = slices_of(array)
        if slices is not None:
            return slices.own if slices.own.size else None
        return self._cut.part(name, array, self._comm.rank)

    def pass_over(self, names: Sequence[str]) -> None:
        rule = UpdateChain(self._owner.optimizer).rule
        for name in names:
            rule.state(name).step += 1

    def tell(self, names: Sequence[str], targets: Sequence[Array], grads: Sequence[Any]) -> None:
        many: list[_Told] = []
        requests: list[Request] = []
        what = f"the values of {listed(names)}"
        for name, target, grad in zip(names, targets, grads, strict=True):
            slices = slices_of(target)
            if slices is not None:
                # Who needs the values gathers them.
                slices.updated()
                continue
            rows = self._cut.rows(name)
            if isinstance(grad, RowSparse):
                # No other row was changed.
                indices = ops_for(grad.indices).host(grad.indices)
                many.append(_Told(target, np.searchsorted(indices, rows).tolist(), grad.indices))
            elif self._lies_flat(target):
                flat, bounds = target.reshape(-1), self._cut.bounds(name)
                self._owner.reduction.count(target.nbytes)
                requests.append(self._comm.start_gather_parts(flat, bounds, what))
            else:
                many.append(_Told(target, rows))
        for like in {told.target.dtype: told.target for told in many}.values():
            some = [told for told in many if told.target.dtype == like.dtype]
            requests.append(self._together(some, what))
        self._telling.append(requests)

    def _lies_flat(self, target: Array) -> bool:
        """Whether ``target`` is large, and can be gathered where it is."""
        here = on_host(ops_for(target).xp) or self._comm.on_device
        return here and target.flags.c_contiguous and target.nbytes > self._cut.smallest

    def _together(self, some: Sequence[_Told], what: str) -> Request:
        """Begin to gather parts that lie apart, of one type: rank after rank in one array."""
        size = self._comm.size
        places, end = [0], 0
        for rank in range(size):
            end += sum(told.size_of(rank) for told in some)
            places.append(end)
        xp = ops_for(some[0].target).xp if self._comm.on_device else np
        flat = xp.empty(end, some[0].target.dtype)
        start = places[self._comm.rank]
        for told in some:
            own = told.read(self._comm.rank)
            flat[start : start + own.size] = own.reshape(-1) if xp is not np else _hosted(own)
            start += own.size
        self._owner.reduction.count(flat.nbytes)
        request = self._comm.start_gather_parts(flat, places, what)
        return _Apart(request, some, places, self._comm.rank)

    def hear(self) -> None:
        for request in self._telling.popleft():
            request.wait()

    def test(self) -> None:
        """Carry on what is under way."""
        for requests in self._telling:
            for request in requests:
                request.test()


@dataclass(frozen=True, eq=False, slots=True)
class _Told:
    """An array whose rows ``bounds[k]`` to ``bounds[k + 1]`` rank k has; of ``indices``, if any."""

    target: Array
    bounds: Sequence[int]
    indices: Array | None = None

    def _of(self, rank: int) -> Any:
        part = slice(self.bounds[rank], self.bounds[rank + 1])
        if self.indices is not None:
            return self.indices[part]
        return part if self.target.ndim else ()

    def size_of(self, rank: int) -> int:
        """How many elements ``rank`` has."""
        rows = self.bounds[rank + 1] - self.bounds[rank]
        return rows * (self.target.size // max(len(self.target), 1) if self.target.ndim else 1)

    def read(self, rank: int) -> Array:
        """What ``rank`` has, if it is this one."""
        if not self.size_of(rank):
            return self.target.reshape(-1)[:0]
        found: Array = self.target[self._of(rank)]
        return np.reshape(found, -1) if not self.target.ndim else found

    def write(self, rank: int, flat: Array) -> None:
        """Put what ``rank`` has told in its place."""
        if flat.size:
            xp = ops_for(self.target).xp
            rows = flat.size * max(len(self.target), 1) // self.target.size
            shape = (rows, *self.target.shape[1:]) if self.target.ndim else ()
            self.target[self._of(rank)] = xp.asarray(flat).reshape(shape)


class _Apart(Request):
    """Parts of ``some`` arrays in one: those of rank k lie from ``places[k]`` on."""

    def __init__(
        self, request: Request, some: Sequence[_Told], places: Sequence[int], rank: int
    ) -> None:
        self._request, self._some, self._places, self._rank = request, some, places, rank

    def test(self) -> bool:
        return self._request.test()

    def wait(self) -> None:
        flat = self._request.wait()
        for rank in range(len(self._places) - 1):
            start = self._places[rank]
            for told in self._some if rank != self._rank else ():
                stop = start + told.size_of(rank)
                told.write(rank, flat[start:stop])
                start = stop
        self._request = Done(flat)


def _hosted(array: Array) -> Array:
    found: Array = ops_for(array).host(array).reshape(-1)
    return found
