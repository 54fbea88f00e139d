"""The base class of reducers between ranks."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from singanet.base.collectives import SharedBatch, gathered
from singanet.base.described import is_plain, settings_text
from singanet.base.elsewhere import expect_here
from singanet.base.seeding import seeded_apart
from singanet.base.version import VERSION
from singanet.engine.model import NetCore
from singanet.engine.step import Counts
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    RankError,
    UnknownNameError,
    brief,
    one_of,
)
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, norm_of
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import GradientRound, Reducer, RoundKind
from singanet.optimizer.state import Grad, check_lists
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.communicators.communicator import Communicator, Exchanged, Request, joint
from singanet.parallel.initialize import init, servers
from singanet.parallel.server.messages import ServerRanks
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import SMALL, groups_of, served_by
from singanet.types import Array


def expect_alike(comm: Communicator, facts: Sequence[str], fresh: bool) -> bool:
    """Return True if any rank is ``fresh``.

    Errors: `RankError` on all ranks if ``facts`` or the versions of the library differ.
    """
    facts = [f"singanet {VERSION}", *facts]
    digest = hashlib.sha256("\n".join(facts).encode()).digest()
    own = np.frombuffer(digest + bytes([fresh]), np.uint8)
    gathered = comm.all_gather(own.reshape(1, -1).copy(), "the comparison of nets")
    if any((part[0, :-1] != gathered[0][0, :-1]).any() for part in gathered):
        text = np.frombuffer("\n".join(facts).encode(), np.uint8)
        texts = [part.tobytes().decode() for part in comm.all_gather(text.copy(), "their facts")]
        raise _differing([each.split("\n") for each in texts])
    return any(bool(part[0, -1]) for part in gathered)


def _differing(facts: Sequence[Sequence[str]]) -> RankError:
    """Return the error that names the first of ``facts`` in which a rank differs from rank 0."""
    rank = next(k for k, each in enumerate(facts) if each != facts[0])
    pairs = zip_longest(facts[0], facts[rank], fillvalue="nothing more")
    first, other = next((a, b) for a, b in pairs if a != b)
    return RankError(
        f"parallel, ranks 0 and {rank}",
        expected=f"one net and one optimizer, the same as on rank 0: {first}",
        received=other,
        advice="build them by the same code on all ranks",
    )


def spread(comm: Communicator, arrays: Iterable[tuple[str, Array]]) -> None:
    """Copy the named ``arrays`` of rank 0 to all ranks."""
    for name, array in arrays:
        ops = ops_for(array)
        own = np.array(ops.host(array), order="C")
        array[...] = ops.xp.asarray(comm.broadcast(own, 0, f"the value of {name}"))


def apart(comm: Communicator, rng: np.random.Generator) -> None:
    """Reseed the generators of ranks by (seed, rank) if any two have the same state.

    Generators that already differ, by their seeds or by a resumption, are not changed.
    """
    draws = rng.bit_generator
    if len(set(map(repr, gathered(comm, draws.state, "the generators")))) < comm.size:
        draws.state = seeded_apart(draws.state, draws, comm.rank)


Kind: TypeAlias = Literal["dense", "rows", "idle"]
"""The kind of the gradients of a parameter; "idle" if no rank has had one so far."""


class Order:
    """The trained parameters of a net in the order of backward, and the groups reduced together.

    A rank does not know the kind of a gradient, dense or rows, before it exists: the first round
    asks layer by layer, later rounds ask at their end about parameters that no rank has reached so
    far. With ``by_layer`` the parameters of a layer stay together for stages that read a layer's
    gradients. Rows of served tables are not among the parameters.
    """

    def __init__(self, by_layer: bool) -> None:
        self.by_layer = by_layer
        self.params: list[Param] = []
        self.by_name: dict[str, Param] = {}
        # Changes with the groups.
        self.version = 0
        self.layers: list[list[str]] = []
        self.kinds: dict[str, Kind] = {}
        self.entries: list[list[str]] = []
        self.settled: Callable[[str, Array], Array] = _as_it_is
        self.masters = False

    def start(
        self, net: NetCore, settled: Callable[[str, Array], Array], masters: bool = False
    ) -> None:
        """Start with ``net``; ``settled`` returns the array of a parameter that is updated.

        ``masters`` means that this array is separate, of another dtype.
        """
        self.masters = masters
        layers, self.kinds, self.settled = _trained(net), {}, settled
        self.layers = [[param.name for param in layer] for layer in layers]
        self.params = [param for layer in layers for param in layer]
        self.by_name = {param.name: param for param in self.params}
        self.entries = self.layers
        self.version += 1

    def lacks(self, net: NetCore) -> bool:
        """Return True if ``net`` trains parameters that it did not train at `start`."""
        return any(param.name not in self.by_name for layer in _trained(net) for param in layer)

    def facts(self, specs: Iterable[ParamSpec]) -> list[str]:
        """Return a line per parameter, with its spec, for the comparison of ranks."""
        pairs = zip(self.params, specs, strict=True)
        return [f"{p.name} {p.shape} {self.like(p).dtype} {spec}" for p, spec in pairs]

    def like(self, param: Param) -> Array:
        """Return an array of the dtype and shape of the gradients of ``param``."""
        # The outline avoids a read of stored values.
        return self.settled(param.name, param.value if self.masters else param.outline)

    def unknown(self, names: Sequence[str]) -> bool:
        """Return True if the kind of any of ``names`` is unknown."""
        return any(name not in self.kinds for name in names)

    def is_settled(self) -> bool:
        """Return True if the kinds of all gradients are known, and rows travel alone."""
        kinds = [self.kinds.get(param.name, "idle") for param in self.params]
        return "idle" not in kinds and not (self.by_layer and "rows" in kinds)

    def idle(self) -> list[list[str]]:
        """Return the parameters that no rank has reached so far, by layer."""
        found = [[n for n in layer if self.kinds.get(n) == "idle"] for layer in self.layers]
        return [layer for layer in found if layer]

    def learn(self, names: Sequence[str], counts: Any) -> None:
        """Set the kinds from ``counts``: ranks with dense gradients and with rows, by parameter."""
        for name, (dense, rows) in zip(names, counts, strict=True):
            self.kinds[name] = "dense" if dense else "rows" if rows else "idle"

    def group(self) -> None:
        """Group small parameters by their known kinds."""
        self.version += 1
        known = [p for p in self.params if self.kinds.get(p.name, "idle") != "idle"]
        place = {param.name: k for k, param in enumerate(known)}
        if self.by_layer:
            parts = [[name for name in layer if name in place] for layer in self.layers]
            self.entries = [part for part in parts if part]
            return
        small = [p for p in known if self.kinds[p.name] == "dense" and self.like(p).nbytes <= SMALL]
        groups = groups_of([self.like(param) for param in small])
        entries = [[small[k].name for k in group] for group in groups]
        together = {name for entry in entries for name in entry}
        entries += [[name] for name in place if name not in together]
        # An entry has the place of its last gradient.
        self.entries = sorted(entries, key=lambda entry: place[entry[-1]])


def _as_it_is(name: str, value: Array) -> Array:
    return value


def _trained(net: NetCore) -> list[list[Param]]:
    """Return the parameters that ``net`` trains now, a list per layer, last layer first."""
    plan = net._execution_plan()
    # The first layer with a shared parameter yields it; backward reaches that layer last.
    owned: set[int] = set()
    layers: list[list[Param]] = []
    for step, trained in zip(plan.steps, plan.trained(), strict=True):
        own = []
        for param in step.layer.params.values() if trained else ():
            if plan.trains(param) and id(param) not in owned and not param.storage.by_rows:
                owned.add(id(param))
                own.append(param)
        if own:
            layers.insert(0, own)
    return layers


_KINDS = ("agree", "count", "preview", "step")


@dataclass(frozen=True, slots=True)
class Announcement:
    """The common next action of all ranks: one of `_KINDS`, or "" if no rank has a batch.

    The weight of this rank's gradients is its count times ``factor``. If all counts are equal
    (``even``), each weight is 1, which saves a product.
    """

    kind: str
    refused: bool
    even: bool
    factor: float


def _agreed(comm: Communicator, numbers: Array) -> Announcement:
    """Return the ranks' common action. Errors: `RankError` if ranks contradict each other."""
    where = f"rank {comm.rank} of {comm.size}, step {comm.step}"
    came = [(k, int(n)) for k, n in zip(_KINDS, numbers, strict=False) if n]
    refused, summed, *weights = numbers[len(_KINDS) :].tolist()
    ranks = sum(n for _, n in came)
    if len(came) > 1 or summed not in (0, ranks):
        announced_kinds = " and ".join(f"{n} for {kind!r}" for kind, n in came)
        raise RankError(
            where,
            expected="all ranks at the same point of a step, with losses reduced alike",
            received=f"{announced_kinds}, {int(summed)} with losses that are sums",
            advice="let all ranks run the same code with the same arguments",
        )
    if came and came[0][0] == "agree" and len({n for n in weights if n}) > 1:
        left = [int(n) for n in weights]
        raise RankError(
            where,
            expected="in mixed precision, equal numbers of micro-batches per update on all ranks",
            received=f"{left} micro-batches left on the ranks",
            advice="accumulate alike on all ranks; a rank without samples runs empty batches",
        )
    even = not summed and len(set(weights)) == 1 and weights[0] > 0
    total = 1.0 if summed else float(len(weights)) if even else sum(weights)
    # If nothing counts, the sums are zeros.
    factor = 1.0 / total if total else 1.0
    return Announcement(came[0][0] if came else "", bool(refused), even, factor)


