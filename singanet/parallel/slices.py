"""Parameters in slices over ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from singanet.base import terms
from singanet.base.elsewhere import is_library
from singanet.base.heap import LentMemory
from singanet.base.terms import Terms, left_out
from singanet.engine.backward import Pass, WatchedPass
from singanet.engine.executor import RECORDING, Capabilities, LayerByLayer, NetExecutor
from singanet.engine.fusion import fused
from singanet.engine.model import StepRequest
from singanet.engine.plan import Plan
from singanet.engine.recompute.recomputer import Recomputer
from singanet.engine.step import away, backward_order, forward_needs
from singanet.errors import RankError
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import ParamStorage
from singanet.types import Array, Shape, StandIn

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked


__all__: list[str] = []


class Gathering(Protocol):
    """The object that assembles slices, as `Gathers`."""

    comm: Communicator
    lent: list[Slices]
    by_slices: bool

    def read(self, slices: Slices) -> Array:
        """The whole array, until it is dropped."""


class SliceStandIn(StandIn):
    """A stand-in for the array of a parameter in slices, whose elements are 0."""

    slices: Slices


class Slices(ParamStorage):
    """The rows ``rows[k]`` to ``rows[k + 1]`` of the parameter ``name`` are on rank k.

    ``whole`` is the whole array; the rank stores its own slice of it. All ranks read and lend it at
    the same point.
    """

    __slots__ = (
        "_lent",
        "_lent_at",
        "_stand_in",
        "_updates",
        "first_row",
        "gathers",
        "name",
        "own",
        "rows",
    )

    takes = (terms.WHOLE,)
    place = "in slices on several ranks"
    way_back = "take copy.deepcopy(net) on all ranks, which has it in memory"
    sliced = True

    def __init__(self, gathers: Gathering, name: str, whole: Array, rows: Sequence[int]) -> None:
        self.gathers, self.name, self.rows = gathers, name, list(rows)
        self._stand_in = np.broadcast_to(np.zeros((), whole.dtype), whole.shape).view(SliceStandIn)
        self._stand_in.slices = self
        self.first_row = self.rows[gathers.comm.rank]
        self.own = self.here_of(whole).copy()
        self._lent: Array | None = None
        self._updates = self._lent_at = 0

    @property
    def shape(self) -> Shape:
        """The shape of the whole array."""
        return self._stand_in.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._stand_in.dtype

    @property
    def nbytes(self) -> int:
        return int(self.own.nbytes)

    @property
    def bounds(self) -> list[int]:
        """The first element of each slice, then the number of elements."""
        width = prod(self.shape[1:])
        return [row * width for row in self.rows]

    @property
    def stand_in(self) -> Array:
        """An array of the whole one's shape and type, for updates by slices."""
        return self._stand_in

    def here(self) -> Array:
        # A lent array would be out of date.
        self.put_back()
        return self.own

    def here_of(self, whole: Array) -> Array:
        rank = self.gathers.comm.rank
        return whole[self.rows[rank] : self.rows[rank + 1]]

    def read(self) -> Array:
        lent = self._lent if self._lent_at == self._updates else None
        found = (self.gathers.read(self) if lent is None else lent).view()
        found.flags.writeable = False
        return found

    def lend(self) -> Array:
        """Return the live array; in steps that update by slices, a placeholder for it."""
        if self.gathers.by_slices:
            return self._stand_in
        if self._lent is None:
            self._lent, self._lent_at = self.gathers.read(self), self._updates
            self.gathers.lent.append(self)
        return self._lent

    def write(self, array: Array) -> None:
        self.own[...] = self.here_of(np.asarray(array))
        self.updated()

    def updated(self) -> None:
        """Note that the own slice has changed: lent arrays are out of date."""
        self._updates += 1

    def put_back(self) -> None:
        """End the loan: changes of the own rows are stored."""
        if self._lent is not None and self._lent_at == self._updates:
            self.own[...] = self.here_of(self._lent)
        self._lent = None


def slices_of(value: Any) -> Slices | None:
    """The storage of ``value``, if it stands for an array in slices."""
    return value.slices if isinstance(value, SliceStandIn) else None


