"""Local updates of each rank, with averages of the values at intervals."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import ReducerTraits
from singanet.optimizer.state import Grad
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.reductions.all_reduce import listed
from singanet.parallel.reductions.rank_reducer import ExtraState, RankReducer, announced
from singanet.params.param import Param
from singanet.params.storage import groups_of
from singanet.types import Array

_STATE = "*/averaging"


class _Progress(ExtraState):
    """The steps since an average, the next part, and the pending weight of each part."""

    def __init__(self, where: str, parts: int) -> None:
        self._where, self.parts = where, parts
        self.steps = self.next = 0
        self.pending = np.zeros(parts)
        # Samples since the last common values of the moving averages.
        self.followed = 0.0

    def state(self, rank: int, size: int) -> dict[str, Array]:
        return {_STATE: np.array([self.steps, self.next, *self.pending])}

    def is_own(self, key: str) -> bool:
        return key == _STATE

    def parsed(self, own: Mapping[str, Array], rank: int, size: int) -> Any:
        state = np.asarray(own.get(_STATE, ()), np.float64)
        if state.shape != (self.parts + 2,) or not (state >= 0).all() or state[1] >= self.parts:
            raise DataError(
                f"{self._where}.load_state_dict",
                expected=f"{_STATE!r}: steps, the next part, and a number for each of {self.parts}",
                received=f"{state.size} numbers",
                advice=f"load the state_dict of a {self._where} with the same settings",
            )
        return state

    def take(self, parsed: Any) -> None:
        self.steps, self.next, self.pending = int(parsed[0]), int(parsed[1]), np.array(parsed[2:])
        # The steps of moving averages belong to the previous training.
        self.followed = 0.0


class LocalUpdates(RankReducer):
    """Updates of each rank by its own gradients; at intervals a part of the values is averaged.

    The weight of a rank is its number of samples since the last average of that part. `join` and
    `unify` average all parts: at the end of an epoch, and before an evaluation or a checkpoint,
    ranks are equal to the bit. In between their values differ. The state of the rule always
    differs: each rank has its own, and a training state of `fit` has all of them.
    """

    # A norm is computed as if it were not there, also in the order of sums.
    traits = ReducerTraits(reads="nothing")

    _extra_state: _Progress

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
        self._extra_state = _Progress(type(self).__name__, parts)

    @property
    def window(self) -> int:
        """The maximum number of reductions in flight."""
        return self._window

    @window.setter
    def window(self, window: int) -> None:
        self._window = checked_count(type(self).__name__, "window", window, 1)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """Prepare ``net``. Errors: the errors of `RankReducer.meet`."""
        if not self._alone and self._has_met and self._is_new(net, around):
            # Otherwise newly frozen parameters would differ between ranks for good.
            self._average_all()
        self._meets(net, around)

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad], scale: Scale
    ) -> Iterator[Handed]:
        """Pass gradients on at once; without samples nothing is updated.

        Errors: `CallOrderError` before `meet` or `begin`.
        """
        if not self._alone:
            self._expect_begun()
            if self._count == 0:
                return
        yield names, values, grads, scale

    def end(self) -> None:
        """End a step, and average the values of all ranks if it is time."""
        if self._alone:
            return
        self._expect_begun()
        self._said = False
        progress = self._extra_state
        weight = 1.0 if self._count is None else self._count
        progress.pending += weight
        progress.followed += weight
        progress.steps += 1
        self.comm.step += 1
        if progress.steps >= self._every:
            announced(self.comm, "step").wait()
            self._average_next()

    @property
    def _local(self) -> bool:
        return True

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield this rank's gradients."""
        yield from items

    def _agree(self, refused: str | None) -> str | None:
        """Return ``refused``: each rank takes its own steps."""
        return refused

    def join(self) -> None:
        """Take part in the averages of others, then average all values.

        Errors: `CallOrderError` before `meet`.
        """
        if self._alone:
            return
        self._expect_met()
        for _ in self._others():
            self._average_next()
            self._ended_around()
        self._average_all()

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Average all values."""
        if not self._alone and self._has_met:
            self._average_all()
        super().unify(net, samples)

    def _average_next(self) -> None:
        progress = self._extra_state
        self._average([progress.next])
        progress.next = (progress.next + 1) % progress.parts
        progress.steps = 0

    def _average_all(self) -> None:
        moved = self._average(range(self._extra_state.parts))
        self._extra_state.steps = self._extra_state.next = 0
        if moved:
            self._ended_around()
        followers = [stage for stage in self._around if isinstance(stage, Averaged)]
        if followers:
            self._average_followers(followers)

    def _average_followers(self, followers: Sequence[Averaged]) -> None:
        """Average the moving averages of the ranks, each of which follows its rank's values."""
        own, self._extra_state.followed = self._extra_state.followed, 0.0
        weights = self.comm.all_gather(np.array([own]), "the weights of the moving averages")
        whole = float(np.sum(weights))
        arrays = (each for stage in followers for each in stage.averages.values())
        for array in arrays if whole else ():
            buffer = np.array(ops_for(array).host(array), order="C")
            buffer *= buffer.dtype.type(own / whole)
            total = self.comm.all_reduce(buffer, what="the moving averages")
            array[...] = ops_for(array).xp.asarray(total)

    def _ended_around(self) -> None:
        for outer in self._around:
            outer.end()

    def _average(self, parts: Sequence[int]) -> bool:
        """Average the values of ``parts`` over all ranks, weighed by the samples of each.

        Return True if any rank had samples.
        """
        pending = self._extra_state.pending
        own = pending[list(parts)].reshape(1, -1)
        weights = np.concatenate(self.comm.all_gather(own, "the weights of the ranks' values"))
        pending[list(parts)] = 0.0
        total = weights.sum(axis=0)
        for part, weight, whole in zip(parts, weights[self.comm.rank], total, strict=True):
            if whole:
                self._reduce(part, float(weight / whole))
        return bool(total.any())

    def _slices(self, part: int) -> Iterator[tuple[Param, slice]]:
        """Yield the elements of ``part``; all parameters concatenated are divided evenly."""
        sizes = [self.order.like(param).size for param in self.order.params]
        whole, parts, begin = sum(sizes), self._extra_state.parts, 0
        first, last = whole * part // parts, whole * (part + 1) // parts
        for param, size in zip(self.order.params, sizes, strict=True):
            start, stop = max(first - begin, 0), min(last - begin, size)
            if start < stop:
                yield param, slice(start, stop)
            begin += size

    def _reduce(self, part: int, share: float) -> None:
        """Sum ``share`` times this rank's values over all ranks, small parameters together."""
        slices = [*self._slices(part)]
        params = [param for param, _ in slices]
        arrays = [*map(self._array, params)]
        flat = [array.reshape(-1) for array in arrays]
        views = [each[place] for each, (_, place) in zip(flat, slices, strict=True)]
        flying: deque[tuple[list[int], Request]] = deque()

        def land() -> None:
            group, request = flying.popleft()
            ends = np.cumsum([views[k].size for k in group])
            for k, total in zip(group, np.split(request.wait(), ends[:-1]), strict=True):
                views[k][...] = ops_for(views[k]).xp.asarray(total)
                if not arrays[k].flags.c_contiguous:
                    arrays[k][...] = flat[k].reshape(arrays[k].shape)

        for group in groups_of(views):
            buffer = np.concatenate([ops_for(views[k]).host(views[k]) for k in group])
            buffer *= buffer.dtype.type(share)
            what = f"the values of {listed([params[k].name for k in group])}"
            flying.append((group, self.comm.start_all_reduce(buffer, what=what)))
            for _, request in flying:
                request.test()
            if len(flying) > self.window:
                land()
        while flying:
            land()
        for outer in reversed(self._around):
            outer.updated([param.name for param in params], [param.value for param in params])

    def _array(self, param: Param) -> Array:
        """Return the array that the rule updates, synchronized with the value of ``param``."""
        for stage in self._around:
            stage.refresh([param.name], [param.value])
        return self._settled(param.name, param.value)


class LocalSGD(LocalUpdates):
    """Local SGD: ranks take several steps alone, then all values are averaged (Stich 2019).

    It sends 1/``every`` of the bytes of `AllReduce`. With ``every=1`` and a rule without state it
    trains like `AllReduce`. `LocalUpdates` has the details.

    Args:
        optimizer: The optimizer, or a stage around one; each rank has its own state.
        comm: Communicator of the ranks, by default `parallel.init()`.
        every: Number of steps between two averages, a positive int.
        window: Maximum number of sums in flight, a positive int.
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


class PartialUpdate(LocalUpdates):
    """Local updates with an average of a partition of the values after each step.

    The partitions take turns, and have equal numbers of elements: it sends 1/``partitions`` of the
    bytes of `AllReduce`. It follows SINGA's ``backward_and_partial_update``, whose partitions are
    tensors. `LocalUpdates` has the details.

    Args:
        optimizer: The optimizer, or a stage around one; each rank has its own state.
        comm: Communicator of the ranks, by default `parallel.init()`.
        partitions: Number of partitions, a positive int.
        window: Maximum number of sums in flight, a positive int.
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
