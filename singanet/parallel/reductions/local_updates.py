"""Ranks that update by their own gradients, and now and then agree on the mean of their values."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grad
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.reductions.rank_reducer import RankReducer, announced
from singanet.parallel.reductions.round import listed
from singanet.params.param import Param
from singanet.params.storage import groups_of
from singanet.types import Array

_STATE = "*/averaging"


@dataclass
class _Progress:
    """Steps since an averaging, the part that is next, and what each has waited for by weight."""

    parts: int
    steps: int = 0
    turn: int = 0
    pending: Array = field(init=False)

    def __post_init__(self) -> None:
        self.pending = np.zeros(self.parts)


@dataclass
class _Slice:
    """The elements from ``start`` to ``stop`` of a parameter, and their values of all ranks."""

    param: Param
    start: int
    stop: int


class LocalUpdates(RankReducer):
    """Each rank updates by its own gradients; every some steps a part of the values is averaged.

    Ranks weigh by the samples since that part was averaged last. `join` and `unify` average all
    of it: at the end of an epoch, and before an evaluation or a checkpoint, ranks are the same to
    the bit. In between they differ, and the state of the rule does all the time: it is each rank's
    own, and a training state of `fit` has that of all.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None,
        every: int,
        parts: int,
        window: int,
    ) -> None:
        super().__init__(optimizer, comm)
        self.window = window
        self._every = every
        self._progress = _Progress(parts)
        # Samples since moving averages of the values were those of all ranks.
        self._followed = 0.0

    @property
    def window(self) -> int:
        """The most reductions under way at once."""
        return self._window

    @window.setter
    def window(self, window: int) -> None:
        self._window = checked_count(type(self).__name__, "window", window, 1)

    @abstractmethod
    def _like(self, optimizer: Optimizer | Wrapper) -> LocalUpdates:
        """Another one with the same settings."""

    def _remade(self, optimizer: Optimizer | Wrapper) -> LocalUpdates:
        """As `Reducer`; both count the same steps."""
        made = self._like(optimizer)
        made._progress = self._progress
        return made

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `Reducer`. Errors: as `met`."""
        if not self._alone and self._has_met and self._is_new(net, around):
            # Parameters that are frozen now would stay different on each rank.
            self._average_all()
        self._meets(net, around)

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad], scale: Scale
    ) -> Iterator[Handed]:
        """As `Wrapper.take`, at once; without samples nothing is updated.

        Errors: `CallOrderError` before `meet` or `begin`.
        """
        if not self._alone:
            self._expect_begun()
            if self._count == 0:
                return
        yield names, values, grads, scale

    def end(self) -> None:
        """As `Wrapper.end`: the mean of all ranks' values, where it is due."""
        if self._alone:
            return
        self._expect_begun()
        self._said = False
        progress = self._progress
        weight = 1.0 if self._count is None else self._count
        progress.pending += weight
        self._followed += weight
        progress.steps += 1
        self.comm.step += 1
        if progress.steps >= self._every:
            announced(self.comm, "step").wait()
            self._average_next()

    @property
    def _local(self) -> bool:
        return True

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`: the rank's own."""
        yield from items

    def _agree(self, refused: str | None) -> str | None:
        """As `Reducer`: each rank takes its own steps."""
        return refused

    def join(self) -> None:
        """As `Reducer`; then all values are averaged. Errors: `CallOrderError` before `meet`."""
        if self._alone:
            return
        self._expect_met()
        while announced(self.comm, "").wait().kind:
            self._average_next()
            self._ended_around()
        self._average_all()

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """As `Reducer`: all values are averaged."""
        if not self._alone and self._has_met:
            self._average_all()
        super().unify(net, samples)

    def _average_next(self) -> None:
        progress = self._progress
        self._average([progress.turn])
        progress.turn = (progress.turn + 1) % progress.parts
        progress.steps = 0

    def _average_all(self) -> None:
        moved = self._average(range(self._progress.parts))
        self._progress.steps = self._progress.turn = 0
        if moved:
            self._ended_around()
        followers = [stage for stage in self._around if isinstance(stage, Averaged)]
        if followers:
            self._average_followers(
                [each for stage in followers for each in stage.averages.values()]
            )

    def _average_followers(self, arrays: Iterable[Array]) -> None:
        """Let moving averages, which follow each rank's values, be their means over all ranks."""
        weights = self.comm.all_gather(np.array([self._followed]), "what their averages weigh")
        own, whole, self._followed = self._followed, float(np.sum(weights)), 0.0
        for array in arrays if whole else ():
            buffer = np.array(ops_for(array).host(array), order="C")
            buffer *= buffer.dtype.type(own / whole)
            total = self.comm.all_reduce(buffer, what="the moving averages")
            array[...] = ops_for(array).xp.asarray(total)

    def _ended_around(self) -> None:
        for outer in self._around:
            outer.end()

    def _average(self, parts: Sequence[int]) -> bool:
        """Let the values of ``parts`` be their means over all ranks, by what has moved them.

        Whether anything has.
        """
        pending = self._progress.pending
        own = pending[list(parts)].reshape(1, -1)
        weights = np.concatenate(self.comm.all_gather(own, "what the ranks' values weigh"))
        pending[list(parts)] = 0.0
        total = weights.sum(axis=0)
        for part, weight, whole in zip(parts, weights[self.comm.rank], total, strict=True):
            if whole:
                self._reduce(self._slices(part), float(weight / whole))
        return bool(total.any())

    def _slices(self, part: int) -> list[_Slice]:
        """The elements of ``part``: each has as many, of all parameters laid end to end."""
        sizes = [self.order.like(param).size for param in self.order.params]
        whole, parts = sum(sizes), self._progress.parts
        first, last = whole * part // parts, whole * (part + 1) // parts
        found, begin = [], 0
        for param, size in zip(self.order.params, sizes, strict=True):
            start, stop = max(first - begin, 0), min(last - begin, size)
            if start < stop:
                found.append(_Slice(param, start, stop))
            begin += size
        return found

    def _reduce(self, slices: Sequence[_Slice], share: float) -> None:
        """Sum ``share`` of this rank's values with those of the others; small ones together."""
        arrays = [self._array(each.param) for each in slices]
        views = [a.reshape(-1)[s.start : s.stop] for a, s in zip(arrays, slices, strict=True)]
        flying: deque[tuple[list[int], Request]] = deque()
        for group in groups_of(views):
            host = [ops_for(views[k]).host(views[k]) for k in group]
            buffer = np.concatenate(host)
            buffer *= buffer.dtype.type(share)
            what = f"the values of {listed([slices[k].param.name for k in group])}"
            flying.append((group, self.comm.start_all_reduce(buffer, what=what)))
            for _, request in flying:
                request.test()
            if len(flying) > self.window:
                self._land(*flying.popleft(), arrays, slices)
        while flying:
            self._land(*flying.popleft(), arrays, slices)
        changed = list({each.param.name: each.param for each in slices}.values())
        for outer in reversed(self._around):
            outer.updated([param.name for param in changed], [param.value for param in changed])

    def _array(self, param: Param) -> Array:
        """What the rule updates of ``param``, brought up to date with its value."""
        for stage in self._around:
            stage.refresh([param.name], [param.value])
        return self._settled(param.name, param.value)

    def _land(
        self,
        group: Sequence[int],
        request: Request,
        arrays: Sequence[Array],
        slices: Sequence[_Slice],
    ) -> None:
        total, start = request.wait(), 0
        for k in group:
            array, own = arrays[k], slices[k]
            stop = start + own.stop - own.start
            flat = array.reshape(-1)
            flat[own.start : own.stop] = ops_for(array).xp.asarray(total[start:stop])
            if not array.flags.c_contiguous:
                array[...] = flat.reshape(array.shape)
            start = stop

    # -- saving -----------------------------------------------------------------------------------

    def _own_state(self) -> dict[str, Array]:
        """As `Wrapper._own_state`: how far the round is."""
        progress = self._progress
        return {_STATE: np.array([progress.steps, progress.turn, *progress.pending])}

    def _is_own(self, key: str) -> bool:
        return key == _STATE

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        state = np.asarray(own.get(_STATE, ()), np.float64)
        parts = self._progress.parts
        if state.shape != (parts + 2,) or not (state >= 0).all() or state[1] >= parts:
            raise DataError(
                f"{type(self).__name__}.load_state_dict",
                expected=f"{_STATE!r}: steps, the next part, and a number for each of {parts}",
                received=f"{state.size} numbers",
                advice=f"load the state_dict of a {type(self).__name__} with the same settings",
            )
        return state

    def _take(self, parsed: Any) -> None:
        progress = self._progress
        progress.steps, progress.turn = int(parsed[0]), int(parsed[1])
        progress.pending = np.array(parsed[2:])
        # Steps that moving averages have followed belong to the training before.
        self._followed = 0.0


class LocalSGD(LocalUpdates):
    """Each rank takes ``every`` steps of its own; then all values become their mean (Stich 2019).

    It sends 1/``every`` of the bytes of `AllReduce`. ``optimizer`` may be any; its state is each
    rank's own. With ``every=1`` and a rule without state it trains as `AllReduce`. See
    `LocalUpdates` for when ranks are the same.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        every: int = 8,
        window: int = 4,
    ) -> None:
        self.every = checked_count("LocalSGD", "every", every, 1)
        super().__init__(optimizer, comm, self.every, 1, window)

    def _like(self, optimizer: Optimizer | Wrapper) -> LocalSGD:
        return LocalSGD(optimizer, self.comm, self.every, self.window)


class PartialUpdate(LocalUpdates):
    """Each rank updates by itself; after each step one of ``partitions`` of the values is averaged.

    The partitions take turns, and have as many elements each: it sends 1/``partitions`` of the
    bytes of `AllReduce`. As SINGA's ``backward_and_partial_update``, whose partitions are tensors.
    See `LocalUpdates` for when ranks are the same.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        partitions: int = 8,
        window: int = 4,
    ) -> None:
        self.partitions = checked_count("PartialUpdate", "partitions", partitions, 1)
        super().__init__(optimizer, comm, 1, self.partitions, window)

    def _like(self, optimizer: Optimizer | Wrapper) -> PartialUpdate:
        return PartialUpdate(optimizer, self.comm, self.partitions, self.window)
