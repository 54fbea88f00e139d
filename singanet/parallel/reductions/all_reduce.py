"""Gradients summed over all ranks, on their way to the rule."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.optimizer.chain import UpdateChain, norm_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import GradientRound, RoundKind, Traffic
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Halves
from singanet.parallel.reductions.rank_reducer import Announcement, RankReducer, announced
from singanet.parallel.reductions.round import Round
from singanet.params.param import Param
from singanet.types import Array


class AllReduce(RankReducer):
    """Updates by the mean of the gradients of all ranks, each weighed by its samples.

    p ranks with batches of b train as one process with batches of p · b. Gradients are weighed
    into buffers of their own, small ones side by side, and summed during the walk back, ``window``
    sums at a time; finished sums are applied at the next call of `update`, all others in `end`. A
    parameter that one rank did not reach has zeros there; a parameter that no rank reached is not
    updated. Row-sparse gradients stay so: their rows are gathered; rows in tables are sent there at
    the end, weighed as the others. Steps are recorded; then gradients are summed where they lie.
    ``traffic`` counts the exchanges.

    With ``dtype="float16"`` gradients travel in half the bytes and are added in float32; it is for
    slow networks, as on one host the rounding takes longer. Numbers too large for float16 are cut,
    and counted in ``overflowed``.

    ``comm`` is by default that of `parallel.init`. Clipping belongs inside,
    ``AllReduce(ClipByGlobalNorm(SGD(...), 1.0))``, accumulation outside: it is reduced once.
    `net.step` and `fit` do all that a loop of one's own has to: `meet`, `begin`, `end`, `join`.
    """

    comm: Communicator

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        window: int = 4,
        dtype: str | None = None,
    ) -> None:
        super().__init__(optimizer, comm)
        self.window = checked_count(type(self).__name__, "window", window, 1)
        if dtype not in (None, "float16"):
            raise ArgumentError(
                "AllReduce(dtype=)",
                expected="'float16', or None for the gradients' own",
                received=repr(dtype),
                advice="leave it out but on a slow network",
            )
        self.dtype = dtype
        self._halves = None if dtype is None else Halves()
        self.reduction: Round = Round(self, self.window, self._halves)

    @property
    def traffic(self) -> Traffic:
        """The traffic so far."""
        return self.reduction.traffic

    def case(self) -> Hashable:
        """As `Wrapper.case`: which parameters are reduced together."""
        return self.order.version

    def _settings(self) -> tuple[Any, ...]:
        """The arguments after ``comm``, as they are now."""
        return self.window, self.dtype

    def _remade(self, optimizer: Optimizer | Wrapper) -> AllReduce:
        """As `Reducer`; what is not sent yet is that of both."""
        made = type(self)(optimizer, self.comm, *self._settings())
        made.reduction.unsent = self.reduction.unsent
        return made

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`, for gradients that were not sent yet."""
        if self.reduction.unsent is not None:
            self.reduction.unsent.turn(params, other)

    def _own_state(self) -> dict[str, Array]:
        """As `Wrapper._own_state`: what was not sent yet."""
        unsent = self.reduction.unsent
        return {} if unsent is None else unsent.state(self.comm.rank, self.comm.size)

    def _is_own(self, key: str) -> bool:
        return self.reduction.unsent is not None and self.reduction.unsent.is_own(key)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        unsent = self.reduction.unsent
        return None if unsent is None else unsent.parsed(own, self.comm.rank, self.comm.size)

    def _take(self, parsed: Any) -> None:
        if self.reduction.unsent is not None:
            self.reduction.unsent.take(parsed)

    @property
    def overflowed(self) -> int:
        """How many numbers of this rank were too large for float16 so far."""
        return 0 if self._halves is None else self._halves.overflowed

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `Reducer`. The parameters of rank 0 become those of all, at the first meeting.

        Errors: as `RankReducer`; `ArgumentError` for clipping around the reduction; `ShapeError`
        where what was not sent is of another net.
        """
        self._expect_outside(around)
        unsent, new = self.reduction.unsent, self._meets(net, around)
        if new:
            self._sums = None
        if unsent is not None:
            unsent.expect_fit(self.order.params, self.order.like, new)

    def _agree(self, refused: str | None) -> str | None:
        if self.comm.size == 1:
            return refused
        left = math.prod(stage.left for stage in self._around)
        heard = announced(self.comm, "agree", left, refused is not None).wait()
        return refused or ("of another rank" if heard.refused else None)

    def join(self) -> None:
        """As `Reducer`. Errors: `CallOrderError` before `meet`."""
        if self.comm.size == 1:
            return
        self._expect_met()
        knowing: Any = nullcontext()
        while True:
            heard = announced(self.comm, "")
            said = heard.wait()
            if said.kind == "count":
                self._gathered(np.zeros(0))
            elif said.kind == "agree":
                for outer in self._around if said.refused else ():
                    outer._conclude("of another rank")
            elif said.kind == "preview":
                clipped = UpdateChain(self).norm
                joined = self.joined if clipped is None else clipped.clip.joined
                norm = norm_of(self._without_batch("preview", heard).previewed(()), joined)
                knowing = nullcontext() if clipped is None else clipped.clip.knowing(norm)
            elif said.kind == "step":
                with knowing:
                    self._sums = self._without_batch("step", heard)
                    self.end()
                knowing = nullcontext()
                for outer in self._around:
                    outer.end()
                    outer._conclude(None)
            else:
                return

    def _without_batch(self, kind: RoundKind, heard: Announcement) -> GradientRound:
        """What this rank has a part in without gradients, once others were ``heard`` to begin."""
        self.reduction.join(heard)
        return self._round_of(kind, opened=True)
