"""Low-rank reduction of gradients (PowerSGD)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import RoundKind
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.parallel.reductions.round import Round, Unsent, is_unsent
from singanet.params.param import Param
from singanet.types import Array, Shape

_ROWS = 1 << 8
"""Rows of what was sent that are taken off at a time."""


class Directions:
    """By parameter a matrix (columns, ``rank``): what rows of the last sum were made of.

    All ranks have the same. A parameter of more than two axes is a matrix (shape[0], the rest).
    """

    def __init__(self, rank: int, warm: bool, gain: float) -> None:
        self.rank, self.warm, self.gain = rank, warm, gain
        self.kept: dict[str, Array] = {}

    def rank_of(self, shape: Shape) -> int:
        """How many columns are sent of a parameter of this ``shape``, 0 if it is sent whole."""
        if len(shape) < 2:
            return 0
        rows, columns = shape[0], prod(shape[1:])
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) * self.gain <= rows * columns else 0

    def of(self, name: str, shape: Shape, dtype: np.dtype[Any], step: int) -> Array:
        """Those to begin with: the last, or random ones of the ``step``."""
        wanted = prod(shape[1:]), self.rank_of(shape)
        found = self.kept.get(name) if self.warm else None
        known = found is not None and found.shape == wanted
        if found is None or not known or not found.any(axis=0).all():
            # Of a sum of zeros no direction is left, and none would come back.
            random = np.random.default_rng([zlib.crc32(name.encode()), step])
            drawn = random.standard_normal(wanted)
            found = (
                np.where(found.any(axis=0), found, drawn) if known and found is not None else drawn
            )
        return found.astype(dtype, copy=False)


class PowerRound(Round):
    """A `Round` in which of a matrix M only P = M Q and then Q = Mᵀ P are summed, few columns each.

    P is made orthonormal in between, and the sum of all M is P Qᵀ. What that is not of this rank's
    M is ``unsent``. Of an entry there are two messages, in the first one also what is sent whole.
    """

    def __init__(
        self, owner: RankReducer, window: int, unsent: Unsent, directions: Directions
    ) -> None:
        super().__init__(owner, window)
        self.unsent, self.directions, self._keeps = unsent, directions, True

    def module(self, like: Array) -> Any:
        """As `Reduction`: products are made on the host."""
        return np

    def open(self, kind: RoundKind) -> None:
        super().open(kind)
        self._keeps = kind == "step"

    def close(self, kind: RoundKind) -> None:
        super().close(kind)
        self.unsent.steps += kind == "step"

    def _hear(self) -> None:
        super()._hear()
        # What was not sent belongs to the mean of its own step.
        self.weight, self.mean = self.share, 1.0

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        parts = self.parts(names, buffer)
        whole, jobs = [], []
        for k, (name, part) in enumerate(parts.items()):
            if not self.directions.rank_of(part.shape):
                whole.append(part.reshape(-1))
                continue
            flag = buffer[buffer.size - len(parts) + k :][:1]
            jobs.append(_Matrix(self, name, part, flag, self._keeps))
        if not jobs:
            return super()._summed(names, buffer, what)
        whole.append(buffer[buffer.size - len(parts) :])
        return _TwoSums(self, buffer, whole, jobs, what)


class _Matrix:
    """A gradient as a matrix, with what was not sent of it before; ``part`` is where its sum goes.

    ``flag`` is not 0 where there is one, first on this rank and then on any. Where this rank has
    none it gives nothing, and what was not sent stays.
    """

    def __init__(self, owner: PowerRound, name: str, part: Array, flag: Array, keeps: bool) -> None:
        self._owner, self._name, self._part = owner, name, part
        self._flag, self._keeps = flag, keeps
        shape = len(part), prod(part.shape[1:])
        self._mine: Array | None = None
        if flag[0] and owner.weight:
            self._mine = owner.unsent.plus(name, part, 1.0, keeps, alone=False).reshape(shape)
        self._start = owner.directions.of(name, part.shape, part.dtype, owner.unsent.steps)
        rank = self._start.shape[1]
        self.columns = np.zeros((shape[0], rank), part.dtype)
        self.rows = np.zeros((shape[1], rank), part.dtype)
        if self._mine is not None:
            np.matmul(self._mine, self._start, out=self.columns)

    def turn(self) -> None:
        """Once ``columns`` are those of all: make them orthonormal, and the ``rows`` by them."""
        self.columns = np.linalg.qr(self.columns)[0]
        if self._mine is not None:
            np.matmul(self._mine.T, self.columns, out=self.rows)

    def keep_rest(self) -> None:
        """What of this rank's matrix its own ``rows`` do not tell is not sent."""
        if self._mine is None or not (self._keeps and self._owner.unsent.feedback):
            return
        for start in range(0, len(self._mine), _ROWS):
            some = slice(start, start + _ROWS)
            self._mine[some] -= self.columns[some] @ self.rows.T

    def end(self) -> None:
        """Once ``rows`` are those of all: the sum."""
        np.matmul(self.columns, self.rows.T, out=self._part.reshape(len(self._part), -1))
        if self._flag[0] and self._keeps:
            self._owner.directions.kept[self._name] = self.rows