_KINDS = ("an evaluation", "a training forward", "the end of its batches")


class Gathers(Gathering):
    """Gathers over the ranks of ``comm``, on a communicator of their own.

    A pass needs groups of parameters, one after the other, each for one layer: while one group is
    in use, the next is gathered, and the one before is dropped. All ranks run the same passes, and
    read the same in them.
    """

    def __init__(self, comm: Communicator) -> None:
        # Separate from sums, whose points in a pass may differ between ranks.
        self.comm, self._counting = comm.group(range(comm.size)), comm
        self.lent: list[Slices] = []
        self.by_slices = False
        """Whether a step runs that updates the slices, not the lent arrays."""
        self._groups: Sequence[tuple[Slices, ...]] = ()
        self._at = self._pass = 0
        self._held: dict[Slices, tuple[Array, Request, LentMemory]] = {}
        self._free: list[LentMemory] = []

    def follow(self, kind: str, groups: Sequence[tuple[Slices, ...]]) -> int:
        """Start a pass, whose layers need ``groups`` one after the other; return its number.

        Errors: `RankError` on all ranks if another one starts another kind of pass.
        """
        self.put_back()
        self._come_for(kind)
        self._groups, self._at = [group for group in groups if group], 0
        self._pass += 1
        return self._pass

    def end(self, number: int) -> None:
        """End the pass of this ``number``, unless another one has started."""
        if number == self._pass:
            self.drop()

    def listen(self) -> None:
        """Announce that this rank has no more batches. Errors: as `follow`."""
        self.put_back()
        self._come_for(_KINDS[-1])

    def drop(self) -> None:
        """End the pass, and drop the gathered arrays."""
        self._groups, self._at = (), 0
        self._keep(set())
        self._free.clear()

    def end_loans(self) -> None:
        """Store the changes of lent arrays."""
        while self.lent:
            self.lent.pop().put_back()

    def put_back(self) -> None:
        """End all loans, and the pass."""
        self.end_loans()
        self.drop()

    def read(self, slices: Slices) -> Array:
        """The whole array, until it is dropped."""
        coming = range(self._at, len(self._groups))
        at = next((k for k in coming if slices in self._groups[k]), None)
        self._at = self._at if at is None else at
        near = [each for group in self._groups[self._at : self._at + 2] for each in group]
        self._keep({slices, *near})
        for each in (slices, *near):
            if each not in self._held:
                self._held[each] = self._started(each)
        array, request, _ = self._held[slices]
        request.wait()
        if not self._groups:
            # Outside of passes the end of its use is unknown.
            del self._held[slices]
        return array

    def _started(self, slices: Slices) -> tuple[Array, Request, LentMemory]:
        bounds, rank = slices.bounds, self.comm.rank
        memory = self._memory(bounds[-1] * slices.dtype.itemsize)
        flat = memory.lend((bounds[-1],), slices.dtype)
        flat[bounds[rank] : bounds[rank + 1]] = slices.own.reshape(-1)
        request = self.comm._start_gather_parts(flat, bounds, f"the values of {slices.name}")
        self._counting._count_gathered(slices.nbytes, flat.nbytes)
        return flat.reshape(slices.shape), request, memory

    def _keep(self, wanted: set[Slices]) -> None:
        """Drop all but the ``wanted`` arrays; their memory is used again if it is not lent."""
        for slices in self._held.keys() - wanted:
            array, request, memory = self._held.pop(slices)
            request.wait()
            del array, request
            if not memory.is_lent:
                self._free.append(memory)

    def _memory(self, nbytes: int) -> LentMemory:
        for k, free in enumerate(self._free):
            if free.nbytes == nbytes:
                return self._free.pop(k)
        most = max((sum(each.nbytes for each in group) for group in self._sizes()), default=0)
        while self._free and sum(free.nbytes for free in self._free) + nbytes > most:
            self._free.pop(0)
        return LentMemory(np.empty(nbytes, np.uint8))

    def _sizes(self) -> list[list[Array]]:
        return [[each.stand_in for each in group] for group in self._groups]

    def _come_for(self, kind: str) -> None:
        self.comm.step = self._counting.step
        came = np.array([float(kind == each) for each in _KINDS])
        counts = self.comm.all_reduce(came, what=f"the beginning of {kind}")
        told = [(each, int(n)) for each, n in zip(_KINDS, counts.tolist(), strict=True) if n]
        if len(told) > 1:
            raise RankError(
                f"rank {self.comm.rank} of {self.comm.size}, step {self.comm.step}",
                expected="all ranks in the same pass of a net whose parameters are in slices",
                received=" and ".join(f"{n} in {each}" for each, n in told),
                advice="give all ranks as many batches, empty ones too, as net.fit does by itself",
            )


