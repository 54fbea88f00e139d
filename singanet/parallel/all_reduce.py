"""Gradients summed over all ranks, on their way to the rule."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.collectives import SharedBatch
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, CallOrderError
from singanet.optimizer.accumulator import Accumulator
from singanet.optimizer.checks import Grad, check_lists
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reducer
from singanet.optimizer.stages import stages_of, two_passes
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicator import Communicator, Traffic
from singanet.parallel.half import Halves
from singanet.parallel.order import Order
from singanet.parallel.registration import apart, expect_alike, spread
from singanet.parallel.round import Announcement, Round, announced
from singanet.parallel.start import init
from singanet.types import Array


class AllReduce(Reducer):
    """Updates by the mean of the gradients of all ranks, each weighed by its samples.

    p ranks with batches of b train as one process with batches of p · b. Gradients are weighed
    into buffers of their own, small ones side by side, and summed while the walk back goes on,
    ``window`` sums at a time; sums that are there are updated by at the next call of `update`,
    all others in `end`. What one rank did not reach counts as zeros there, what no rank reached
    is not updated. Row-sparse gradients stay so: their rows are gathered.

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
        super().__init__(optimizer)
        self.comm = init() if comm is None else comm
        if not isinstance(self.comm, Communicator):
            raise ArgumentError(
                "AllReduce(comm=)",
                expected="a Communicator",
                received=type(comm).__name__,
                advice="leave it out, or pass parallel.init() or one of testing.communicators(n)",
            )
        self.batch = SharedBatch(self.comm)
        # A file is read by other processes than those that wrote it.
        self.arguments.pop("comm", None)
        self.window = checked_count("AllReduce", "window", window, 1)
        if dtype not in (None, "float16"):
            raise ArgumentError(
                "AllReduce(dtype=)",
                expected="'float16', or None for the gradients' own",
                received=repr(dtype),
                advice="leave it out but on a slow network",
            )
        self.dtype = dtype
        self._halves = None if dtype is None else Halves()
        inside = stages_of(optimizer)[0]
        for stage in inside:
            if isinstance(stage, (Accumulator, Reducer)):
                kind = type(stage).__name__
                raise ArgumentError(
                    "AllReduce",
                    expected="a rule, or clipping, inside",
                    received=kind,
                    advice="write Accumulator(AllReduce(...), every), which is reduced once"
                    if isinstance(stage, Accumulator)
                    else "leave one of them out",
                )
        self._order = Order(any(stage.reads_gradients for stage in inside))
        self._around: tuple[Wrapper, ...] = ()
        self._met: tuple[Any, ...] = ()
        self._known: list[weakref.ref[Any]] = []
        self._count: float | None = None
        self._said = False
        self._round: Round | None = None
        self._before = self.comm.traffic

    def around(self, optimizer: Optimizer | Wrapper) -> AllReduce:
        """As `Reducer`."""
        return type(self)(optimizer, self.comm, self.window, self.dtype)

    @property
    def overflowed(self) -> int:
        """How many numbers of this rank were too large for float16 so far."""
        return 0 if self._halves is None else self._halves.overflowed

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `Reducer`. The parameters of rank 0 become those of all, at the first meeting.

        All ranks have to come here at the same time, as with the same net and step they do.
        Errors: `RankError` where names, shapes, types, order, specs or settings differ;
        `ArgumentError` for clipping around the reduction.
        """
        now = (id(net), net.version, *map(id, around))
        if now == self._met:
            return
        for stage in around:
            if stage.reads_gradients and not isinstance(stage, (Accumulator, ScaledUpdates)):
                kind = type(stage).__name__
                raise ArgumentError(
                    f"{kind} around AllReduce",
                    expected="what looks at gradients inside, where they are those of all ranks",
                    received=f"{kind} around",
                    advice=f"write AllReduce({kind}(...))",
                )
        self.optimizer.register_all(net.param_specs())
        self._around, self._round = tuple(around), None
        self.share(net)
        self._order.start(net, self.settled)
        if self.comm.size > 1:
            facts = [*self._order.facts(), repr(around[0] if around else self)]
            fresh = [ref() for ref in self._known] != [net]
            if expect_alike(self.comm, facts, fresh):
                params = net.params()
                apart(self.comm, net.rng)
                spread(self.comm, ((p.name, p.value) for p in params if not p.is_constant))
                masters = ((p.name, self.settled(p.name, p.value)) for p in self._order.params)
                values = {id(p.value) for p in params}
                spread(self.comm, (pair for pair in masters if id(pair[1]) not in values))
        self._known = [weakref.ref(net)]
        self._met = now

    def settled(self, name: str, value: Array) -> Array:
        """The array behind the parameter ``value`` that the optimizer inside is to update."""
        values: Sequence[Array] = [value]
        for stage in self._around:
            values = stage.settle([name], values)
        return values[0]

    def begin(self, count: float | None) -> None:
        """As `Reducer`: ``count`` is what the gradients of this rank weigh, 0 for none."""
        self._count, self._said = count, True
        self.batch.weight = count
        self._before = self.comm.traffic

    @property
    def traffic(self) -> Traffic:
        """As `Reducer`."""
        return self.comm.traffic.since(self._before)

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
        if self.comm.size == 1:
            self.optimizer.update(names, values, grads, scale)
            return
        check_lists("AllReduce", names, values, grads)
        if self._round is None:
            self._round = self._opened("step")
        self._round.give(names, grads, scale)
        self._apply(self._round.finished())

    def end(self) -> None:
        """As `Wrapper.end`: all sums are waited for, and their parameters updated."""
        if self.comm.size > 1:
            self._close(self._round or self._opened("step"))

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`. The gradients are summed for it, and once more for the updates."""
        if self.comm.size == 1:
            yield from items
            return
        opened = self._opened("preview")
        for names, _, grads in items:
            opened.give(names, grads, 1.0)
            del names, grads
            for handed in opened.finished():
                yield self._scaled(*handed)
        for handed in opened.rest():
            yield self._scaled(*handed)

    def agree(self, refused: str | None) -> str | None:
        """As `Reducer`."""
        if self.comm.size == 1:
            return refused
        heard = announced(self.comm, "agree", refused=refused is not None).wait()
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
            if said.kind == "agree":
                for stage in self._scaling():
                    if said.refused:
                        stage.precision.failed("of another rank")
            elif said.kind == "preview":
                idle = self._round_of("preview", heard, 0.0)
                norm = norm_of(self._scaled(*handed) for handed in idle.rest())
                ahead = two_passes(self)
                knowing = nullcontext() if ahead is None else ahead.clip.knowing(norm)
            elif said.kind == "step":
                with knowing:
                    self._close(self._round_of("step", heard, 0.0))
                knowing = nullcontext()
                for outer in self._around:
                    outer.end()
                for stage in self._scaling():
                    stage.precision.succeeded()
            else:
                return

    def _scaling(self) -> list[ScaledUpdates]:
        return [stage for stage in self._around if isinstance(stage, ScaledUpdates)]

    def _opened(self, kind: str) -> Round:
        """A round of all sums, as this rank's gradients are to weigh in it."""
        self._expect_met()
        if not self._said:
            raise CallOrderError(
                "AllReduce",
                expected="the number of samples before the gradients of a step",
                received="gradients without it",
                advice="call begin(len(x)) before each walk back, and end() after it",
            )
        weight = 1.0 if self._count is None else float(self._count)
        heard: Announcement = announced(self.comm, kind, self._count)
        return self._round_of(kind, heard, weight)

    def _round_of(self, kind: str, heard: Announcement, weight: float) -> Round:
        return Round(self.comm, self._order, self.window, self._halves, heard, weight)

    def _close(self, opened: Round) -> None:
        try:
            self._apply(opened.rest())
        finally:
            self._round, self._said = None, False
        self.comm.step += 1

    def _apply(self, handed: Iterable[Handed]) -> None:
        for names, values, grads, factor in handed:
            changed = [name for name in names if self.optimizer.will_change(name)]
            for stage in self._scaling():
                for name, value in zip(names, values, strict=True):
                    stage.precision.master(name, value)
            targets = [self.settled(n, v) for n, v in zip(names, values, strict=True)]
            self.optimizer.update(names, targets, grads, float(factor))
            by_name = dict(zip(names, values, strict=True))
            for outer in reversed(self._around):
                outer.updated(changed, [by_name[name] for name in changed])

    def _scaled(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Any], factor: Any
    ) -> tuple[Sequence[str], Sequence[Array], list[Any]]:
        """What was handed on, with the factor in the gradients, which are nobody else's."""
        for grad in grads:
            array = grad[1] if isinstance(grad, tuple) else grad
            array *= array.dtype.type(factor)
        return names, values, list(grads)

    def _expect_met(self) -> None:
        if not self._met:
            raise CallOrderError(
                "AllReduce",
                expected="the net before its gradients",
                received="gradients, or join(), before meet(net)",
                advice="call meet(net) on all ranks before the first forward",
            )
