"""Recorded losses, and the recorded step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.engine.backward import arrays_in
from singanet.engine.fusion import beside
from singanet.engine.plan import Plan
from singanet.engine.step import (
    Counts,
    FiniteCheck,
    StepMetrics,
    changed,
    differentiated,
    exchanged,
    expected_loss,
    of_output,
    weighed,
)
from singanet.errors import SingaNetError
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import losses_of
from singanet.ops.kernel import widened
from singanet.optimizer.chain import TwoPasses
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.program.guard import is_as_shipped
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.trace.foreign_code import expect_unpatched, is_own, no_draws, stand_in
from singanet.program.trace.layers import copied, copy_into, own
from singanet.program.trace.tape import Tape
from singanet.program.trace.updates import RecordedChain
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.loss.loss import Loss
    from singanet.optimizer.chain import UpdateChain


class LossStep:
    """Loss, metric and the gradient of the outputs.

    ``seen`` has targets, weights and measure of the replayed batch, and afterwards the results.
    ``note`` is the reason if the loss is a Python step. ``updates_last`` tells whether the layers
    would update once all gradients are there.
    """

    updates_last = False

    def __init__(self, net: Net, plan: Plan, y: Any, weight: Array | None) -> None:
        self.net = net
        self.loss = expected_loss(net)
        # Not the plan, whose layers know the tape, which knows the loss.
        self._exchange = exchanged(plan, self.loss)
        self._shares: Mapping[str, float] = {}
        self.names = plan.outputs
        self.seen = StepMetrics(y, weight=weight)
        self.note = ""
        self._count = 0

    def fed(self, tape: Tape, y: Any, weight: Any, chain: UpdateChain) -> dict[str, Any]:
        """Further inputs of the net, from abstract ``y`` and ``weight`` of a batch."""
        return {}

    def record(
        self, tape: Tape, outputs: Any, y: Any, weight: Any, looks: bool, scaled: Any = None
    ) -> dict[str, Any]:
        """Record the step; return the gradients by the name of the output.

        ``y`` and ``weight`` are abstract arrays of the batch. Loss and metric are recorded if it
        ``looks``, which a pass for the norm of the gradients does not; the gradients may be
        ``scaled``.
        """
        tape.layer, tape.phase = "loss", "loss"
        outputs = widened(outputs)
        mark = len(tape.calls)
        tape.refine = self._refined
        parts = self.loss.parts if isinstance(self.loss, MultiLoss) else {}
        try:
            dy = self._kernels(tape, outputs, y, weight, looks)
        except NotRecordableError as error:
            tape.delete_from(mark)
            self.note = f"loss: {error}"
            dy = self._in_python(tape, outputs, looks)
        finally:
            tape.refine = None
            if isinstance(self.loss, MultiLoss):
                self.loss.parts = parts
        return {name: map_arrays(changed(g, scaled), self._in_type) for name, g in dy.items()}

    def _kernels(
        self, tape: Tape, outputs: Any, y: Any, weight: Any, looks: bool
    ) -> dict[str, Any]:
        if not is_own(self.loss):
            raise NotRecordableError("a class that is not singanet's")
        if y is None:
            raise NotRecordableError("targets or weights that are no arrays of numbers")

        def look(losses: Array, outputs: Any) -> None:
            if not looks:
                return
            self._count = losses.size
            parts = self.loss.parts if isinstance(self.loss, MultiLoss) else {}
            read = tape.add(self._read, (losses.sum(), parts), {}, (), "hidden", name="read")
            read.barrier = True
            tape.add(self._score_now, (outputs,), {}, (), "hidden", name="metric").barrier = True

        return self._by_name(differentiated(self.loss, outputs, y, weight, look, self.names))

    def weight(
        self, tape: Tape, outputs: Any, y: Any, updates: Any
    ) -> float | Callable[[Any], None] | None:
        """The weight of the batch; if it depends on values, a function that replays call."""
        mark = len(tape.calls)
        if y is not None and is_own(self.loss) and not self._tells(updates):
            try:
                return Counts.of(self.loss, widened(outputs), y).weight
            except NotRecordableError:
                tape.delete_from(mark)
        return partial(self._tell_weight, updates.told)

    def _tells(self, updates: Any) -> bool:
        return updates.reduction is not None and self._exchange[1]

    def _tell_weight(self, chain: UpdateChain, outputs: Any) -> None:
        given = widened(outputs) if is_own(self.loss) else map_arrays(outputs, copied)
        self._shares = weighed(chain, self._exchange, self.loss, given, self.seen)

    def shared(self, tape: Tape, dy: dict[str, Any], updates: Any) -> dict[str, Any]:
        """``dy`` times each output's share, if processes exchange the counts of their losses."""
        if not self._tells(updates):
            return dy
        factors = {name: np.ones((), grad.dtype) for name, grad in dy.items()}

        def share() -> None:
            for name, factor in factors.items():
                factor[...] = self._shares.get(name, 1.0)

        tape.layer, tape.phase = "loss", "loss"
        filled = list(factors.values())
        tape.add(share, (), {}, filled, "hidden", name="weigh").barrier = True
        return {name: grad * tape.hold(factors[name]) for name, grad in dy.items()}

    def _read(self, total: Array, parts: dict[str, Array]) -> None:
        # As NumPy's mean: the quotient in float64, rounded to the type of the losses.
        mean = float(total) / self._count if self._count else math.nan
        self.seen.loss = float(total.dtype.type(mean))
        if parts:
            self.loss.parts = {name: part.copy() for name, part in parts.items()}

    def _score_now(self, outputs: Any, found: Any = None) -> None:
        measure = self.seen.measure
        try:
            if measure is not None and not only_looks(measure):
                # A copy, since the measure may store or change its arguments.
                outputs, found = map_arrays((outputs, found), copied)
            self.seen.measured(outputs, found)
        except SingaNetError as error:
            raise self._refined(error) from None

    def _in_python(self, tape: Tape, outputs: Any, looks: bool) -> dict[str, Any]:
        expect_unpatched(self.loss)
        with no_draws(self.loss):
            dy = self._gradient(stand_in(self.loss), tape.shown(outputs), looks)
        made: dict[str, Any] = own(tape, self._by_name(dy))
        filled = arrays_in(made)
        call = tape.add(
            partial(self._run, looks), (outputs, made), {}, filled, "hidden", name="loss"
        )
        call.barrier = True
        # It is shown copies, and makes a gradient of its own.
        tape.beside += sum(array.nbytes for array in (*arrays_in(outputs), *filled))
        return made

    def _run(self, looks: bool, outputs: Any, out: dict[str, Any]) -> None:
        dy = self._gradient(self.loss, map_arrays(outputs, copied), looks)
        copy_into(self._by_name(dy), out, self.net.device.ops.xp.copyto)

    def _gradient(self, loss: Loss, outputs: Any, looks: bool) -> Any:
        look = self.seen if looks else _nothing
        return differentiated(loss, outputs, self.seen.y, self.seen.weight, look, self.names)

    def _in_type(self, grad: Array) -> Array:
        return grad if grad.dtype == self.net.dtype else grad.astype(self.net.dtype)

    def _by_name(self, dy: Any) -> dict[str, Any]:
        return dy if isinstance(dy, dict) else {self.names[0]: dy}

    def _refined(self, error: SingaNetError) -> SingaNetError:
        return of_output(error, self.names)


