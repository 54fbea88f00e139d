"""All-reduce with the optimizer's state, gradients or parameters sharded over ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.base.collectives import Collectives, gathered
from singanet.base.described import changes
from singanet.base.terms import Terms, expect_met
from singanet.checkpoint.entry import Source
from singanet.engine.model import NetCore
from singanet.engine.net import Net, expect_host
from singanet.errors import ArgumentError, brief
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, state_sources
from singanet.optimizer.hyper import on_host
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import ReducerTraits, RoundKind, ShardPlan
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Request, joint
from singanet.parallel.reductions.all_reduce import AllReduce, Round, listed
from singanet.parallel.reductions.rank_reducer import expect_alike
from singanet.parallel.slices import Gathered, Gathers, Slices, slices_of
from singanet.params.param import Param, expect_stored
from singanet.params.storage import SMALL
from singanet.types import Array, RowSparse, Shape


class Cut:
    """The division of parameters into one row range per rank.

    The ranges are equal, or one rank has all rows. They are in the order of ranks. A rank without
    rows of a parameter has no state for it, and only counts its steps. Stages around one another
    share a division, as they share the rule.
    """

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest
        """The size in bytes up to which a parameter is not divided."""
        self.shapes: dict[str, Shape] = {}
        self._rows: dict[str, list[int]] = {}
        self.loaded = False
        """True if the arrays of the rule may be whole, as after a load."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def clear(self) -> None:
        """Forget the division; loaded state is whole."""
        self.shapes, self._rows, self.loaded = {}, {}, True

    def planned(
        self, params: Sequence[Param], chain: UpdateChain, size: int
    ) -> dict[str, list[int]]:
        """Return the first rows of the parts of ``params`` for ``size`` ranks, by name.

        Small or non-elementwise parameters go whole to the rank with the fewest bytes, largest
        first.
        """
        made: dict[str, list[int]] = {}
        whole = []
        for param in params:
            rows = param.shape[0] if param.shape else 1
            if param.nbytes > self.smallest and rows > 1 and _by_parts(chain, param):
                made[param.name] = [rows * rank // size for rank in range(size + 1)]
            else:
                whole.append(param)
        having = [0] * size
        for param in sorted(whole, key=lambda param: -param.nbytes):
            owner = having.index(min(having))
            having[owner] += param.nbytes
            rows = param.shape[0] if param.shape else 1
            made[param.name] = [0] * (owner + 1) + [rows] * (size - owner)
        return made

    def spared(self, params: Sequence[Param], chain: UpdateChain, size: int) -> int:
        """Return the bytes of state that the rank with the most state leaves to others."""
        kept, planned = [0] * size, self.planned(params, chain, size)
        for param in params:
            rows, whole = planned[param.name], chain.state_bytes(param)
            for rank in range(size):
                kept[rank] += whole * (rows[rank + 1] - rows[rank]) // max(rows[-1], 1)
        return sum(map(chain.state_bytes, params)) - max(kept)

    def differs(self, planned: Mapping[str, list[int]]) -> bool:
        """Return True if ``planned`` changes the division of any parameter."""
        return any(planned.get(name) != rows for name, rows in self._rows.items())

    def take(self, planned: Mapping[str, list[int]], params: Sequence[Param]) -> None:
        """Use the division ``planned``."""
        self._rows = dict(planned)
        self.shapes = {param.name: param.shape for param in params}

    def rows(self, name: str) -> list[int]:
        """Return the first rows of the parts of the parameter, then its number of rows."""
        return self._rows[name]

    def has(self, name: str) -> bool:
        """Return True if the parameter is updated in parts."""
        return name in self._rows

    def bounds(self, name: str) -> list[int]:
        """Return `rows` in elements."""
        width = prod(self.shapes[name][1:])
        return [row * width for row in self._rows[name]]

    def part(self, name: str, array: Any, rank: int) -> Any:
        """Return the part of ``array``, or of `RowSparse` rows, of ``rank``; None for no rows."""
        start, stop = self._rows[name][rank : rank + 2]
        if start == stop:
            return None
        if isinstance(array, RowSparse):
            indices = ops_for(array.indices).host(array.indices)
            own = slice(*np.searchsorted(indices, (start, stop)))
            return RowSparse(array.indices[own] - start, array.rows[own])
        return array if stop - start == self._rows[name][-1] else array[start:stop]

    # -- the state of the rule ---------------------------------------------------------------------

    def cut_loaded(self, rule: Optimizer, rank: int) -> None:
        """Reduce the loaded arrays of ``rule`` to the parts of ``rank``."""
        self.loaded = False
        states = {state.name: state for state in rule.states()}
        for name, rows in self._rows.items():
            state = states.get(name)
            if state is None or state.shape is not None or not state.arrays:
                continue
            own = rows[rank + 1] - rows[rank]
            start, stop = self.bounds(name)[rank : rank + 2]
            if own == rows[-1] or any(a.size != prod(self.shapes[name]) for a in state.arrays):
                # The rule reports arrays of another size.
                state.arrays = state.arrays if own else []
            else:
                state.resume(
                    state.step, [a[start:stop].copy() for a in state.arrays] if own else ()
                )

    def whole(self, comm: Collectives, rule: Optimizer, state: Mapping[str, Array]) -> Any:
        """Return ``state``, of this rank, with the arrays of all ranks; all ranks call it.

        The parts of arrays are concatenated, one array after the other.
        """
        if self.loaded:
            return state
        slots, known = ("step", *rule.slots), [state.name for state in rule.states()]
        keys = [f"{name}/{slot}" for name in known if name in self._rows for slot in slots]
        forms = {key: (state[key].shape, state[key].dtype.str) for key in keys if key in state}
        every = gathered(comm, forms, "the optimizer states of the ranks")
        made: dict[str, Array] = {}
        for key in keys:
            having = [rank for rank, each in enumerate(every) if key in each]
            if not having:
                continue
            shape, dtype = every[having[0]][key]
            sizes = [prod(each[key][0]) if key in each else 0 for each in every]
            if key.endswith("/step"):
                # Other ranks may have counted steps in which a stage withheld the parameter.
                rows = self._rows[key.rpartition("/")[0]]
                owners = [rank for rank in having if rows[rank] < rows[rank + 1]]
                if not owners:
                    # The owner's rule, a user's, counts no steps.
                    continue
                sizes = [int(rank == owners[0]) for rank in range(comm.size)]
            elif len(having) > 1:
                shape = self.shapes[key.rpartition("/")[0]]
            bounds = np.cumsum([0, *sizes]).tolist()
            flat = np.empty(bounds[-1], dtype)
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            if own.start < own.stop:
                flat[own] = ops_for(state[key]).host(state[key]).reshape(-1)
            made[key] = comm._gather_parts(flat, bounds, what=key).reshape(shape)
        # In the order of one process, if ranks know it.
        return {**made, **{key: array for key, array in state.items() if key not in keys}}

    def own_sources(
        self, rank: int, state: Sequence[Source], first_rows: dict[str, int]
    ) -> list[Source]:
        """Return the entries of ``state`` that ``rank`` writes, as in `Reducer._own_parts`.

        Rank 0 writes entries without a parameter, which all ranks have.
        """
        made = []
        for each in state:
            name, _, slot = each.name.rpartition("/")
            if name not in self._rows:
                if rank == 0:
                    first_rows[each.name] = 0
                    made.append(each)
                continue
            rows, shape = self._rows[name], self.shapes[name]
            start, stop = rows[rank : rank + 2]
            owner = next(k for k, (a, b) in enumerate(pairwise(rows)) if a < b)
            if start == stop or (slot == "step" and rank != owner):
                continue
            width, first_rows[each.name] = prod(shape[1:]), 0
            if stop - start < rows[-1] and prod(each.shape) == (stop - start) * width:
                first_rows[each.name] = start
                each = replace(each, shape=(stop - start, *shape[1:]))
            made.append(each)
        return made


def _by_parts(chain: UpdateChain, param: Param) -> bool:
    """Return True if the rule of ``chain`` may update rows of ``param`` separately."""
    rule = chain.own_rule
    size = prod(param.shape)
    if rule is None or not chain.treats_alike(param):
        return False
    return {*rule._slot_sizes(param.shape, rule.state(param.name))} <= {size}


def params_of(net: Net) -> list[Param]:
    """Return the parameters of ``net``, filled or not."""
    params = [p for step in net.planned().steps for p in step.layer.params.values()]
    return list({id(param): param for param in params}.values())


_LEVEL = "use level=2"


def cut_net(net: Net, comm: Communicator, cut: Cut, chain: UpdateChain) -> None:
    """Replace large parameters of ``net`` by slices, divided by ``cut`` for the rule of ``chain``.

    All ranks call it. Only one parameter is whole at a time, also if its values do not exist yet.
    The values of rank 0 are copied to all ranks. Errors: `CallOrderError` for a net that is
    offloaded or on stages; `RankError` if ranks have different parameters.
    """
    params = params_of(net)
    large = [
        param
        for param in params
        if param.storage.in_memory
        and not param.is_state
        and param.shape
        and param.nbytes > cut.smallest
    ]
    if not large:
        return
    where = "Sharded(level=3)"
    expect_host(net, where)
    expect_met(where, (terms.IN_MEMORY, terms.LAYERS), net.executor.can.terms, _LEVEL)
    facts = [f"{p.name} {p.shape} {p.array_type} {p.trainable}" for p in params]
    expect_alike(comm, facts, False)
    executor: Any = net.executor
    if not isinstance(executor, Gathered):
        executor = Gathered(Gathers(comm), net.executor)
    if chain.own_rule is not None:
        chain.own_rule.follow(params, net)
    trained = [param for param in large if param.trainable]
    planned = cut.planned(trained, chain, comm.size)
    for param in large:
        rows = planned.get(param.name) or _evenly(param, comm.size)
        _slice(net, param, executor.gathers, rows, comm)
    net.executor = executor


def follow_cut(params: Iterable[Param], planned: Mapping[str, Sequence[int]]) -> None:
    """Divide the sliced ``params`` as ``planned``; all ranks call it."""
    for param in params:
        storage = param.storage
        if isinstance(storage, Slices) and storage.rows != planned[param.name]:
            whole = storage.read()
            param.storage = Slices(storage.gathers, param.name, whole, planned[param.name])


def listen(net: Any) -> None:
    """Declare that this rank has no more batches. Errors: `RankError` if others have one."""
    if net is not None and isinstance(net.executor, Gathered):
        net.executor.gathers.listen()


def _slice(
    net: Net, param: Param, gathers: Gathers, rows: Sequence[int], comm: Communicator
) -> None:
    if param.filled:
        whole = np.array(param.value, order="C")
    else:
        param.seed, param.dtype = net.seed, net.dtype
        whole = np.ascontiguousarray(net._first_value(param))
    whole = comm.broadcast(whole, 0, f"the value of {param.name}")
    param.storage = Slices(gathers, param.name, whole, rows)


def _evenly(param: Param, size: int) -> list[int]:
    rows = param.shape[0] if param.shape else 1
    return [rows * rank // size for rank in range(size + 1)]


class Parts(ShardPlan):
    """The parts of ``cut`` of the rank of ``owner``, and the exchange of updated values.

    Large arrays are gathered in place, small ones together. For row gradients only their rows are
    exchanged, for sliced parameters nothing.
    """

    def __init__(self, owner: AllReduce, cut: Cut, ahead: int) -> None:
        self._owner, self._cut, self.ahead = owner, cut, ahead
        self._telling: deque[list[Request]] = deque()

    @property
    def _comm(self) -> Communicator:
        return self._owner.comm

    def part(self, name: str, array: Any) -> Any:
        slices = slices_of(array)
        if slices is not None:
            return slices.own if slices.own.size else None
        return self._cut.part(name, array, self._comm.rank)

    def pass_over(self, names: Sequence[str]) -> None:
        rule = UpdateChain(self._owner.optimizer).rule
        for name in names:
            rule.state(name).step += 1

    def tell(self, names: Sequence[str], targets: Sequence[Array], grads: Sequence[Any]) -> None:
        apart: list[_RowsByRank] = []
        requests: list[Request] = []
        what = f"the values of {listed(names)}"
        for name, target, grad in zip(names, targets, grads, strict=True):
            slices = slices_of(target)
            if slices is not None:
                # Ranks gather slices when they use them.
                slices.updated()
            elif isinstance(grad, RowSparse):
                # Other rows are unchanged.
                indices = ops_for(grad.indices).host(grad.indices)
                ends = np.searchsorted(indices, self._cut.rows(name)).tolist()
                apart.append(_RowsByRank(target, [grad.indices[a:b] for a, b in pairwise(ends)]))
            elif self._is_in_place(target):
                flat, bounds = target.reshape(-1), self._cut.bounds(name)
                self._owner.reduction.count(target.nbytes)
                requests.append(self._comm._start_gather_parts(flat, bounds, what))
            else:
                target = target if target.ndim else target.reshape(-1)
                ends = self._cut.rows(name)
                apart.append(_RowsByRank(target, [slice(a, b) for a, b in pairwise(ends)]))
        for dtype in dict.fromkeys(piece.target.dtype for piece in apart):
            some = [piece for piece in apart if piece.target.dtype == dtype]
            requests.append(self._together(some, what))
        self._telling.append(requests)

    def _is_in_place(self, target: Array) -> bool:
        """Return True if ``target`` is large and can be gathered in place."""
        here = on_host(ops_for(target).xp) or self._comm._on_device
        return here and target.flags.c_contiguous and target.nbytes > self._cut.smallest

    def _together(self, some: Sequence[_RowsByRank], what: str) -> Request:
        """Start to gather scattered parts of one dtype, rank after rank in one buffer."""
        comm, like = self._comm, some[0].target
        sizes = [sum(piece.size(rank) for piece in some) for rank in range(comm.size)]
        bounds = np.cumsum([0, *sizes]).tolist()
        xp = ops_for(like).xp if comm._on_device else np
        flat = xp.empty(bounds[-1], like.dtype)

        def pieces(rank: int) -> Iterator[tuple[_RowsByRank, slice]]:
            start = bounds[rank]
            for piece in some:
                yield piece, slice(start, start := start + piece.size(rank))

        for piece, place in pieces(comm.rank):
            own = piece.target[piece.places[comm.rank]].reshape(-1)
            flat[place] = ops_for(own).host(own) if xp is np else own
        self._owner.reduction.count(flat.nbytes)
        request = comm._start_gather_parts(flat, bounds, what)

        def put() -> None:
            flat = request.wait()
            for rank in range(comm.size):
                for piece, place in pieces(rank):
                    if rank == comm.rank or place.start == place.stop:
                        continue
                    own = ops_for(piece.target).xp.asarray(flat[place])
                    where = piece.places[rank]
                    piece.target[where] = own.reshape(-1, *piece.target.shape[1:])

        return joint([request], put)

    def hear(self) -> None:
        for request in self._telling.popleft():
            request.wait()

    def test(self) -> None:
        """Advance the requests."""
        for requests in self._telling:
            for request in requests:
                request.test()


class _RowsByRank(NamedTuple):
    """An array, and the index of each rank's rows."""

    target: Array
    places: Sequence[Any]

    def size(self, rank: int) -> int:
        """Return the number of elements of ``rank``."""
        place = self.places[rank]
        rows = place.stop - place.start if isinstance(place, slice) else len(place)
        return rows * prod(self.target.shape[1:])


class ShardedRound(Round):
    """A `Round` after which each rank updates its parts of the parameters, divided by ``cut``.

    If it ``scatters``, large gradients are reduce-scattered.
    """

    cutting: Parts

    def __init__(self, owner: AllReduce, window: int, cut: Cut, scatters: bool) -> None:
        self.cut, self.scatters = cut, scatters
        self.cutting = Parts(owner, cut, window)
        super().__init__(owner, window)

    def open(self, kind: RoundKind) -> None:
        super().open(kind)
        self._cut_loaded()

    def join(self, heard: Request) -> None:
        super().join(heard)
        self._cut_loaded()

    def value(self, name: str) -> Array:
        storage = self.order.by_name[name].storage
        return storage.stand_in if isinstance(storage, Slices) else super().value(name)

    def _cut_loaded(self) -> None:
        if self.cut.loaded:
            self.cut.cut_loaded(UpdateChain(self._owner.optimizer).rule, self.comm.rank)

    def test(self) -> None:
        super().test()
        self.cutting.test()

    def _summed(self, names: Sequence[str], buffer: Array, what: str) -> Request:
        if not self.scatters:
            return super()._summed(names, buffer, what)
        requests: list[Request] = []
        done = end = 0
        for name, part in self.parts(names, buffer).items():
            start, end = end, end + part.size
            if part.nbytes <= self.cut.smallest:
                continue
            if done < start:
                requests.append(self._all_of(buffer[done:start], what))
            self.count(part.nbytes)
            bounds = self.cut.bounds(name)
            scattered = self.comm._start_reduce_scatter(buffer[start:end], bounds, what)
            requests.append(scattered)
            done = end
        return joint([*requests, self._all_of(buffer[done:], what)], lambda: buffer)

    def _all_of(self, part: Array, what: str) -> Request:
        self.count(part.nbytes)
        return self.comm.start_all_reduce(part, what=what)


class Sharded(AllReduce):
    """`AllReduce` with a shard of the state on each rank (ZeRO, Rajbhandari et al. 2020).

    Each of p ranks updates 1/p of the rows of every parameter, and sends the values to the others
    while backward continues. Parameters with rules that are not elementwise (`LAMB`, `Adafactor`,
    constraints) go whole to one rank each. A single rank is the plain rule.

    All ranks call ``state_dict``, which returns the whole state on each; any number of ranks can
    load it. Clipping belongs inside; a user's own stage there must read elements or
    sums, see `StageTraits`.

    Args:
        optimizer: The optimizer, or a stage around one, whose state is sharded.
        comm: Communicator of the ranks, by default `parallel.init()`.
        level: 1 sums gradients on all ranks. 2 reduce-scatters large gradients, so that a rank has
            only its part of a sum, with the traffic of `AllReduce`. With 3 ranks store only their
            part of large parameters: the net runs by layers, whose values are gathered one layer
            ahead of forward and backward, and dropped afterwards; all ranks make the same calls of
            the net.
        window: Maximum number of sums in flight. None is 4, and 1 with level 3.
        smallest: Maximum bytes of a parameter that is not sharded, but goes whole to one rank.
    """

    traits = ReducerTraits(in_parts=True, needs=(terms.IN_MEMORY,), inside=(terms.GRADIENTS,))
    reduction: ShardedRound

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        level: int = 1,
        window: int | None = None,
        smallest: int = SMALL,
    ) -> None:
        where = type(self).__name__
        self.level = checked_count(where, "level", level, 1)
        if self.level > 3:
            raise ArgumentError(
                f"{where}(level=)",
                expected="1 (optimizer's state), 2 (gradients, too) or 3 (parameters, too)",
                received=brief(level),
                advice="3 takes the least memory",
            )
        # Level 3 saves memory by fewer sums in flight.
        super().__init__(optimizer, comm, (4, 4, 1)[self.level - 1] if window is None else window)
        self.smallest = checked_count(where, "smallest", smallest, 0)
        self._share_cut(Cut(self.smallest))

    @property
    def _terms(self) -> Terms:
        found = super()._terms
        if not self._has_slices:
            return found
        needs = (*found.needs, terms.FLOATS, terms.NET)
        return replace(found, needs=needs, takes=(*found.takes, terms.WHOLE))

    @property
    def _has_slices(self) -> bool:
        """True if ranks have slices of parameters."""
        return self.level > 2 and not self._alone

    def _share_cut(self, cut: Cut) -> None:
        self.reduction = ShardedRound(self, self.window, cut, self.level > 1)

    @property
    def _cut(self) -> Cut:
        """The division of the parameters."""
        return self.reduction.cut

    def _remade(self, optimizer: Optimizer | Wrapper) -> Sharded:
        """Return a reducer with the same division, as both share the rule."""
        made = super()._remade(optimizer)
        assert isinstance(made, Sharded)
        made._share_cut(self._cut)
        return made

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """Prepare ``net``. Errors: `ArgumentError` for parameters that are not in memory."""
        if self._alone:
            super().meet(net, around)
            return
        where, needs = type(self).__name__, self._terms.needs
        if self._has_slices and not isinstance(net, Net):
            raise ArgumentError(
                where,
                expected=terms.NET,
                received=f"a {type(net).__name__}, of a pipeline or an Executor",
                advice=_LEVEL,
            )
        params = params_of(cast("Net", net)) if self._has_slices else net.params()
        expect_stored(params, where, needs, "train by AllReduce")
        if self._has_slices:
            own = cast("Net", net), self.comm, self._cut
            cut_net(*own, UpdateChain(self.optimizer))
        super().meet(net, around)
        for stage in UpdateChain(self.optimizer).stages:
            if stage._over_parts != self.joined:
                # An assignment counts as a change, after which all ranks meet again.
                stage._over_parts = self.joined
        chain, cut = UpdateChain(self.optimizer), self._cut
        planned = cut.planned(self.order.params, chain, self.comm.size)
        if cut.differs(planned) and not cut.loaded:
            whole = self.state_dict()
            cut.clear()
            super().load_state_dict(whole)
        cut.take(planned, self.order.params)
        if self._has_slices:
            follow_cut(self.order.params, planned)
        cut.cut_loaded(chain.rule, self.comm.rank)

    def _spared(self, net: NetCore) -> int:
        params, chain = [*net._execution_plan().trained_params()], UpdateChain(self.optimizer)
        return self._cut.spared(params, chain, self.comm.size)

    def join(self) -> None:
        """Join the steps of others. Errors: `RankError` if others have batches and level is 3."""
        if self._has_slices:
            self._expect_met()
            listen(self._met_net)
        super().join()

    def joined(self, total: Any) -> Any:
        if self._alone:
            return total
        own = np.array([float(total)])
        (summed,) = self.comm.all_reduce(own, what="a sum over the parts of gradients").tolist()
        return summed if isinstance(total, float) else ops_for(total).xp.asarray(summed)

    def state_dict(self) -> dict[str, Array]:
        """Return the state of all ranks; all ranks must call it."""
        own = super().state_dict()
        rule = UpdateChain(self.optimizer).own_rule
        if self._alone or not self._cut or rule is None:
            return own
        made: dict[str, Array] = self._cut.whole(self.comm, rule, own)
        return made

    def _own_parts(self, first_rows: dict[str, int]) -> list[Source] | None:
        """Return the entries that this rank writes, without communication."""
        rule = UpdateChain(self.optimizer).own_rule
        if self._alone or not self._cut or rule is None:
            return None
        if self._cut.loaded:
            self._cut.cut_loaded(rule, self.comm.rank)
        return self._cut.own_sources(self.comm.rank, state_sources(self.optimizer), first_rows)

    def _own_rows(self, name: str) -> tuple[int, int] | None:
        if self._alone or not self._cut.has(name):
            return None
        rows = self._cut.rows(name)
        return rows[self.comm.rank], rows[self.comm.rank + 1]

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load the whole ``state``; each rank reduces it to its part at the next step."""
        super().load_state_dict(state)
        self._cut.loaded = True
        changes.add()
