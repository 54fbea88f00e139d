"""The loss in a recorded step: kernels where it is the library's, else a Python step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.counts import Counts
from singanet.engine.head import beside
from singanet.engine.memory import arrays_in
from singanet.engine.plan import Plan
from singanet.engine.step import (
    Seen,
    changed,
    differentiated,
    exchanged,
    expected_loss,
    measure_of,
    of_output,
    weighed,
)
from singanet.errors import SingaNetError
from singanet.loss.loss import losses_of
from singanet.loss.multi_loss import MultiLoss
from singanet.ops.kernel import widened
from singanet.program.array_tree import map_arrays
from singanet.program.guard import is_as_shipped
from singanet.program.ir import NotRecordableError
from singanet.program.trace.foreign import expect_unpatched, is_own, no_draws, stand_in
from singanet.program.trace.layers import own
from singanet.program.trace.python_pass import copied, copy_into, unseen_values
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import Traced
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.loss.loss import Loss
    from singanet.optimizer.chain import UpdateChain


class LossStep:
    """Loss, metric and the gradient of the outputs.

    ``seen`` has targets, weights and measure of the batch that is replayed, and afterwards what
    they gave. ``note`` says why the loss is a Python step, if it is.
    """

    def __init__(self, net: Net, plan: Plan, y: Any, weight: Array | None) -> None:
        self.net = net
        self.loss = expected_loss(net)
        # Not the plan, whose layers know the tape, which knows the loss.
        self._exchange = exchanged(plan, self.loss)
        self._shares: Mapping[str, float] = {}
        self.names = plan.outputs
        self.seen = Seen(y, weight=weight)
        self.note = ""
        self._count = 0

    def fed(self, tape: Tape, y: Any, weight: Any, chain: UpdateChain) -> dict[str, Any]:
        """The feed of the net beside its inputs, from the batch's ``y`` and ``weight``, traced."""
        return {}

    def record(
        self, tape: Tape, outputs: Any, y: Any, weight: Any, looks: bool, scaled: Any = None
    ) -> dict[str, Any]:
        """Write the step down; the gradients by the name of the output.

        ``y`` and ``weight`` are what the batch gives, traced. It ``looks`` at loss and metric, but
        not in a pass for the norm of the gradients, which may be ``scaled``.
        """
        tape.layer, tape.phase = "loss", "loss"
        outputs = widened(outputs)
        mark = len(tape.calls)
        tape.refine = self._refined
        parts = getattr(self.loss, "parts", {})
        try:
            dy = self._kernels(tape, outputs, y, weight, looks)
        except NotRecordableError as error:
            del tape.calls[mark:]
            self.note = f"loss: {error}"
            dy = self._in_python(tape, outputs, looks)
        finally:
            tape.refine = None
            if isinstance(self.loss, MultiLoss):
                self.loss.parts = parts
        if looks:
            self.seen.y = self.seen.weight = None
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
                del tape.calls[mark:]
        return partial(self._tell_weight, updates.chain)

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
        return {name: grad * factors[name].view(Traced) for name, grad in dy.items()}

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
                # A copy: it may keep what it is shown, or change it.
                outputs, found = map_arrays((outputs, found), copied)
            self.seen.measured(outputs, found)
        except SingaNetError as error:
            raise self._refined(error) from None

    def _in_python(self, tape: Tape, outputs: Any, looks: bool) -> dict[str, Any]:
        expect_unpatched(self.loss)
        tape.expect_values()
        with no_draws(self.loss), unseen_values(tape, "loss"):
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
    """Whether ``measure`` is known to keep and change nothing of the outputs that it is shown.

    So are singanet's own metrics and losses.
    """
    seers = getattr(measure, "seers", None)
    return seers is not None and all(map(is_as_shipped, seers))


def is_shown_copies(measure: Any, loss: Any) -> bool:
    """Whether outputs, or their positions that have a loss, are copied for ``measure``."""
    ignores = any(getattr(each, "ignore_index", None) is not None for each in losses_of(loss))
    return ignores or not only_looks(measure)


def copies_shown(net: Net) -> int:
    """How many arrays of the outputs' size a step makes beside, for a user's loss or metric."""
    measure = measure_of(net)
    of_measure = measure is not None and is_shown_copies(measure, net.loss)
    return 2 if net.loss is not None and not is_own(net.loss) else int(of_measure)


class LossOfHead(LossStep):
    """A `LossStep` of a plan that makes the losses itself, and no scores: see `engine.head`.

    In the place of scores it shows zeros of their shape.
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
            self.seen.y = self.seen.weight = None
        return {self.names[0]: [self._given[self._plan.of_loss[1]], *[None] * len(found)]}

    def weight(
        self, tape: Tape, outputs: Any, y: Any, updates: Any
    ) -> float | Callable[[Any], None] | None:
        return super().weight(tape, self._scores, y, updates)

    def _tell_weight(self, chain: UpdateChain, outputs: Any) -> None:
        super()._tell_weight(chain, self._scores)


def _nothing(losses: Array, outputs: Any) -> None:
    """A look at loss and metric that nobody asked for."""
