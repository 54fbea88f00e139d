"""Recorded updates with a reduction between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from singanet.errors import one_of
from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.optimizer.hyper import Scale, is_one, on_host
from singanet.optimizer.reducer import (
    Found,
    GradientRound,
    Reducer,
    Reduction,
    RoundKind,
    ShardPlan,
)
from singanet.optimizer.wrapper import Handed
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import is_served
from singanet.program.guard import Guard
from singanet.program.ir import Call, NotRecordableError
from singanet.program.lowering import ON_HOST
from singanet.program.trace.layers import is_sparse
from singanet.program.trace.numbers import StepScalar, number_now
from singanet.program.trace.sparse_rows import NarrowParameters, RowsSource, live_rows, source_of
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced_stages import TracedStages, expect_recordable, watch_case
from singanet.program.trace.updates import Updates
from singanet.types import Array, RowSparse


class HostCopy:
    """A copy on the host of a device's buffer, there and back by one transfer each.

    Its memory stays from step to step. A step that an error has left takes it along, as others may
    write to it still.
    """

    def __init__(self) -> None:
        self._spare: Array | None = None
        self._told: Array | None = None

    def tell(self, buffer: Any) -> Array:
        """The copy of what is in ``buffer``, for others to sum."""
        spare, self._spare = self._spare, None
        told = self._told = np.empty(buffer.shape, buffer.dtype) if spare is None else spare
        buffer.get(out=told)
        return told

    @property
    def told(self) -> Array | None:
        """The copy that others sum; None if there is none."""
        return self._told

    def hear(self, buffer: Any) -> None:
        """Bring over to ``buffer`` what they made of it."""
        buffer.set(self._told)
        self._spare, self._told = self._told, None


HostCopies: TypeAlias = dict[tuple[str, ...], HostCopy]
"""By the names of an entry, what others see of its buffer."""

COMMUNICATES = "the optimizer waits for other processes, so that only its passes are recorded"


def updates_of(
    tape: Tape,
    chain: UpdateChain,
    guard: Guard,
    trained: Sequence[Param],
    held: NarrowParameters,
) -> Updates | ReducedUpdates:
    """The recorder of the updates of ``chain``. Raises `NotRecordableError`."""
    found = [stage for stage in chain.reducers if not (stage._alone or stage._local)]
    if not found:
        return Updates(tape, chain, guard, trained, held)
    reduction = getattr(found[0], "reduction", None) if len(found) == 1 else None
    if reduction is None or not reduction.settled:
        raise NotRecordableError(COMMUNICATES)
    if any(param.name in held for param in trained):
        raise NotRecordableError("gradients that are reduced of weights held in fewer bits")
    return ReducedUpdates(tape, chain, found[0], reduction, guard, trained, held)


class ReducedUpdates:
    """As `Updates`, for a ``chain`` of which ``reducer`` is a stage.

    Gradients go through the stages around it to its `GradientRound`, whose calls are those of the
    ``reduction``, written down. What these hand on, the rest of the optimizer is recorded with.
    """

    def __init__(
        self,
        tape: Tape,
        chain: UpdateChain,
        reducer: Reducer,
        reduction: Reduction,
        guard: Guard,
        trained: Sequence[Param],
        held: NarrowParameters,
    ) -> None:
        self.tape, self.chain, self.reduction = tape, chain, reduction
        outer = chain.stages[: chain.stages.index(reducer)]
        expect_recordable(outer)
        self._reducer = reducer
        self._outer = TracedStages(tape, guard, outer, trained)
        guard.part(reducer)
        watch_case(guard, reducer)
        inner = UpdateChain(reducer.optimizer)
        self._inner = Updates(tape, inner, guard, trained, held, summed=True)
        self._layers: dict[str, str] = {}
        self.scaled: Any = self._outer.scaled
        self._reached = reducer in chain.reached()
        self._sums: GradientRound | None = None
        self._rounds: list[WrittenReduction] = []
        self._hosted: HostCopies = {}
        summed = {param.name for param in trained if not param.storage.by_rows}
        if self._reached and {n for entry in reduction.entries for n in entry} != summed:
            raise NotRecordableError(
                "the optimizer waits for gradients that this step does not give"
            )
        if tape.lowering is ON_HOST:
            # On a device looks would part what is launched together.
            tape.carry_on = reduction.test
        self.numbers, self.members = self._inner.numbers, self._inner.members
        written = self._writing()
        for stage in self._inner.traced if reducer.traits.in_parts else ():
            stage._over_parts = written.joined

    @property
    def reasons(self) -> list[str]:
        """As `Updates`."""
        return self._inner.reasons

    @property
    def _weighs(self) -> bool:
        """As `Updates`."""
        return True

    def ahead(self) -> TwoPasses | None:
        """As `Updates`."""
        norm = self.chain.norm
        if norm is None or not norm.due():
            return None
        inner = self._inner.ahead()
        assert inner is not None
        outer = [stage for stage in norm.gathering if stage is not self._reducer]
        mine: Any = self
        return TwoPasses((*map(self._outer.traced_of, outer), mine), inner.clip)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`."""
        return self._made("preview").previewed(self._seen(items))

    _previewed_in_parts = previewed

    def _made(self, kind: RoundKind) -> GradientRound:
        written = self._writing()
        self._rounds.append(written)
        return GradientRound(self._reducer, written, self._outer.traced, kind)

    def _writing(self) -> WrittenReduction:
        return WrittenReduction(self.tape, self.reduction, self._reducer.joined, self._hosted)

    def _seen(self, items: Iterable[Any]) -> Iterator[Any]:
        """``items``, of whose parameters the layers are known from then on."""
        for item in items:
            self._layers.update(dict.fromkeys(item[0], getattr(item, "layer", self.tape.layer)))
            yield item
            del item

    def begin(self, weight: float | Callable[[Any], None] | None, outputs: Any) -> None:
        """As `Updates`."""
        why = self._outer.weigh(self.chain, weight, outputs)
        if why is not None:
            raise NotRecordableError(why)

    def record(self, item: LayerGradients) -> None:
        """As `Updates`, of what is summed by then."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        self._layers.update(dict.fromkeys(item.names, item.layer))
        names, grads = list(item.names), list(item.grads)
        if self._outer.stages and any(map(is_sparse, grads)) and self._outer.read_gradients:
            raise NotRecordableError("rows of a table that are gathered before they are reduced")
        values: list[Any] = [*map(self.tape.place, item.values)]
        self._outer.hand(names, values, grads, 1.0, self._give)

    def _give(self, names: Any, values: Any, grads: Any, scale: Any) -> None:
        if self._sums is None:
            self._sums = self._made("step")
        given = [self._outer.settled[name] for name in names]
        if not is_one(scale) and any(map(is_served, given)):
            raise NotRecordableError("rows of a table that are weighed before")
        self._update(self._sums.take(names, given, grads, scale))

    def _update(self, handed: Iterable[Handed]) -> None:
        """Record what the rest of the optimizer does with what is ``handed`` on."""
        for names, values, grads, factor in handed:
            self.tape.layer, self.tape.phase = self._layers[names[-1]], "update"
            own = [*map(self._own, names, values)]
            if self._inner.stages:
                self._inner.record_scaled([*names], own, [*grads], factor)
            else:
                for name, value, grad in zip(names, own, grads, strict=True):
                    if grad is None:
                        # Another process updates it.
                        continue
                    self.tape.layer = self._layers[name]
                    self._inner.record_scaled([name], [value], [grad], factor)
            self._inner.update_waiting()

    def _own(self, name: str, value: Array) -> Array:
        """The array behind ``value``, or behind a part of it: what state is made for."""
        whole, cutting = self._outer.settled[name], self.reduction.cutting
        part = None if cutting is None else cutting.part(name, whole)
        return whole if part is None else part

    def finish(self) -> None:
        """As `Updates`."""
        if self._reached:
            self._update((self._sums or self._made("step")).rest())
        self._outer.end()
        self._inner.finish()
        for written in self._rounds:
            written.end()


class WrittenReduction(Reduction):
    """Writes the calls of ``made`` on the ``tape``; gradients lie in buffers of the program's.

    Where these are a device's, and processes talk on the host, they see copies, ``hosted``.
    """

    def __init__(
        self, tape: Tape, made: Reduction, join: Callable[[Any], Any], hosted: HostCopies
    ) -> None:
        self.tape, self._made, self._join, self._hosted = tape, made, join, hosted
        self.window, self.traffic, self.rows_first = made.window, made.traffic, made.rows_first
        self.cutting = None if made.cutting is None else RecordedShardPlan(self, made.cutting)
        self._scalars: dict[str, StepScalar] = {}
        # The call by which kernels see the numbers that are known from then on, and these.
        self._weighing: Call | None = None
        self._late: list[StepScalar] = []
        # Copies of gradients to buffers: the call, the token of the gradient, from which byte on.
        self._copies: list[tuple[Call, int, int]] = []

    @property
    def entries(self) -> Sequence[Sequence[str]]:
        return self._made.entries

    @property
    def factor(self) -> Any:
        return self._number("factor", lambda: self._made.factor)

    @property
    def share(self) -> Any:
        return self._number("share", lambda: self._made.share)

    def _number(self, name: str, read: Callable[[], float]) -> StepScalar:
        if name not in self._scalars:
            self._scalars[name] = StepScalar(read, late=True)
        return self._scalars[name]

    def value(self, name: str) -> Array:
        place: Any = self.tape.place(self._made.value(name))
        return place

    def like(self, name: str) -> Array:
        return self._made.like(name)

    def is_rows(self, name: str) -> bool:
        return self._made.is_rows(name)

    def room(self, names: Sequence[str]) -> Array | None:
        room = super().room(names)
        place: Any = None if room is None else self.tape.like(room)
        return place

    def lay(self, part: Array, grad: Array) -> None:
        """As `Reduction`. Raises `NotRecordableError` for a gradient of another shape."""
        if grad.shape != part.shape:
            raise NotRecordableError("a gradient of another shape")
        # One that a stage has summed is its own.
        source: Any = self.tape.place(grad)
        target: Any = self.tape.place(part)
        np.copyto(target, source)
        copy, ref = self.tape.calls[-1], self.tape.ref(source)
        token = self.tape.tokens[ref.token]
        alone = token.held is None and token.writes and token.nbytes == source.nbytes
        if alone and source.flags.c_contiguous and source.dtype == part.dtype:
            self._copies.append((copy, ref.token, target.offset))

    def open(self, kind: RoundKind) -> None:
        self.call("open", self._made.open, kind)

    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """As `Reduction`. Raises `NotRecordableError` for gradients of another kind than before."""
        sources = {name: source_of(grad) for name, grad in rows.items()}
        if any(scale is None for scale in scales):
            raise NotRecordableError("a step that does not reach all parameters")
        if None in sources.values() or sources.keys() != {*filter(self.is_rows, names)}:
            raise NotRecordableError(f"{one_of(names)}: a gradient of another kind than before")

        copy = self._copy_of(names, buffer)

        def start(scales: Any, buffer: Array | None = None) -> None:
            now: dict[str, Any] = {name: of and of.now() for name, of in sources.items()}
            told = buffer if copy is None else copy.tell(buffer)
            self._made.start(names, told, [*map(number_now, scales)], now)
            if self.tape.lowering is not ON_HOST:
                # The host has no other turn while kernels run.
                self._made.test()

        self.call("start", start, scales, entry=names, buffer=buffer)

    def test(self) -> None:
        """Nothing: the program looks at what is under way between its calls."""

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        found: dict[str, Any] = {}
        copy = self._copy_of(names, buffer)

        def finish(buffer: Array | None = None) -> None:
            told = buffer if copy is None else copy.told
            found.update(zip(names, self._made.finish(names, told), strict=True))
            if copy is not None:
                copy.hear(buffer)

        self.call("finish", finish, entry=names, buffer=buffer)
        if self._weighing is None:
            self._weighing = self.call("weigh", _refresh(self._late))
        return [self._rows(name, found) if self.is_rows(name) else True for name in names]

    def _copy_of(self, names: Sequence[str], buffer: Array | None) -> HostCopy | None:
        """What others see of the ``buffer`` of an entry; None for that itself."""
        if buffer is None or self.tape.lowering is ON_HOST:
            return None
        like = next(self.like(name) for name in names if not self.is_rows(name))
        if not on_host(self._made.module(like)):
            return None
        return self._hosted.setdefault(tuple(names), HostCopy())

    def _rows(self, name: str, found: dict[str, Any]) -> RowSparse:
        """The rows that are ``found`` by then."""
        like = self.like(name)
        nothing = RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
        source = RowsSource(lambda: found.pop(name) or nothing, lambda: found[name] or nothing)
        return live_rows(nothing, source, self.tape)

    def joined(self, total: Any) -> Any:
        """As `Reducer.joined`, of a number that a kernel makes."""
        place: Any = self.tape.new((), np.float64)
        np.copyto(place, total)

        def join(made: Array) -> None:
            made[...] = self._join(made[()])

        self.call("join", join, buffer=place)
        return place

    def end(self) -> None:
        """Once all is recorded, let its kernels see the numbers that are known after a sum."""
        self._late += [scalar for scalar in self.tape.scalars if scalar.late]
        if self._weighing is not None:
            arrays = [array for scalar in self._late for array in scalar.arrays]
            tokens = [self.tape.ref(array).token for array in arrays]
            self._weighing.writes = tuple(dict.fromkeys(tokens))

    def close(self, kind: RoundKind) -> None:
        """As `Reduction`; gradients that only the sum reads are made in the buffer of the sum."""
        self.call("close", self._made.close, kind)
        calls, moves = self.tape.calls, self.tape.moves
        last = {token: k for k, call in enumerate(calls) for token in (*call.reads, *call.writes)}
        place = {id(call): k for k, call in enumerate(calls)}
        gone: set[int] = set()
        for copy, token, start in self._copies:
            if token not in moves and last[token] == place[id(copy)]:
                moves[token] = copy.writes[0], start
                gone.add(id(copy))
        calls[:] = [call for call in calls if id(call) not in gone]

    def call(
        self,
        name: str,
        function: Any,
        *arguments: Any,
        entry: Sequence[str] = (),
        buffer: Array | None = None,
        filled: Sequence[Array] = (),
    ) -> Call:
        """Write down a call of ``function``, which other processes wait for."""
        if entry:
            # That of a parameter which is reduced by itself.
            self.tape.layer = entry[0].rpartition("/")[0] if len(entry) == 1 else ""
        phase, self.tape.phase = self.tape.phase, "communication"
        filled = filled if buffer is None else [buffer]
        given = (*arguments, *filled)
        call = self.tape.add(function, given, {}, filled, "hidden", changes=bool(filled), name=name)
        call.barrier = True
        self.tape.phase = phase
        return call


class RecordedShardPlan(ShardPlan):
    """Writes the calls of ``made`` down, beside those of ``written``."""

    def __init__(self, written: WrittenReduction, made: ShardPlan) -> None:
        self._written, self._made, self.ahead = written, made, made.ahead

    def part(self, name: str, array: Any) -> Any:
        source = source_of(array)
        if source is None:
            return self._made.part(name, array)
        if self._made.part(name, RowSparse(np.empty(0, np.int64), array.rows[:0])) is None:
            return None
        cut = partial(self._made.part, name)
        own = RowsSource(lambda: cut(source.look()), lambda: cut(source.look()), source.nbytes)
        return live_rows(array, own, self._written.tape)

    def pass_over(self, names: Sequence[str]) -> None:
        if names:
            self._written.call("pass over", partial(self._made.pass_over, list(names)))

    def tell(self, names: Sequence[str], targets: Sequence[Array], grads: Sequence[Any]) -> None:
        arrays = [*targets]
        sources = [source_of(grad) for grad in grads]

        def tell(*arrays: Array) -> None:
            rows = [None if source is None else source.now() for source in sources]
            self._made.tell(names, arrays, rows)

        self._written.call("tell", tell, entry=names, filled=arrays)

    def hear(self) -> None:
        self._written.call("hear", self._made.hear)


def _refresh(late: Sequence[StepScalar]) -> Callable[[], None]:
    """A function by which kernels see the numbers that become known only now."""

    def refresh() -> None:
        for scalar in late:
            scalar.refresh()

    return refresh