def announced(
    comm: Communicator, kind: str, count: float | None = 0.0, refused: bool = False
) -> Request:
    """Announce the next action of this rank: one of `_KINDS`, or "" without a batch.

    Ranks without a batch announce it, too. The result is their common `Announcement`. ``count`` is
    the weight of its gradients, None for sums; for "agree" it is the number of micro-batches left
    in the update, including the current one.
    """
    came = [float(kind == each) for each in _KINDS]
    weights = [0.0] * comm.size
    weights[comm.rank] = count or 0.0
    numbers = np.array([*came, refused, count is None, *weights])
    request = comm.start_all_reduce(numbers, what="the start of a step")
    return joint([request], lambda: _agreed(comm, request.wait()))


class ExtraState:
    """The state of a reducer in addition to the rule's: none in this base class.

    It is part of `state_dict`, and a `_remade` reducer shares it.
    """

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Drop state of parameters that have been replaced, as in `Wrapper.turn`."""

    def expect_fit(
        self, params: Iterable[Param], like: Callable[[Param], Array], new: bool
    ) -> None:
        """Errors: `ShapeError` if the state does not fit ``params``, which may be ``new``."""

    def state(self, rank: int, size: int) -> dict[str, Array]:
        """Return copies of all arrays, and their rank."""
        return {}

    def is_own(self, key: str) -> bool:
        """Return True if ``key`` is a key of `state`."""
        return False

    def parsed(self, own: Mapping[str, Array], rank: int, size: int) -> Any:
        """Parse the entries of a state for `take`. Errors: the entries are incomplete."""

    def take(self, parsed: Any) -> None:
        """Load the result of `parsed`."""


class RankReducer(Reducer):
    """A reducer over the ranks of ``comm``, by default `parallel.init` for the net.

    Its ranks compare their nets, announce each step, join the steps of others, and agree on refused
    steps. Its ``reduction`` decides on the messages of gradients and their order. Accumulation and
    other reducers belong outside of it.
    """

    comm: Communicator
    _extra_state: ExtraState
    _meets_anew: ClassVar[bool] = False
    """True if a copy must meet the copy of its net, since no server serves it yet."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Errors: `ArgumentError` for a setting that is unknown or fixed."""
        before = vars(self).get(name, value)
        fixed = is_plain(before) and is_plain(value) and name[0] != "_"
        if fixed and before != value:
            raise ArgumentError(
                f"{type(self).__name__}, {name}",
                expected=f"{before!r}, the value it was made with",
                received=brief(value)[:60],
                advice=f"make a new one: {type(self).__name__}(optimizer, {name}={value!r})",
            )
        if not hasattr(type(self), name):
            expect_here(self, name)
        super().__setattr__(name, value)

    def __init__(self, optimizer: Optimizer | Wrapper, comm: Communicator | None) -> None:
        self._by_default = comm is None
        self.comm = init() if comm is None else comm
        if not isinstance(self.comm, Communicator):
            raise ArgumentError(
                f"{type(self).__name__}(comm=)",
                expected="a Communicator",
                received=type(comm).__name__,
                advice="omit it, or pass parallel.init() or a rank of testing.communicators(n)",
            )
        super().__init__(optimizer)
        self.batch = SharedBatch(self.comm)
        # A file may be loaded by other processes.
        self.arguments.pop("comm", None)
        inside = UpdateChain(optimizer).stages
        self.order = Order(any(stage.traits.reads in ("whole", "sums") for stage in inside))
        self._met_as: tuple[int, list[ParamSpec]] | None = None
        self._net: weakref.ref[Any] | None = None
        self._nets: list[weakref.ref[Any]] = []
        self._count: float | None = None
        self._said = False
        self._before = self.comm.exchanged
        self._extra_state = ExtraState()

    @property
    def _alone(self) -> bool:
        return self.comm.size == 1

    def _servers_of(self, given: ServerRanks | None) -> ServerRanks | None:
        """Return the server ranks: ``given``, or the job's; None for a single process.

        Errors: `ArgumentError` if several workers have no server.
        """
        where = type(self).__name__
        self.arguments.pop("servers", None)
        found = servers() if self._by_default and given is None else given
        if found is not None:
            found.expect_workers(where, self.comm)
        elif self.comm.size > 1:
            raise ArgumentError(
                where,
                expected="server ranks",
                received=f"{self.comm.size} workers",
                advice="start it by singanet launch -n 3 --servers 1, or train by AllReduce",
            )
        return found

    def case(self) -> Hashable:
        """Return the version of the groups that are reduced together."""
        return self.order.version

    def _settings(self) -> dict[str, Any]:
        """Return the current values of the arguments after the optimizer."""
        _, *names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name, None) for name in names}

    def _remade(self, optimizer: Optimizer | Wrapper) -> RankReducer:
        made = type(self)(optimizer, **self._settings())
        made._extra_state = self._extra_state
        return made

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """Prepare ``net``; at the first call the parameters of rank 0 are copied to all ranks.

        Errors: `RankError` for names, shapes, types, specs or settings that differ; `ShapeError` if
        unsent gradients belong to another net.
        """
        new = self._meets(net, around)
        if new:
            self._sums = None
        self._extra_state.expect_fit(self.order.params, self.order.like, new)

    def _meets(self, net: NetCore, around: Sequence[Wrapper]) -> bool:
        """Compare ``net`` and the stages ``around`` on all ranks if they are new; return True then.

        All ranks must call it at the same time, which they do with the same net and step. At the
        first call for a net the parameters of rank 0 are copied to all ranks. Errors: `RankError`
        if names, shapes, types, order, specs or settings differ.
        """
        if not self._is_new(net, around):
            return False
        UpdateChain(self.optimizer).follow(net)
        self._around = tuple(around)
        if self._by_default:
            self.comm = init(net.device)
            self.batch.comm = self.comm
        self._share_batch(net)
        self.order.start(net, self._settled, any(stage.traits.holds_all for stage in around))
        if self.comm.size > 1:
            settings = settings_text(around[0] if around else self)
            facts = [*self.order.facts(self._rates()), settings]
            if expect_alike(self.comm, facts, all(ref() is not net for ref in self._nets)):
                self._begin_alike(net)
        self._net = weakref.ref(net)
        others = (ref for ref in self._nets if ref() not in (None, net))
        self._nets = [*others, self._net]
        self._met_as = net.version, self._rates()
        return True

    def _begin_alike(self, net: NetCore) -> None:
        """Copy the parameters of rank 0 to all ranks, and make their generators differ."""
        params = net.params()
        apart(self.comm, net.rng)
        # Slices of a parameter form one array over all ranks.
        params = [p for p in params if not p.storage.sliced]
        own = [p for p in params if not p.storage.by_rows and not p.is_constant]
        spread(self.comm, ((p.name, p.value) for p in own))
        trained = [p for p in self.order.params if not p.storage.sliced]
        masters = ((p.name, self._settled(p.name, p.value)) for p in trained)
        values = {id(p.value) for p in params}
        spread(self.comm, (pair for pair in masters if id(pair[1]) not in values))

    def _is_new(self, net: NetCore, around: Sequence[Wrapper]) -> bool:
        """Return True if `_meets` has something to compare."""
        same = self._met_net is net and [*map(id, self._around)] == [*map(id, around)]
        return not same or self._met_as != (net.version, self._rates()) or self.order.lacks(net)

    @property
    def _met_net(self) -> NetCore | None:
        """The net of the last `meet`, while it exists."""
        return None if self._net is None else self._net()

    def _knows(self, net: Any) -> bool:
        return self._has_met and self._met_net is net

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the nets, which a copy in another process must meet again."""
        return {**vars(self), "_net": None, "_nets": [], "_met_as": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> RankReducer:
        """Return a copy that has met the copies of its nets, if these are copied along."""
        made: RankReducer = type(self).__new__(type(self))
        memo[id(self)] = made
        vars(made).update(copy.deepcopy(self.__getstate__(), memo))
        nets = (memo.get(id(ref())) for ref in self._nets)
        made._nets = [weakref.ref(net) for net in nets if net is not None]
        net = memo.get(id(self._met_net))
        if net is not None and not self._meets_anew:
            made._net, made._met_as = weakref.ref(net), copy.deepcopy(self._met_as, memo)
        return made

    def _rates(self) -> list[ParamSpec]:
        """Return the current specs of the parameters."""
        rule = UpdateChain(self.optimizer).rule
        return [rule._spec_of(param) for param in self.order.params]

    def begin(self, count: float | None) -> float | None:
        """Begin a step; ``count`` is the weight of this rank's gradients, 0 without samples."""
        self._count, self._said = count, True
        self.batch.weight = count
        self._before = self.comm.exchanged
        return count

    def _totals(self, counts: Array) -> Array:
        """Return the sums over all ranks by a small exchange."""
        self._expect_met()
        announced(self.comm, "count").wait()
        return self._gathered(counts)

    def _gathered(self, counts: Array) -> Array:
        """Return the sum of ``counts`` over all ranks; it is empty on a rank without a batch."""
        parts = self.comm.all_gather(counts, "the counts of the losses")
        total: Array = np.sum([part for part in parts if part.size], axis=0)
        return total

    def shares(self, samples: float, counts: Mapping[str, float | None]) -> Mapping[str, float]:
        """Return the factors by which your own loop multiplies the gradients of outputs.

        This rank has ``samples``; the loss of each output is a mean over its number in ``counts``,
        None for a sum. Multiply before backward: weighed by samples, the gradients of all ranks
        then add up to the gradients of one batch. All ranks call it.
        """
        sums = frozenset(name for name, count in counts.items() if count is None)
        own = Counts(samples, {name: count or 0.0 for name, count in counts.items()}, sums, True)
        return {} if self._alone else own.shares(own.with_numbers(self._totals(own.numbers)))

    @property
    def exchanged(self) -> Exchanged:
        return self.comm.exchanged.since(self._before)

    def _agree(self, refused: str | None) -> str | None:
        if self.comm.size == 1:
            return refused
        left = math.prod(stage.left for stage in self._around)
        heard = announced(self.comm, "agree", left, refused is not None).wait()
        return refused or ("of another rank" if heard.refused else None)

    def _others(self) -> Iterator[tuple[Request, Announcement]]:
        """Yield the actions of other ranks until no rank has a batch; this rank has none."""
        while (said := (heard := announced(self.comm, "")).wait()).kind:
            if said.kind == "count":
                self._gathered(np.zeros(0))
            else:
                yield heard, said

    def join(self) -> None:
        """Take part in the steps of others until no rank has a batch.

        Errors: `CallOrderError` before `meet`.
        """
        if self.comm.size == 1:
            return
        self._expect_met()
        clipped = UpdateChain(self).norm
        knowing: Any = nullcontext()
        for heard, said in self._others():
            if said.kind == "agree":
                for outer in self._around if said.refused else ():
                    outer._conclude("of another rank")
            elif said.kind == "preview":
                joined = self.joined if clipped is None else clipped.clip.joined
                norm = norm_of(self._without_batch("preview", heard).previewed(()), joined)
                knowing = nullcontext() if clipped is None else clipped.clip.knowing(norm)
            else:
                with knowing:
                    self._sums = self._without_batch("step", heard)
                    self.end()
                knowing = nullcontext()
                for outer in self._around:
                    outer.end()
                    outer._conclude(None)

    def _without_batch(self, kind: RoundKind, heard: Request) -> GradientRound:
        """Return a round without gradients of this rank, announced by ``heard``."""
        cast("Any", self.reduction).join(heard)
        return self._round_of(kind, opened=True)

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad], scale: Scale
    ) -> Iterator[Handed]:
        """Reduce gradients. Errors: names that the net of the last `meet` does not train."""
        if not self._alone:
            check_lists(type(self).__name__, names, values, grads)
            for name, value in zip(names, values, strict=True):
                if name not in self.order.by_name and served_by(value) is None:
                    raise UnknownNameError(
                        f"{type(self).__name__}, parameter {name!r}",
                        expected=one_of(sorted(self.order.by_name), 6),
                        received=brief(name),
                        advice="call meet(net) on all ranks with the trained net",
                    )
        return super().take(names, values, grads, scale)

    def _ended(self) -> None:
        """Count a step after its round."""
        self._said = False
        self.comm.step += 1

    # -- saving -----------------------------------------------------------------------------------

    def turn(self, params: Sequence[Param], other: bool) -> None:
        self._extra_state.turn(params, other)

    def _own_state(self) -> dict[str, Array]:
        return self._extra_state.state(self.comm.rank, self.comm.size)

    def _is_own(self, key: str) -> bool:
        return self._extra_state.is_own(key)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        return self._extra_state.parsed(own, self.comm.rank, self.comm.size)

    def _take(self, parsed: Any) -> None:
        self._extra_state.take(parsed)

    # -- the order of calls -----------------------------------------------------------------------

    @property
    def _has_met(self) -> bool:
        """True if it has a net."""
        return self._met_as is not None

    def _expect_met(self) -> None:
        if not self._has_met:
            raise CallOrderError(
                type(self).__name__,
                expected="a call of meet(net) before gradients",
                received="gradients, or join(), first",
                advice="call meet(net) on all ranks before the first forward",
            )

    def _expect_begun(self) -> None:
        """Errors: `CallOrderError` before `meet`, or before `begin` of each step."""
        self._expect_met()
        if not self._said:
            raise CallOrderError(
                type(self).__name__,
                expected="a call of begin(samples) before the gradients of a step",
                received="gradients first",
                advice="call begin(len(x)) before each backward, and end() after it",
            )
