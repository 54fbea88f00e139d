"""Low-rank reduction of gradients (PowerSGD)."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request, Staged
from singanet.parallel.reductions.all_reduce import AllReduce, Unsent, UnsentRound
from singanet.types import Array, Shape

_SLOT = "direction"

_ROWS = 1 << 8
"""Rows of what was sent that are taken off at a time."""


class Directions(Unsent):
    """What was not sent, and where to begin: by parameter a matrix (columns, ``rank``).

    All ranks have the same. A parameter of more than two axes is a matrix (shape[0], the rest).
    """

    def __init__(self, where: str, feedback: bool, rank: int, warm: bool, gain: float) -> None:
        super().__init__(where, feedback)
        self.rank, self.warm, self.gain = rank, warm, gain
        self.slots[_SLOT] = {}

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
        found = self.slots[_SLOT].get(name) if self.warm else None
        known = found is not None and found.shape == wanted
        if found is None or not known or not found.any(axis=0).all():
            # Of a sum of zeros no direction is left, and none would come back.
            random = np.random.default_rng([zlib.crc32(name.encode()), step])
            drawn = random.standard_normal(wanted)
            found = (
                np.where(found.any(axis=0), found, drawn) if known and found is not None else drawn
            )
        return found.astype(dtype, copy=False)


class PowerRound(UnsentRound):
    """A round in which of a matrix M only P = M Q and then Q = Mᵀ P are summed, few columns each.

    P is made orthonormal in between, and the sum of all M is P Qᵀ. What that is not of this rank's
    M is ``unsent``. Of an entry there are two messages, in the first one also what is sent whole.
    """

    def _hear(self) -> None:
        super()._hear()
        # What was not sent belongs to the mean of its own step.
        self.weight, self.mean = self.share, 1.0

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        parts = self.parts(names, buffer)
        whole, jobs = [], []
        for k, (name, part) in enumerate(parts.items()):
            if not self.unsent.rank_of(part.shape):
                whole.append(part.reshape(-1))
                continue
            flag = buffer[buffer.size - len(parts) + k :][:1]
            jobs.append(_Matrix(self, name, part, flag, self._keeps))
        if not jobs:
            return super()._summed(names, buffer, what)
        whole.append(buffer[buffer.size - len(parts) :])
        return Staged(self._two_sums(buffer, whole, jobs, what))

    def _two_sums(
        self, buffer: Array, whole: Sequence[Array], jobs: Sequence[_Matrix], what: str
    ) -> Generator[Sequence[Request], None, Array]:
        """The sums of an entry; the first has what of its ``buffer`` goes ``whole``, too."""
        first = [*whole, *(job.columns for job in jobs)]
        request = self._sum_of(first, what)
        yield [request]
        _spread(request.wait(), first)
        for job in jobs:
            job.turn()
        # All ranks begin it where they wait.
        request = self._sum_of([job.rows for job in jobs], what)
        for job in jobs:
            job.keep_rest()
        yield [request]
        _spread(request.wait(), [job.rows for job in jobs])
        for job in jobs:
            job.end()
        return buffer

    def _sum_of(self, arrays: Sequence[Array], what: str) -> Request:
        message = np.concatenate([array.reshape(-1) for array in arrays])
        self.count(message.nbytes)
        return self.comm.start_all_reduce(message, what=what)


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
        self._start = owner.unsent.of(name, part.shape, part.dtype, owner.unsent.steps)
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
            self._owner.unsent.slots[_SLOT][self._name] = self.rows


def _spread(message: Array, arrays: Sequence[Array]) -> None:
    """Fill ``arrays`` with what lies in ``message``, one behind the other."""
    start = 0
    for array in arrays:
        array[...] = message[start : start + array.size].reshape(array.shape)
        start += array.size


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

    _kept: Directions
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
        given = bool(error_feedback), self.rank, bool(warm_start), self.gain
        self._kept = Directions(where, *given)
        self.reduction = PowerRound(self, self.window)

    @property
    def error_feedback(self) -> bool:
        """Whether what was not sent is added to the next gradient."""
        return self._kept.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._kept.feedback = bool(flag)

    @property
    def warm_start(self) -> bool:
        """Whether a step begins with the directions of the one before."""
        return self._kept.warm

    @warm_start.setter
    def warm_start(self, flag: bool) -> None:
        self._kept.warm = bool(flag)
