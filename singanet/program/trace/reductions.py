"""Recorded reductions: the sums of gradients between ranks as calls of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from singanet.errors import one_of
from singanet.optimizer.hyper import Scale, on_host
from singanet.optimizer.reducer import Found, Reduction, RoundKind, ShardPlan
from singanet.program.ir import Call, NotRecordableError
from singanet.program.lowering import ON_HOST
from singanet.program.trace.numbers import StepScalar, number_now
from singanet.program.trace.sparse_rows import RowsSource, live_rows, source_of
from singanet.program.trace.tape import Tape
from singanet.types import Array, RowSparse


class HostCopy:
    """A copy on the host of a device's buffer, by one transfer each way.

    Its memory stays from step to step, except after an error, since others may still write to it.
    """

    _spare: Any = None
    told: Any = None
    """The copy that is summed; None before `tell`."""

    def tell(self, buffer: Any) -> Array:
        """Return a copy of ``buffer`` for others to sum."""
        told: Array = np.empty(buffer.shape, buffer.dtype) if self._spare is None else self._spare
        self.told, self._spare = told, None
        buffer.get(out=told)
        return told

    def hear(self, buffer: Any) -> None:
        """Copy the sums to ``buffer``."""
        buffer.set(self.told)
        self._spare, self.told = self.told, None


class RecordedReduction(Reduction):
    """Writes the calls of ``made`` on the ``tape``; gradients are in buffers of the program.

    ``join`` adds a number of the other processes. If the buffers are a device's, and processes
    communicate on the host, these see copies.
    """

    def __init__(self, tape: Tape, made: Reduction, join: Callable[[Any], Any]) -> None:
        self.tape, self._made, self._join = tape, made, join
        self._on_device = tape.lowering is not ON_HOST
        self.window, self.traffic, self.rows_first = made.window, made.traffic, made.rows_first
        self.cutting = None if made.cutting is None else RecordedShardPlan(self, made.cutting)
        self._factor = StepScalar(lambda: made.factor, late=True)
        self._share = StepScalar(lambda: made.share, late=True)
        self._hosted: dict[tuple[str, ...], HostCopy] = {}
        # The calls after which kernels see the factor, one a round, and the numbers made of it.
        self._weighings: list[Call] = []
        self._late: list[StepScalar] = []
        self._heard = False
        # Copies of gradients to buffers: the call, the token of the gradient, the first byte.
        self._copies: list[tuple[Call, int, int]] = []

    @property
    def entries(self) -> Sequence[Sequence[str]]:
        return self._made.entries

    @property
    def factor(self) -> Any:
        return self._factor

    @property
    def share(self) -> Any:
        return self._share

    def value(self, name: str) -> Any:
        return self.tape.place(self._made.value(name))

    def like(self, name: str) -> Array:
        return self._made.like(name)

    def is_rows(self, name: str) -> bool:
        return self._made.is_rows(name)

    def room(self, names: Sequence[str]) -> Any:
        room = super().room(names)
        return None if room is None else self.tape.like(room)

    def lay(self, part: Array, grad: Array) -> None:
        """Record the copy to the buffer. Raises `NotRecordableError` for another shape."""
        if grad.shape != part.shape:
            raise NotRecordableError("a gradient of another shape")
        # A gradient that a stage has summed is the stage's own array.
        source: Any = self.tape.place(grad)
        target: Any = self.tape.place(part)
        np.copyto(target, source)
        copy, ref = self.tape.calls[-1], self.tape.ref(source)
        token = self.tape.tokens[ref.token]
        alone = token.held is None and token.writes and token.nbytes == source.nbytes
        if alone and source.flags.c_contiguous and source.dtype == part.dtype:
            self._copies.append((copy, ref.token, target.offset))

    def open(self, kind: RoundKind) -> None:
        self._heard = False
        self._copies.clear()
        self.call("open", self._made.open, kind)

    def start(
        self,
        names: Sequence[str],
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """Record the start. Raises `NotRecordableError` for other kinds of gradients."""
        sources = {name: source_of(grad) for name, grad in rows.items()}
        if any(scale is None for scale in scales):
            raise NotRecordableError("a step that does not reach all parameters")
        if None in sources.values() or sources.keys() != {*filter(self.is_rows, names)}:
            raise NotRecordableError(f"{one_of(names)}: a gradient of another kind than before")
        # No reference to this object, which would keep the tape alive.
        copy, made, on_device = self._copy_of(names, buffer), self._made, self._on_device

        def start(scales: Any, buffer: Array | None = None) -> None:
            now: dict[str, Any] = {name: of and of.now() for name, of in sources.items()}
            told = buffer if copy is None else copy.tell(buffer)
            made.start(names, told, [*map(number_now, scales)], now)
            if on_device:
                # The host has no other turn while kernels run.
                made.test()

        self.call("start", start, scales, entry=names, buffer=buffer)

    def test(self) -> None:
        """Nothing: the program tests sums in flight between its calls."""

    def finish(self, names: Sequence[str], buffer: Array | None) -> list[Found]:
        found: dict[str, Any] = {}
        copy, made = self._copy_of(names, buffer), self._made

        def finish(buffer: Array | None = None) -> None:
            told = buffer if copy is None else copy.told
            found.update(zip(names, made.finish(names, told), strict=True))
            if copy is not None:
                copy.hear(buffer)

        self.call("finish", finish, entry=names, buffer=buffer)
        if not self._heard:
            self._heard = True
            self._weighings.append(self.call("weigh", partial(_refresh, self._late)))
        return [self._rows(name, found) if self.is_rows(name) else True for name in names]

    def _copy_of(self, names: Sequence[str], buffer: Array | None) -> HostCopy | None:
        """Return the copy of the ``buffer`` of an entry that others see; None for itself."""
        if buffer is None or not self._on_device:
            return None
        like = next(self.like(name) for name in names if not self.is_rows(name))
        if not on_host(self._made.module(like)):
            return None
        return self._hosted.setdefault(tuple(names), HostCopy())

    def _rows(self, name: str, found: dict[str, Any]) -> RowSparse:
        """Return the rows that are ``found`` by then."""
        like = self.like(name)
        nothing = RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
        source = RowsSource(lambda: found.pop(name) or nothing, lambda: found[name] or nothing)
        return live_rows(nothing, source, self.tape)

    def joined(self, total: Any) -> Any:
        """Record `Reducer.joined` of a number that a kernel computes."""
        place: Any = self.tape.new((), np.float64)
        np.copyto(place, total)
        joined = self._join

        def join(made: Array) -> None:
            made[...] = joined(made[()])

        self.call("join", join, buffer=place)
        return place

    def close(self, kind: RoundKind) -> None:
        """Record the end of a round; gradients that only the sum reads move to its buffer."""
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

    def end(self) -> None:
        """Let kernels see, from each weighing on, all numbers made of the factor."""
        self._late += [scalar for scalar in self.tape.scalars if scalar.late]
        tokens = [self.tape.ref(array).token for scalar in self._late for array in scalar.arrays]
        for call in self._weighings:
            call.writes = tuple(dict.fromkeys(tokens))
        self.cutting = None

    def call(
        self,
        name: str,
        function: Any,
        *arguments: Any,
        entry: Sequence[str] = (),
        buffer: Array | None = None,
        filled: Sequence[Array] = (),
    ) -> Call:
        """Record a call of ``function`` that communicates."""
        if entry:
            # A parameter that is reduced by itself has a layer.
            self.tape.layer = entry[0].rpartition("/")[0] if len(entry) == 1 else ""
        phase, self.tape.phase = self.tape.phase, "communication"
        filled = filled if buffer is None else [buffer]
        given = (*arguments, *filled)
        call = self.tape.add(function, given, {}, filled, "hidden", changes=bool(filled), name=name)
        call.barrier = True
        self.tape.phase = phase
        return call


class RecordedShardPlan(ShardPlan):
    """Records the calls of ``made`` among the calls of ``written``."""

    def __init__(self, written: RecordedReduction, made: ShardPlan) -> None:
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
        sources, made = [source_of(grad) for grad in grads], self._made

        def tell(*arrays: Array) -> None:
            rows = [None if source is None else source.now() for source in sources]
            made.tell(names, arrays, rows)

        self._written.call("tell", tell, entry=names, filled=[*targets])

    def hear(self) -> None:
        self._written.call("hear", self._made.hear)


def _refresh(scalars: Sequence[StepScalar]) -> None:
    """Show kernels the present values of ``scalars``."""
    for scalar in scalars:
        scalar.refresh()