def only_looks(measure: Any) -> bool:
    """Whether ``measure`` is known not to store or change the outputs.

    This holds for singanet's own metrics and losses.
    """
    seers = getattr(measure, "seers", None)
    return seers is not None and all(map(is_as_shipped, seers))


def copies_shown(measure: Any, loss: Any, recorded: bool) -> int:
    """The number of arrays of the outputs' size that a user's loss or ``measure`` gets.

    Copies lack the positions without a loss. The copies for a ``recorded`` loss are counted
    elsewhere.
    """
    if loss is not None and not recorded and not is_own(loss):
        return 2
    ignores = any(getattr(each, "ignore_index", None) is not None for each in losses_of(loss))
    return int(measure is not None and (ignores or not only_looks(measure)))


class LossOfHead(LossStep):
    """A `LossStep` of a plan that computes the losses itself, without scores (`loss.head`).

    Measures get zeros in the shape of the scores.
    """

    def __init__(self, net: Net, plan: Plan, y: Any, weight: Array | None) -> None:
        super().__init__(net, plan, y, weight)
        self._plan = plan
        self._scores = plan.head.scores(y)

    def fed(self, tape: Tape, y: Any, weight: Any, chain: UpdateChain) -> dict[str, Any]:
        ops: Any = tape.ops
        self._given = beside(self._plan, y, weight, ops, self.net.dtype, chain)
        return self._given

    def record(
        self, tape: Tape, outputs: Any, y: Any, weight: Any, looks: bool, scaled: Any = None
    ) -> dict[str, Any]:
        tape.layer, tape.phase = "loss", "loss"
        losses, *found = outputs
        if looks:
            self._count = losses.size
            read = tape.add(self._read, (losses.sum(), {}), {}, (), "hidden", name="read")
            read.barrier = True
            tape.add(self._score_now, (self._scores, found), {}, (), "hidden", name="metric")
            tape.calls[-1].barrier = True
        return {self.names[0]: [self._given[self._plan.of_loss[1]], *[None] * len(found)]}

    def weight(
        self, tape: Tape, outputs: Any, y: Any, updates: Any
    ) -> float | Callable[[Any], None] | None:
        return super().weight(tape, self._scores, y, updates)

    def _tell_weight(self, chain: UpdateChain, outputs: Any) -> None:
        super()._tell_weight(chain, self._scores)


