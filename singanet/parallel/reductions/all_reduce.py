"""Gradients summed over all ranks, on their way to the rule."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, CallOrderError
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.checks import Grad, check_lists
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reduction, Traffic
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.communicators.half import Halves
from singanet.parallel.reductions.as_calls import AsCalls
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.parallel.reductions.round import Announcement, Round, announced
from singanet.params.served import served_by
from singanet.types import Array


class AllReduce(RankReducer):
    """Updates by the mean of the gradients of all ranks, each weighed by its samples.

    p ranks with batches of b train as one process with batches of p · b. Gradients are weighed
    into buffers of their own, small ones side by side, and summed while the walk back goes on,
    ``window`` sums at a time; sums that are there are updated by at the next call of `update`,
    all others in `end`. What one rank did not reach counts as zeros there, what no rank reached
    is not updated. Row-sparse gradients stay so: their rows are gathered; those of rows that a
    table has go there at the end, weighed as the others. Steps are recorded; then
    gradients are summed where they lie. ``traffic`` counts what was exchanged.

    With ``dtype="float16"`` gradients travel in half the bytes and are added in float32; it is for
    slow networks, as on one host the rounding takes longer. What is too large for float16 is cut,
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
        self._round: Round | None = None
        self._last: Round | None = None
        self._served: list[tuple[str, Array, Grad, float]] = []
        self.traffic = Traffic()

    def reduction(self) -> Reduction | None:
        """As `Reducer`; None until all ranks know how the gradients of all parameters come."""
        if self.alone or not self._met or not self._order.is_settled():
            return None
        return AsCalls(self.comm, self._order, self.window, self.traffic, self._opened, self._ended)

    def case(self) -> Hashable:
        """As `Wrapper.case`: which parameters are reduced together."""
        return self._order.version

    def around(self, optimizer: Optimizer | Wrapper) -> AllReduce:
        return type(self)(optimizer, self.comm, self.window, self.dtype)

    @property
    def overflowed(self) -> int:
        """How many numbers of this rank were too large for float16 so far."""
        return 0 if self._halves is None else self._halves.overflowed

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `Reducer`. The parameters of rank 0 become those of all, at the first meeting.

        Errors: as `RankReducer`; `ArgumentError` for clipping around the reduction.
        """
        self._expect_outside(around)
        if self.met(net, around):
            self._round = None

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`, some time until `end`; ``grads`` may be let go at once.

        Errors: `CallOrderError` before `meet` or `begin`, or where the step before has no `end`.
        """
        if self.alone:
            self.optimizer.update(names, values, grads, scale)
            return
        check_lists(type(self).__name__, names, values, grads)
        if self._round is None:
            self._round = self._opened("step")
            self._served.clear()
        given = [*zip(names, values, grads, strict=True)]
        self._served += [(*each, scale) for each in given if served_by(each[1]) is not None]
        rest = [(name, grad) for name, value, grad in given if served_by(value) is None]
        self._round.give([name for name, _ in rest], [grad for _, grad in rest], scale)
        self._apply(self._round.finished())

    def end(self) -> None:
        """As `Wrapper.end`: all sums are waited for, and their parameters updated."""
        if not self.alone:
            self._close(self._round or self._opened("step"))

    def recover(self, was: tuple[int, int]) -> None:
        super().recover(was)
        self._round = self._last = None

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`. The gradients are summed for it, and once more for the updates."""
        if self.alone:
            yield from items
            return
        yield from self._opened("preview").sums(map(self._reduced, items))

    def _reduced(self, item: Any) -> Any:
        """``item``. Errors: gradients of rows that a table has."""
        for name, value in zip(item[0], item[1], strict=True):
            if served_by(value) is not None:
                raise ArgumentError(
                    f"{type(self).__name__}, parameter {name!r}",
                    expected="a norm of gradients that all ranks see",
                    received="rows that a table has, others on each rank",
                    advice="clip by value, or by the norm of each layer",
                )
        return item

    def agree(self, refused: str | None) -> str | None:
        if self.comm.size == 1:
            return refused
        left = math.prod(stage.left for stage in self._around)
        heard = announced(self.comm, "agree", left, refused is not None).wait()
        return refused or ("of another rank" if heard.refused else None)

    def shares(self, samples: float, counts: Mapping[str, float | None]) -> Mapping[str, float]:
        """As `Reducer`: one small exchange."""
        if self.alone:
            return {}
        self._expect_met()
        announced(self.comm, "count", samples).wait()
        own = np.array([samples, *(count or 0.0 for count in counts.values())])
        parts = [part for part in self._counts(own) if part.size]
        everyone, *totals = np.sum(parts, axis=0)
        of_all = everyone / samples if samples else 0.0
        return {
            name: float(of_all * (1.0 if count is None else count / (total or 1.0)))
            for (name, count), total in zip(counts.items(), totals, strict=True)
        }

    def _counts(self, own: Array) -> list[Array]:
        return self.comm.all_gather(own, "what the losses of the outputs count")

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
                self._counts(np.zeros(0))
            elif said.kind == "agree":
                for outer in self._around if said.refused else ():
                    outer.conclude("of another rank")
            elif said.kind == "preview":
                idle = self._round_of("preview", heard, 0.0)
                norm = norm_of(idle.sums(()))
                clipped = UpdateChain(self).norm
                knowing = nullcontext() if clipped is None else clipped.clip.knowing(norm)
            elif said.kind == "step":
                with knowing:
                    self._close(self._round_of("step", heard, 0.0))
                knowing = nullcontext()
                for outer in self._around:
                    outer.end()
                    outer.conclude(None)
            else:
                return

    def _opened(self, kind: str) -> Round:
        """A round of all sums, as this rank's gradients are to weigh in it."""
        self._expect_met()
        if self._last is not None and not self._last.ended:
            raise CallOrderError(
                "AllReduce",
                expected="the end of the step before",
                received="another step: that one was left by an error, and others may wait in it",
                advice="end all ranks, and go on from a checkpoint",
            )
        self._expect_begun()
        weight = 1.0 if self._count is None else float(self._count)
        heard: Announcement = announced(self.comm, kind, self._count)
        return self._round_of(kind, heard, weight)

    def _round_of(self, kind: str, heard: Announcement, weight: float) -> Round:
        halves, traffic = self._halves, self.traffic
        self._last = Round(self.comm, self._order, self.window, halves, heard, weight, traffic)
        return self._last

    def _close(self, opened: Round) -> None:
        try:
            self._apply(opened.rest())
            for name, value, grad, scale in self._served:
                self.optimizer.update([name], [value], [grad], scale * opened.share)
        finally:
            self._round, self._said = None, False
            self._served.clear()
        self.comm.step += 1

    def _ended(self) -> None:
        """Count a step whose round a program has closed."""
        self._said = False
        self.comm.step += 1

    def _apply(self, handed: Iterable[Handed]) -> None:
        for names, values, grads, factor in handed:
            self._hand_on(names, values, grads, float(factor))