class _TwoSums(Request):
    """The two sums of an entry; the first has what of its ``buffer`` goes ``whole``, too."""

    def __init__(
        self,
        owner: PowerRound,
        buffer: Array,
        whole: Sequence[Array],
        jobs: Sequence[_Matrix],
        what: str,
    ) -> None:
        self._owner, self._buffer, self._whole, self._jobs = owner, buffer, whole, jobs
        self._what, self._done = what, False
        self._first = self._start([*whole, *(job.columns for job in jobs)])

    @property
    def _comm(self) -> Communicator:
        return self._owner.comm

    def _start(self, arrays: Sequence[Array]) -> Request:
        message = np.concatenate([array.reshape(-1) for array in arrays])
        self._owner.count(message.nbytes)
        return self._comm.start_all_reduce(message, what=self._what)

    def test(self) -> bool:
        """As `Request`: of the first sum; all ranks begin the second one where they wait."""
        return self._done or self._first.test()

    def wait(self) -> Array:
        if not self._done:
            _spread(self._first.wait(), [*self._whole, *(job.columns for job in self._jobs)])
            for job in self._jobs:
                job.turn()
            second = self._start([job.rows for job in self._jobs])
            for job in self._jobs:
                job.keep_rest()
            _spread(second.wait(), [job.rows for job in self._jobs])
            for job in self._jobs:
                job.end()
            self._done = True
        return self._buffer


def _spread(message: Array, arrays: Sequence[Array]) -> None:
    """Fill ``arrays`` with what lies in ``message``, one behind the other."""
    start = 0
    for array in arrays:
        array[...] = message[start : start + array.size].reshape(array.shape)
        start += array.size


_SLOT = "direction"


class PowerSGD(AllReduce):
    """`AllReduce` of matrices by ``rank`` columns and rows (Vogels et al. 2019).

    A gradient M of m × n numbers, summed over the ranks, becomes P Qᵀ of the ``rank`` columns that
    a step of the power iteration finds: rank · (m + n) numbers are sent. With ``warm_start`` it
    begins with the Q of the step before. What P Qᵀ is not of a rank's own M is added to its next
    gradient (``error_feedback``), and takes one array a parameter. Parameters of more than two axes
    are seen as (shape[0], the rest); vectors, and matrices that would not be sent in at least
    ``gain`` times fewer numbers, go whole, row-sparse gradients as rows. The sum is an ordinary
    gradient for what is inside. A lone process trains by whole gradients.

    It is for slow networks: each gradient is multiplied four times. What is not sent yet is in
    `state_dict`, that of each rank its own, as `SparseAllReduce` has it.
    """

    _copies = 4
    """With what is not sent yet, and the rows of it that are worked on."""

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        rank: int = 4,
        warm_start: bool = True,
        error_feedback: bool = True,
        gain: float = 2.0,
        window: int = 4,
    ) -> None:
        super().__init__(optimizer, comm, window)
        where = type(self).__name__
        self.rank = checked_count(where, "rank", rank, 1)
        self.gain = at(checked(where, "gain", gain, 0.0), 0)
        directions = Directions(self.rank, bool(warm_start), self.gain)
        self._begin_with(Unsent(where, bool(error_feedback)), directions)

    def _begin_with(self, unsent: Unsent, directions: Directions) -> None:
        self.reduction: PowerRound = PowerRound(self, self.window, unsent, directions)

    @property
    def error_feedback(self) -> bool:
        """Whether what was not sent is added to the next gradient."""
        return self.reduction.unsent.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self.reduction.unsent.feedback = bool(flag)

    @property
    def warm_start(self) -> bool:
        """Whether a step begins with the directions of the one before."""
        return self.reduction.directions.warm

    @warm_start.setter
    def warm_start(self, flag: bool) -> None:
        self.reduction.directions.warm = bool(flag)

    def _remade(self, optimizer: Optimizer | Wrapper) -> PowerSGD:
        """As `Reducer`; what is not sent yet is that of both."""
        given = self.rank, self.warm_start, self.error_feedback, self.gain, self.window
        made = PowerSGD(optimizer, self.comm, *given)
        made._begin_with(self.reduction.unsent, self.reduction.directions)
        return made

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`, for gradients that were not sent yet and the directions kept."""
        self.reduction.unsent.turn(params, other, self.reduction.directions.kept)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `AllReduce`. Errors: `ShapeError` where what was not sent is of another net."""
        super().meet(net, around)
        self.reduction.unsent.expect_fit(self.order.params, self.order.like)

    def own_state(self) -> dict[str, Array]:
        """As `Wrapper.own_state`: what was not sent yet, and where all ranks begin."""
        kept = self.reduction.directions.kept
        found = {f"{name}/{_SLOT}": array.copy() for name, array in kept.items()}
        return self.reduction.unsent.state(self.comm.rank, self.comm.size) | found

    def _is_own(self, key: str) -> bool:
        return is_unsent(key) or key.rpartition("/")[2] == _SLOT

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        rest = {key: array for key, array in own.items() if is_unsent(key)}
        unsent = self.reduction.unsent.parsed(rest, self.comm.rank, self.comm.size)
        kept = {k.rpartition("/")[0]: np.array(own[k]) for k in own if k not in rest}
        return unsent, kept

    def _take(self, parsed: Any) -> None:
        unsent, self.reduction.directions.kept = parsed
        self.reduction.unsent.take(unsent)