def _nothing(losses: Array, outputs: Any) -> None:
    """Do nothing with loss and outputs."""


def targets(y: Any, weight: Any, device: type = np.ndarray) -> tuple[Any, Any]:
    """Targets and weights as plain arrays; None for other objects.

    They are NumPy's or the ``device``'s. Kernels read numbers in the machine's own byte order.
    """

    def is_plain(array: Any) -> bool:
        return type(array) in (np.ndarray, device) and array.dtype.isnative

    arrays = list(y.values()) if isinstance(y, Mapping) else [y]
    plain = all(is_plain(array) and array.dtype.kind in "fiub" for array in arrays)
    if not plain or not (weight is None or is_plain(weight)):
        return None, None
    return (dict(y) if isinstance(y, Mapping) else y), weight


def by_slot(plan: Plan, dy: Mapping[str, Any]) -> dict[int, Array]:
    """Gradients of outputs, by their names in ``dy``, by their slots."""
    slots: dict[int, Array] = {}
    for name, given in dy.items():
        step = plan.by_name[name]
        # Outputs that only metrics read have no gradient.
        of_slots = zip(step.out_slots, given if step.many_out else [given], strict=True)
        slots.update((slot, grad) for slot, grad in of_slots if grad is not None)
    return slots


class Traces(Protocol):
    """A recording with the passes of a net: a `Recorder`."""

    net: Net
    tape: Tape
    loss: Any
    params: list[tuple[Param, Array]]
    plan: Plan

    def draws(self) -> Any:
        """Return the generator of layers."""

    def forward(self, given: dict[str, Any], train: bool) -> tuple[dict[str, Any], list[Any]]:
        """Return outputs by name, and the layers' contexts."""

    def single(self, outputs: dict[str, Any]) -> Any:
        """``outputs`` by name, or the array of the only one."""

    def backward(self, contexts: list[Any], dy: Mapping[str, Any]) -> Iterator[LayerGradients]:
        """Walk backward from the gradients ``dy`` of outputs by name."""

    def walked_by_zeros(self, fed: dict[str, Any]) -> Iterator[LayerGradients]:
        """Run forward, and backward with gradients of zeros."""


