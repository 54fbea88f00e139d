"""Sums of gradients, of which each rank takes a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.reduction import RoundKind
from singanet.parallel.communicators.communicator import Request
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.announcement import Announcement
from singanet.parallel.reductions.cut import Cut
from singanet.parallel.reductions.parts import Parts
from singanet.parallel.reductions.round import Round
from singanet.parallel.slices.storage import Slices
from singanet.types import Array


class ShardedRound(Round):
    """A `Round` after which each rank updates its parts of the parameters, as ``cut`` has them.

    If it ``scatters``, large gradients are summed in parts, one a rank.
    """

    cutting: Parts

    def __init__(self, owner: AllReduce, window: int, cut: Cut, scatters: bool) -> None:
        self.cut, self.scatters = cut, scatters
        self.cutting = Parts(owner, cut, window)
        super().__init__(owner, window)

    def forget(self) -> None:
        super().forget()
        self.cutting.forget()

    def open(self, kind: RoundKind) -> None:
        super().open(kind)
        self._cut_loaded()

    def join(self, heard: Announcement) -> None:
        super().join(heard)
        self._cut_loaded()

    def value(self, name: str) -> Array:
        storage = self.order.by_name[name].storage
        return storage.stand_in if isinstance(storage, Slices) else super().value(name)

    def _cut_loaded(self) -> None:
        if self.cut.loaded:
            self.cut.cut_loaded(UpdateChain(self._owner.optimizer).rule, self.comm.rank)

    def test(self) -> None:
        super().test()
        self.cutting.test()

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        if not self.scatters:
            return super()._summed(names, buffer, what)
        requests: list[Request] = []
        done = end = 0
        for name, part in self.parts(names, buffer).items():
            start, end = end, end + part.size
            if part.nbytes <= self.cut.smallest:
                continue
            if done < start:
                requests.append(self._all_of(buffer[done:start], what))
            self.count(part.nbytes)
            bounds = self.cut.bounds(name)
            scattered = self.comm.start_reduce_scatter(buffer[start:end], bounds, what)
            requests.append(scattered)
            done = end
        return _All([*requests, self._all_of(buffer[done:], what)], buffer)

    def _all_of(self, part: Array, what: str) -> Request:
        self.count(part.nbytes)
        return self.comm.start_all_reduce(part, what=what)


class _All(Request):
    """Several requests as one, of ``result``."""

    def __init__(self, requests: Sequence[Request], result: Any) -> None:
        self._requests, self._result = requests, result

    def test(self) -> bool:
        # Each is carried on by being asked.
        return not [request for request in self._requests if not request.test()]

    def wait(self) -> Any:
        for request in self._requests:
            request.wait()
        return self._result
