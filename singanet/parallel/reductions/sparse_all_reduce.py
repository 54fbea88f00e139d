"""The few largest elements of each rank's gradients, on their way to the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.selection import largest, reaching
from singanet.parallel.reductions.sparse_round import SparseRound
from singanet.parallel.reductions.unsent import Unsent, is_unsent
from singanet.params.param import Param
from singanet.types import Array

_FIRST = 0.25
"""The ratio that a warm-up begins with, as in Deep Gradient Compression."""


class SparseAllReduce(AllReduce):
    """`AllReduce` of a few elements: what has the largest magnitude is sent, the rest is kept.

    Each rank sends the ``ratio`` of largest magnitude, exactly ceil(ratio · n) of n elements,
    0.001 by default; with ``threshold`` instead all of at least that, in the unit of its part of
    the mean. It warns after ten steps in which it sent nothing. What was not sent is added
    to the next gradient (``error_feedback``: Strom 2015, Aji and Heafield 2017), and takes one
    array a parameter. Small parameters are chosen from together. Row-sparse gradients are sent
    whole. The sum is an ordinary gradient, zero where nobody has sent, for what is inside. A lone
    process trains by whole gradients.

    As in Deep Gradient Compression (Lin et al. 2018) ``momentum`` is summed before the choice, in
    place of the rule's own, and the first ``warm_up`` steps send more: from a quarter on, down to
    the ratio geometrically. It is for slow networks: on one host choosing costs more than sending.

    What is not sent yet is in `state_dict`, that of each rank its own; a training state of `fit`
    has that of all. From the state of another rank it is left out.
    """

    copies = 8
    """With what is not sent yet, momentum, and magnitudes to choose among: measured."""

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        ratio: float | None = None,
        threshold: float | None = None,
        error_feedback: bool = True,
        momentum: float = 0.0,
        warm_up: int = 0,
        window: int = 4,
    ) -> None:
        where = "SparseAllReduce"
        if ratio is not None and threshold is not None:
            raise ArgumentError(
                where,
                expected="ratio= or threshold=",
                received=f"ratio={ratio!r} and threshold={threshold!r}",
                advice="leave one of them out",
            )
        super().__init__(optimizer, comm, window)
        self._least: float | None = None
        self._ratio: float | None = None
        if threshold is None:
            self.ratio = 0.001 if ratio is None else ratio
        else:
            self.threshold = threshold
        self.warm_up = warm_up
        momentum = at(checked(where, "momentum", momentum, 0.0, 1.0), 0)
        self._check_momentum(momentum, bool(error_feedback))
        unsent = Unsent(where, bool(error_feedback), momentum)
        self.reduction: SparseRound = SparseRound(self, self.window, unsent, self._chosen)

    @property
    def ratio(self) -> float | None:
        """The share of elements that is sent; assigning it takes the place of the threshold."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._ratio, self._least = _within("ratio", ratio), None

    @property
    def threshold(self) -> float | None:
        """The least magnitude that is sent; assigning it replaces the ratio and its warm-up."""
        return self._least

    @threshold.setter
    def threshold(self, threshold: float) -> None:
        self._least, self._ratio, self._warm_up = _within("threshold", threshold), None, 0

    @property
    def warm_up(self) -> int:
        """The number of first steps that send more than the ratio."""
        return self._warm_up

    @warm_up.setter
    def warm_up(self, steps: int) -> None:
        steps = checked_count(type(self).__name__, "warm_up", steps, 0)
        if steps and self.ratio is None:
            raise ArgumentError(
                f"{type(self).__name__}(warm_up=)",
                expected="a ratio, which it comes down to",
                received=f"threshold={self.threshold!r}",
                advice="give a ratio in place of the threshold",
            )
        self._warm_up = steps

    @property
    def error_feedback(self) -> bool:
        """Whether what was not sent is added to the next gradient."""
        return self.reduction.unsent.feedback

    @error_feedback.setter
    def error_feedback(self, flag: bool) -> None:
        self._check_momentum(self.momentum, bool(flag))
        self.reduction.unsent.feedback = bool(flag)

    @property
    def momentum(self) -> float:
        """The momentum that gradients are summed with before the choice."""
        return self.reduction.unsent.momentum

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        momentum = at(checked(type(self).__name__, "momentum", momentum, 0.0, 1.0), 0)
        self._check_momentum(momentum, self.error_feedback)
        self.reduction.unsent.momentum = momentum

    def _check_momentum(self, momentum: float, error_feedback: bool) -> None:
        if not momentum:
            return
        if not error_feedback:
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="error_feedback=True, as it is summed with what was not sent",
                received="error_feedback=False",
                advice="give the momentum to the rule: SGD(momentum=...)",
            )
        rule = UpdateChain(self.optimizer).rule
        if getattr(rule, "slots", ()):
            raise ArgumentError(
                "SparseAllReduce(momentum=)",
                expected="a rule without momentum of its own: SGD(lr=...)",
                received=repr(rule),
                advice="leave momentum= out here, or there",
            )

    def around(self, optimizer: Optimizer | Wrapper) -> SparseAllReduce:
        """As `Reducer`; what is not sent yet is that of both."""
        made = SparseAllReduce(
            optimizer,
            self.comm,
            self.ratio,
            self.threshold,
            self.error_feedback,
            self.momentum,
            self.warm_up,
            self.window,
        )
        made.reduction.unsent = self.reduction.unsent
        return made

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`, for gradients that were not sent yet."""
        self.reduction.unsent.turn(params, other)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `AllReduce`. Errors: `ShapeError` where what was not sent is of another net."""
        super().meet(net, around)
        order = self.order
        if not order.kinds:
            # How gradients come is in each message. What is chosen from together is then the
            # same from the first step on, also of a training that was resumed.
            order.kinds = dict.fromkeys((param.name for param in order.params), "dense")
            order.group()
            self.reduction.unsent.expect_fit(order.params, order.like)

    @property
    def alone(self) -> bool:
        """As `Reducer`, but that a lone process sums momentum, too."""
        return super().alone and not self.momentum

    def _chosen(self, values: Array, count: int) -> Array:
        """The places to send of ``values``, of which ``count`` are of gradients that are there."""
        if self.comm.size == 1:
            return np.arange(values.size)
        if self.threshold is not None:
            return reaching(values, self.threshold)
        return largest(values, math.ceil(self.ratio_now * count))

    @property
    def ratio_now(self) -> float:
        """The ratio of the next step."""
        ratio, done = self.ratio or 1.0, self.reduction.unsent.steps
        if done >= self.warm_up or ratio >= _FIRST:
            return ratio
        return _FIRST * float((ratio / _FIRST) ** (done / self.warm_up))

    def recover(self, was: tuple[int, int]) -> None:
        """As `Reducer`; what this rank itself has not sent stays."""
        super().recover(was)
        self.reduction.unsent.ranks.add(was)

    def own_state(self) -> dict[str, Array]:
        """As `Wrapper.own_state`: what was not sent yet."""
        return self.reduction.unsent.state(self.comm.rank, self.comm.size)

    def _is_own(self, key: str) -> bool:
        return is_unsent(key)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        return self.reduction.unsent.parsed(own, self.comm.rank, self.comm.size)

    def _take(self, parsed: Any) -> None:
        self.reduction.unsent.take(parsed)


def _within(name: str, value: Any) -> float:
    fits = is_number(value) and (0 < value <= 1 if name == "ratio" else value >= 0)
    if not fits:
        raise ArgumentError(
            f"SparseAllReduce({name}=)",
            expected="a number above 0 and at most 1" if name == "ratio" else "a number from 0 on",
            received=repr(value)[:60],
            advice="ratio=0.001 is usual; threshold= has the unit of the gradients",
        )
    return float(value)
