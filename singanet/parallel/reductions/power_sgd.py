"""Gradients of matrices as products of a few columns and rows, on their way to the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.power_round import Directions, PowerRound
from singanet.parallel.reductions.unsent import Unsent, is_unsent
from singanet.params.param import Param
from singanet.types import Array

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

    copies = 4
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

    def around(self, optimizer: Optimizer | Wrapper) -> PowerSGD:
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

    def recover(self, was: tuple[int, int]) -> None:
        """As `Reducer`; what this rank itself has not sent stays."""
        super().recover(was)
        self.reduction.unsent.ranks.add(was)

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
