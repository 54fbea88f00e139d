"""The optimizer's part of a recorded step whose gradients are summed over processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.optimizer.reducer import Reducer, Reduction
from singanet.optimizer.scale import is_one
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param
from singanet.program.guard import Guard
from singanet.program.ir import Call, NotRecordableError
from singanet.program.trace.python_pass import is_sparse
from singanet.program.trace.sparse_rows import RowsSource, live_rows, source_of
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import StepScalar, Traced, number_now, plain
from singanet.program.trace.traced_stages import TracedStages, expect_recordable, watch_case
from singanet.program.trace.updates import Updates
from singanet.types import Array, RowSparse

COMMUNICATES = "the optimizer waits for other processes, so that only its passes are recorded"


def updates_of(
    tape: Tape, chain: UpdateChain, guard: Guard, trained: Sequence[Param]
) -> Updates | ReducedUpdates:
    """What records the updates of ``chain``. Raises `NotRecordableError`."""
    found = [stage for stage in chain.reducers if not (stage.alone or stage.local)]
    if not found:
        return Updates(tape, chain, guard, trained)
    reduction = found[0].reduction() if len(found) == 1 else None
    if reduction is None:
        raise NotRecordableError(COMMUNICATES)
    return ReducedUpdates(tape, chain, found[0], reduction, guard, trained)


class ReducedUpdates:
    """As `Updates`, for a ``chain`` of which ``reducer`` is a stage.

    Gradients go through the stages around it to the buffers of the ``reduction``. The rest of the
    optimizer is recorded where these are summed: as by the layers, when as many others are under
    way as its window allows.
    """

    def __init__(
        self,
        tape: Tape,
        chain: UpdateChain,
        reducer: Reducer,
        reduction: Reduction,
        guard: Guard,
        trained: Sequence[Param],
    ) -> None:
        self.tape, self.chain, self.reduction = tape, chain, reduction
        outer = chain.stages[: chain.stages.index(reducer)]
        expect_recordable(outer)
        self._reducer = reducer
        self._outer = TracedStages(tape, guard, outer, trained)
        guard.part(reducer)
        watch_case(guard, reducer)
        self._inner = Updates(tape, UpdateChain(reducer.optimizer), guard, trained, summed=True)
        self._values = {param.name: param.value for param in trained if not param.storage.by_rows}
        self._served: list[tuple[str, Array, Any]] = []
        self._layers: dict[str, str] = {}
        self.scaled: Any = self._outer.scaled
        self._reached = reducer in chain.reached()
        self._sums: TracedSums | None = None
        if self._reached and {n for entry in reduction.entries for n in entry} != {*self._values}:
            raise NotRecordableError(
                "the optimizer waits for gradients that this step does not give"
            )
        tape.carry_on = reduction.test
        self.numbers, self.members = self._inner.numbers, self._inner.members

    @property
    def reasons(self) -> list[str]:
        """As `Updates`."""
        return self._inner.reasons

    @property
    def weighs(self) -> bool:
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
        sums = TracedSums(self.tape, self.reduction, "preview")
        for item in items:
            names, _, grads = item
            for name in names:
                self._layers[name] = getattr(item, "layer", self.tape.layer)
            del item
            for landed in sums.give(names, grads, 1.0, self._layers):
                yield self._multiplied(*landed)
            del names, grads
        for landed in sums.rest():
            yield self._multiplied(*landed)
        sums.close()

    def _multiplied(self, names: list[str], grads: list[Any], factor: StepScalar) -> Any:
        scale: Any = factor
        for grad in grads:
            np.multiply(grad, scale, out=grad)
        return names, [self._values[name].view(Traced) for name in names], grads

    def begin(self, count: float | Callable[[Any], float | None] | None, outputs: Any) -> None:
        """As `Updates`."""
        why = self._outer.weigh(self.chain, count, outputs)
        if why is not None:
            raise NotRecordableError(why)

    def record(self, item: LayerGradients) -> None:
        """As `Updates`, of what is summed by then."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        self._layers.update(dict.fromkeys(item.names, item.layer))
        names, grads = list(item.names), list(item.grads)
        if self._outer.stages and any(map(is_sparse, grads)) and self._outer.read_gradients:
            raise NotRecordableError("rows of a table that are gathered before they are reduced")
        values = [value.view(Traced) for value in item.values]
        self._outer.hand(names, values, grads, 1.0, self._give)

    def _give(self, names: Any, values: Any, grads: Any, scale: Any) -> None:
        if self._sums is None:
            self._sums = TracedSums(self.tape, self.reduction, "step")
        summed: list[tuple[str, Any]] = []
        for name, grad in zip(names, grads, strict=True):
            if name in self._values:
                summed.append((name, grad))
            elif not is_one(scale):
                raise NotRecordableError("rows of a table that are weighed before")
            else:
                self._served.append((name, self._outer.settled[name], grad))
        if summed:
            some, their = [name for name, _ in summed], [grad for _, grad in summed]
            for landed in self._sums.give(some, their, scale, self._layers):
                self._update(*landed)

    def _update(self, names: list[str], grads: list[Any], factor: StepScalar) -> None:
        """Record what the rest of the optimizer does with sums, and what stages around do then."""
        self.tape.layer, self.tape.phase = self._layers[names[-1]], "update"
        changed = [name for name in names if self._reducer.optimizer.will_change(name)]
        if self._inner.stages:
            targets = [self._outer.settled[name] for name in names]
            self._inner.record_scaled(names, targets, grads, factor)
        else:
            for name, grad in zip(names, grads, strict=True):
                self.tape.layer = self._layers[name]
                self._inner.record_scaled([name], [self._outer.settled[name]], [grad], factor)
        self._inner.update_waiting()
        for stage in reversed(self._outer.traced):
            stage.updated(changed, [self._values[name].view(Traced) for name in changed])

    def finish(self) -> None:
        """As `Updates`."""
        if self._reached:
            if self._sums is None:
                self._sums = TracedSums(self.tape, self.reduction, "step")
            reduction = self.reduction
            if reduction.rows_first:
                self._push_served(StepScalar(lambda: reduction.share))
            for landed in self._sums.rest():
                self._update(*landed)
            if not reduction.rows_first:
                self._push_served(StepScalar(lambda: reduction.share, late=True))
            self._sums.close()
        self._outer.end()
        self._inner.finish()

    def _push_served(self, share: StepScalar) -> None:
        """Record what becomes of the gradients of rows that tables have."""
        for name, value, grad in self._served:
            self.tape.layer, self.tape.phase = self._layers[name], "update"
            self._inner.record_scaled([name], [value], [grad], share)


