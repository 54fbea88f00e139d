"""The base class of stages over the ranks of a communicator."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from singanet.base.collectives import SharedBatch
from singanet.base.described import is_plain, settings_text
from singanet.base.elsewhere import expect_here
from singanet.engine.counts import Counts
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError, one_of
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.checks import Grad, check_lists
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reducer
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicators.communicator import Communicator, Exchanged
from singanet.parallel.reductions.announcement import announced
from singanet.parallel.reductions.order import Order
from singanet.parallel.reductions.registration import apart, expect_alike, spread
from singanet.parallel.start import init
from singanet.params.param import ParamSpec
from singanet.params.served import served_by
from singanet.types import Array


class RankReducer(Reducer):
    """A reducer over the ranks of ``comm``, by default that of `parallel.init` for the net.

    Accumulation and other reducers stand outside of it.
    """

    comm: Communicator
    meets_anew: ClassVar[bool] = False
    """Whether a copy has to meet the copy of its net, since no server serves that yet."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Errors: `ArgumentError` for a setting that is unknown, or that is no property."""
        before = vars(self).get(name, value)
        fixed = is_plain(before) and is_plain(value) and name[0] != "_"
        if fixed and before != value:
            raise ArgumentError(
                f"{type(self).__name__}, {name}",
                expected=f"{before!r}, with which it was made",
                received=repr(value)[:60],
                advice=f"make another one: {type(self).__name__}(optimizer, {name}={value!r})",
            )
        if not hasattr(type(self), name):
            expect_here(self, name)
        super().__setattr__(name, value)

    def __init__(self, optimizer: Optimizer | Wrapper, comm: Communicator | None) -> None:
        super().__init__(optimizer)
        self._by_default = comm is None
        self.comm = init() if comm is None else comm
        if not isinstance(self.comm, Communicator):
            raise ArgumentError(
                f"{type(self).__name__}(comm=)",
                expected="a Communicator",
                received=type(comm).__name__,
                advice="leave it out, or pass parallel.init() or one of testing.communicators(n)",
            )
        self.batch = SharedBatch(self.comm)
        # A file is read by other processes than those that wrote it.
        self.arguments.pop("comm", None)
        inside = UpdateChain(optimizer).stages
        for stage in inside:
            if stage.weighs or stage.gathers or stage.holds_all:
                kind = type(stage).__name__
                raise ArgumentError(
                    type(self).__name__,
                    expected="a rule, or clipping, inside",
                    received=kind,
                    advice="leave one of them out"
                    if stage.waits
                    else f"write {kind}({type(self).__name__}(...), every), which is reduced once",
                )
        self.order = Order(any(stage.reads_gradients for stage in inside))
        self._met: tuple[int, list[ParamSpec]] | None = None
        self._net: weakref.ref[Any] | None = None
        self._nets: list[weakref.ref[Any]] = []
        self._count: float | None = None
        self._said = False
        self._before = self.comm.exchanged

    @property
    def alone(self) -> bool:
        return self.comm.size == 1

    def met(self, net: NetCore, around: Sequence[Wrapper]) -> bool:
        """Whether ``net`` and what is ``around`` is new. They are compared with the others' then.

        All ranks have to come here at the same time, as with the same net and step they do. At the
        first meeting of a net the parameters of rank 0 become those of all.
        Errors: `RankError` where names, shapes, types, order, specs or settings differ.
        """
        if not self.is_new(net, around):
            return False
        UpdateChain(self.optimizer).follow(net)
        self._around = tuple(around)
        if self._by_default:
            self.comm = init(net.device)
            self.batch.comm = self.comm
        self.share(net)
        self.order.start(net, self.settled, any(stage.holds_all for stage in around))
        if self.comm.size > 1:
            settings = settings_text(around[0] if around else self)
            facts = [*self.order.facts(self._rates()), settings]
            if expect_alike(self.comm, facts, all(ref() is not net for ref in self._nets)):
                self._begin_alike(net)
        self._net = weakref.ref(net)
        others = (ref for ref in self._nets if ref() not in (None, net))
        self._nets = [*others, self._net]
        self._met = net.version, self._rates()
        return True

    def _begin_alike(self, net: NetCore) -> None:
        """Let the parameters of all ranks be those of rank 0, and their generators differ."""
        params = net.params()
        apart(self.comm, net.rng)
        # Of what is in slices there is one array.
        params = [p for p in params if not p.storage.sliced]
        own = [p for p in params if not p.storage.by_rows and not p.is_constant]
        spread(self.comm, ((p.name, p.value) for p in own))
        trained = [p for p in self.order.params if not p.storage.sliced]
        masters = ((p.name, self.settled(p.name, p.value)) for p in trained)
        values = {id(p.value) for p in params}
        spread(self.comm, (pair for pair in masters if id(pair[1]) not in values))

    def is_new(self, net: NetCore, around: Sequence[Wrapper]) -> bool:
        """Whether `met` has something to compare."""
        same = self.net is net and [*map(id, self._around)] == [*map(id, around)]
        return not same or self._met != (net.version, self._rates()) or self.order.lacks(net)

    @property
    def net(self) -> NetCore | None:
        """The net of the last meeting, while it exists."""
        return None if self._net is None else self._net()

    def knows(self, net: Any) -> bool:
        return self.has_met and self.net is net

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the nets that it has met: in another process it meets them again."""
        return {**vars(self), "_net": None, "_nets": [], "_met": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> RankReducer:
        """A copy that has met the nets' copies, if they are copied along."""
        made: RankReducer = type(self).__new__(type(self))
        memo[id(self)] = made
        vars(made).update(copy.deepcopy(self.__getstate__(), memo))
        nets = (memo.get(id(ref())) for ref in self._nets)
        made._nets = [weakref.ref(net) for net in nets if net is not None]
        net = memo.get(id(self.net))
        if net is not None and not self.meets_anew:
            made._net, made._met = weakref.ref(net), copy.deepcopy(self._met, memo)
        return made

    def _rates(self) -> list[ParamSpec]:
        """How the parameters are trained by what was said last."""
        rule = UpdateChain(self.optimizer).rule
        return [rule.spec_of(param) for param in self.order.params]

    def recover(self, was: tuple[int, int]) -> None:
        super().recover(was)
        self._said = False

    def begin(self, count: float | None) -> float | None:
        """As `Wrapper.begin`: ``count`` is what the gradients of this rank weigh, 0 for none."""
        self._count, self._said = count, True
        self.batch.weight = count
        self._before = self.comm.exchanged
        return count

    def totals(self, counts: Array) -> Array:
        """As `Reducer`: one small exchange."""
        self._expect_met()
        announced(self.comm, "count").wait()
        return self._gathered(counts)

    def _gathered(self, counts: Array) -> Array:
        """The sum of the ``counts`` of all ranks; a rank without a batch gives an empty array."""
        parts = self.comm.all_gather(counts, "what the losses of the outputs count")
        total: Array = np.sum([part for part in parts if part.size], axis=0)
        return total

    def shares(self, samples: float, counts: Mapping[str, float | None]) -> Mapping[str, float]:
        """The factors by which a loop of your own multiplies the gradients of outputs.

        This rank has ``samples``; the loss of each output is a mean over its number in ``counts``,
        None for a sum. Multiply before the walk back: weighed by samples, the gradients of all
        ranks then add up to the gradients of one batch. All ranks call it.
        """
        sums = frozenset(name for name, count in counts.items() if count is None)
        own = Counts(samples, {name: count or 0.0 for name, count in counts.items()}, sums, True)
        return {} if self.alone else own.shares(own.with_numbers(self.totals(own.numbers)))

    @property
    def exchanged(self) -> Exchanged:
        return self.comm.exchanged.since(self._before)

    def _expect_outside(self, around: Sequence[Wrapper]) -> None:
        """Errors: `ArgumentError` for clipping around the reduction."""
        for stage in around:
            if stage.reads_gradients and not (stage.gathers or stage.holds_all):
                kind, own = type(stage).__name__, type(self).__name__
                raise ArgumentError(
                    f"{kind} around {own}",
                    expected="what looks at gradients inside, where they are those of all ranks",
                    received=f"{kind} around",
                    advice=f"write {own}({kind}(...))",
                )

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad], scale: Scale
    ) -> Iterator[Handed]:
        """As `Reducer`. Errors: names that the net of the last `meet` does not train."""
        if not self.alone:
            check_lists(type(self).__name__, names, values, grads)
            for name, value in zip(names, values, strict=True):
                if name not in self.order.by_name and served_by(value) is None:
                    raise UnknownNameError(
                        f"{type(self).__name__}, parameter {name!r}",
                        expected=f"one of {one_of(sorted(self.order.by_name), 6)}",
                        received=repr(name),
                        advice="call meet(net) on all ranks with the net that is trained",
                    )
        return super().take(names, values, grads, scale)

    def ended(self) -> None:
        """Count a step whose round has ended."""
        self._said = False
        self.comm.step += 1

    @property
    def count(self) -> float | None:
        """The weight of the gradients of this rank, None for sums."""
        return self._count

    @property
    def has_met(self) -> bool:
        """Whether it trains a net."""
        return self._met is not None

    def _expect_met(self) -> None:
        if not self.has_met:
            raise CallOrderError(
                type(self).__name__,
                expected="the net before its gradients",
                received="gradients, or join(), before meet(net)",
                advice="call meet(net) on all ranks before the first forward",
            )

    def expect_begun(self) -> None:
        """Errors: `CallOrderError` before `meet`, or before `begin` of each step."""
        self._expect_met()
        if not self._said:
            raise CallOrderError(
                type(self).__name__,
                expected="the number of samples before the gradients of a step",
                received="gradients without it",
                advice="call begin(len(x)) before each walk back, and end() after it",
            )