class RecordedStep:
    """Records a step on the tape of ``recorder``; a `Carrier`.

    The batch is in the abstract arrays ``given``, targets and weights are in ``beside``.
    """

    def __init__(
        self,
        recorder: Traces,
        updates: RecordedChain,
        given: dict[str, Any],
        beside: tuple[Any, Any] = (None, None),
    ) -> None:
        self._recorder, self._updates, self._given, self._beside = recorder, updates, given, beside
        self.net, self._tape = recorder.net, recorder.tape
        self._norm = updates.ahead()
        # Memory is too small for the gradients of a net that is larger than memory.
        bounded = any(param.storage.bounded for param, _ in recorder.params)
        self.holds = updates.told.scaled is not None and not bounded
        self.updated = False

    def norm(self) -> TwoPasses | None:
        return self._norm

    @contextmanager
    def rehearsed(self) -> Iterator[None]:
        """A block whose draws and running state each replay restores."""
        draws: list[Any] = []
        net, tape = self.net, self._tape
        params = self._recorder.params
        state = [tape.hold(value) for param, value in params if param.is_state]
        before = []
        for value in state:
            before.append(value.copy())
            # A Python layer changes the state unnoticed, so the copy is neither repeated nor moved.
            tape.calls[-1].barrier = True

        def remember() -> None:
            draws[:] = [net.rng.bit_generator.state]

        def restore() -> None:
            net.rng.bit_generator.state = draws.pop()

        self.do("draws", remember)
        yield
        tape.layer, tape.phase = "", "backward"
        self.do("draws", restore)
        for value, old in zip(state, before, strict=True):
            value[...] = old

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        return placed(self._tape, self._walked(again))

    def _walked(self, again: bool) -> Iterator[LayerGradients]:
        recorder, updates, tape = self._recorder, self._updates, self._tape
        loss, scaled = recorder.loss, updates.told.scaled
        assert loss is not None
        y, weight = self._beside
        given = {**self._given, **loss.fed(tape, y, weight, updates.told)}
        outputs, contexts = recorder.forward(given, train=True)
        del given
        single = recorder.single(outputs)
        scale = None if scaled is None else scaled.precision.scaled
        dy = loss.record(tape, single, y, weight, not again, scale)
        if updates._weighs:
            updates.weigh(loss.weight(tape, single, y, updates), single)
            dy = loss.shared(tape, dy, updates)
        del single
        del outputs
        return recorder.backward(contexts, dy)

    def do(self, name: str, function: Callable[[], object]) -> None:
        """Record a call of ``function``."""
        self._tape.add(function, (), {}, (), "hidden", name=name).barrier = True

    def look(self, taken: FiniteCheck, layer: str, finite: Array) -> None:
        """Record a check whether the gradients of ``layer`` are ``finite``."""
        look = partial(taken.look, layer)
        self._tape.add(look, (finite,), {}, (), "hidden", name="finite").barrier = True

    def agree(self, taken: FiniteCheck) -> None:
        """Record the decision whether the step is applied."""
        if self._updates.reduction is not None:
            self._tape.phase = "communication"
        self.do("agree", taken.agree)

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        return norm.knowing(items)

    def update(self, items: Iterable[LayerGradients]) -> None:
        self._updates.apply(items)


class RehearsedStep(RecordedStep):
    """A `RecordedStep` without targets: the gradients of outputs are zeros."""

    def _walked(self, again: bool) -> Iterator[LayerGradients]:
        return self._recorder.walked_by_zeros(self._given)


def placed(tape: Tape, items: Iterator[LayerGradients]) -> Iterator[LayerGradients]:
    """``items`` with the places of their values."""
    for item in items:
        values: list[Any] = [*map(tape.place, item.values)]
        placed = LayerGradients(item.names, values, item.grads, item.layer)
        placed._unfinished = item._unfinished
        del item
        yield placed
        del placed