class TracedSums:
    """A round of sums on the tape: gradients are laid into buffers, which are summed in place.

    `give` and `rest` return those that are there: names, gradients, and what these are to be
    multiplied by.
    """

    def __init__(self, tape: Tape, reduction: Reduction, kind: str) -> None:
        self.tape, self.reduction, self.kind = tape, reduction, kind
        self._given: dict[str, tuple[Any, Any]] = {}
        self._next = 0
        self._flying: deque[tuple[int, Any]] = deque()
        self._heard = False
        self.factor = StepScalar(lambda: reduction.factor, late=True)
        self._place = {name: k for k, entry in enumerate(reduction.entries) for name in entry}
        self._buffers: dict[int, Array] = {}
        # Copies of gradients to there: the call, the token of the gradient, and from which byte on.
        self._copies: list[tuple[Call, int, int]] = []
        self._call(reduction.open, kind, name="open")

    def give(
        self, names: Sequence[str], grads: Sequence[Any], scale: Any, layers: dict[str, str]
    ) -> Iterator[tuple[list[str], list[Any], StepScalar]]:
        """Lay the gradients of a layer down, and begin the sums that are complete."""
        for name, grad in zip(names, grads, strict=True):
            if grad is None or is_sparse(grad) != (name in self.reduction.sparse):
                raise NotRecordableError(f"{name}: a gradient of another kind than before")
            if is_sparse(grad) and source_of(grad) is None:
                raise NotRecordableError("rows of a table")
            self._given[name] = (grad if is_sparse(grad) else self._lay(name, grad)), scale
        entries = self.reduction.entries
        while self._next < len(entries) and all(n in self._given for n in entries[self._next]):
            self._start()
            while len(self._flying) > self.reduction.window:
                yield self._land()

    def rest(self) -> Iterator[tuple[list[str], list[Any], StepScalar]]:
        """What is under way."""
        if self._next < len(self.reduction.entries):
            raise NotRecordableError("a step that does not reach all parameters")
        while self._flying:
            yield self._land()

    def close(self) -> None:
        """End the round; gradients that nobody reads beside it are made where they are summed."""
        self._call(self.reduction.close, self.kind, name="close")
        calls, moves = self.tape.calls, self.tape.moves
        last = {token: k for k, call in enumerate(calls) for token in (*call.reads, *call.writes)}
        place = {id(call): k for k, call in enumerate(calls)}
        gone: set[int] = set()
        for copy, token, start in self._copies:
            if token not in moves and last[token] == place[id(copy)]:
                moves[token] = copy.writes[0], start
                gone.add(id(copy))
        calls[:] = [call for call in calls if id(call) not in gone]

    def _call(
        self, function: Any, *arguments: Any, name: str, changes: Sequence[Array] = ()
    ) -> Call:
        phase, self.tape.phase = self.tape.phase, "communication"
        call = self.tape.add(
            function, arguments, {}, changes, "hidden", changes=bool(changes), name=name
        )
        call.barrier = True
        self.tape.phase = phase
        return call

    def _lay(self, name: str, grad: Array) -> Array:
        """The part of a buffer that the gradient is copied to."""
        entry, like = self._place[name], self.reduction.like(name)
        if grad.shape != like.shape:
            raise NotRecordableError(f"{name}: a gradient of another shape")
        names = self.reduction.entries[entry]
        likes = [self.reduction.like(each) for each in names]
        if entry not in self._buffers:
            size = sum(each.size for each in likes) + len(names)
            made = self._buffers[entry] = np.empty(size, likes[0].dtype)
            self.tape.adopt(made)
        buffer = self._buffers[entry]
        start = sum(each.size for each in likes[: list(names).index(name)])
        part = buffer[start : start + like.size].reshape(like.shape).view(Traced)
        source = plain(grad)
        np.copyto(part, grad)
        copy, ref = self.tape.calls[-1], self.tape.ref(source)
        token = self.tape.tokens[ref.token]
        alone = token.held is None and token.writes and token.nbytes == source.nbytes
        if alone and source.flags.c_contiguous and source.dtype == buffer.dtype:
            self._copies.append((copy, ref.token, start * buffer.itemsize))
        return part

    def _start(self) -> None:
        number = self._next
        reduction, self._next = self.reduction, number + 1
        names = reduction.entries[number]
        given = [self._given.pop(name) for name in names]
        self.tape.layer = _layer_of(names)
        if names[0] in self.reduction.sparse:
            ((grad, scale),) = given
            source = source_of(grad)
            assert source is not None

            def start_rows(scale: Any) -> None:
                reduction.start_rows(number, source.now(), number_now(scale))

            self._call(start_rows, scale, name="start")
            self._flying.append((number, None))
            return
        buffer = self._buffers[number]
        scales = [scale for _, scale in given]
        self._call(reduction.start, number, buffer, scales, name="start", changes=[buffer])
        self._flying.append((number, buffer))

    def _land(self) -> tuple[list[str], list[Any], StepScalar]:
        (number, buffer), reduction = self._flying.popleft(), self.reduction
        names = list(reduction.entries[number])
        self.tape.layer = _layer_of(names)
        grads: list[Any] = []
        if buffer is None:
            found: list[RowSparse] = []

            def finish_rows() -> None:
                found[:] = [reduction.finish_rows(number)]

            self._call(finish_rows, name="finish")
            like = reduction.like(names[0])
            nothing = RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
            grads.append(live_rows(nothing, RowsSource(found.pop), self.tape))
        else:
            self._call(reduction.finish, number, buffer, name="finish", changes=[buffer])
            start = 0
            for name in names:
                like = reduction.like(name)
                grads.append(buffer[start : start + like.size].reshape(like.shape).view(Traced))
                start += like.size
        if not self._heard:
            self._heard = True
            self._call(_refresh(self.tape.scalars), name="weigh")
        return names, grads, self.factor


def _refresh(scalars: Sequence[StepScalar]) -> Callable[[], None]:
    """What lets kernels see the numbers that are known now, and not before."""
    late: list[StepScalar] = []

    def refresh() -> None:
        if not late:
            late[:] = [scalar for scalar in scalars if scalar.late]
        for scalar in late:
            scalar.refresh()

    return refresh


def _layer_of(names: Sequence[str]) -> str:
    """The layer of a parameter that is reduced by itself."""
    return names[0].rpartition("/")[0] if len(names) == 1 else ""