class Gathered(LayerByLayer):
    """Runs the layers one after the other, each with its parameters gathered a layer ahead.

    ``before`` is the executor of the net in memory.
    """

    can = Capabilities(
        Terms(
            takes=(terms.WHOLE, terms.RECORDED),
            received="a net whose parameters are in slices on several ranks",
            remedy=Slices.way_back,
        ),
        together=True,
    )
    streams = True

    def __init__(self, gathers: Gathers, before: NetExecutor[Any]) -> None:
        super().__init__(Recomputer(getattr(before, "recompute", "none")))
        self.gathers, self.before = gathers, before

    def __deepcopy__(self, memo: dict[int, Any]) -> NetExecutor[Any]:
        """An executor for a net in memory, as a copy is."""
        return type(self.before)()

    def __reduce__(self) -> Any:
        return type(self.before), ()

    @property
    def notes(self) -> list[str]:
        """Why steps are not recorded."""
        return left_out("a recorded step", RECORDING.uses, self.can.terms)

    def evaluate(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        """Evaluate; all ranks call it, with batches of their own."""
        plan = fused(other or net._execution_plan(), asked)
        groups = [_slices(needed) for needed in forward_needs(plan)]
        number = self.gathers.follow("an evaluation", groups)
        try:
            return super().evaluate(net, feed, asked, other)
        finally:
            self.gathers.end(number)

    def forward(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """Run a training forward; all ranks call it, with batches of their own."""
        number = self._follow(fused(other or net._execution_plan(), asked))
        made = super().forward(net, feed, asked, starts, other)
        return WatchedPass(
            made, lambda walk: self._watched(walk, number), partial(self.gathers.end, number)
        )

    def step(self, net: Any, request: StepRequest) -> tuple[float, float | None]:
        """Run a step; updates change slices, and gather nothing."""
        stages = UpdateChain(request.optimizer).stages
        sliced = any(getattr(stage, "_has_slices", False) for stage in stages)
        known = all(is_library(type(stage)) for stage in stages)
        self.gathers.put_back()
        self.gathers.by_slices = sliced and known and request.on_layer is None
        try:
            return super().step(net, request)
        finally:
            self.gathers.by_slices = False

    def gradients(self, net: Any, asked: Asked) -> Iterator[LayerGradients]:
        """Yield the gradients; all ranks call it."""
        number = self._follow(net._execution_plan())
        return self._watched(super().gradients(net, asked), number)

    def _follow(self, plan: Plan) -> int:
        groups = [_slices(needed) for needed in forward_needs(plan)]
        goes_on = plan.backward(plan.slots_of(plan.outputs), ()).goes_on
        for i in backward_order(plan):
            # Otherwise a layer needs values only if the caller gets them.
            if goes_on[i] or not self.gathers.by_slices:
                groups.append(_slices(away(plan.steps[i])))
        return self.gathers.follow("a training forward", groups)

    def _watched(
        self, items: Iterable[LayerGradients], number: int
    ) -> Generator[LayerGradients, None, None]:
        """``items``, whose parameters are available while the caller has them."""
        try:
            for item in items:
                handed = [item]
                del item
                try:
                    # Nothing of the layer stays in this frame while the caller has it.
                    yield handed.pop()
                finally:
                    self.gathers.end_loans()
        finally:
            self.gathers.end(number)


def _slices(params: Iterable[Param]) -> tuple[Slices, ...]:
    return tuple(cast("Slices", param.storage) for param in params if param.storage.sliced)
