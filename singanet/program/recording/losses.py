"""The loss in a recorded step: kernels where it is the library's, else a Python step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.plan import Plan
from singanet.errors import SingaNetError, one_of
from singanet.program.call import NotRecordableError
from singanet.program.places import arrays_in, map_arrays
from singanet.program.recording.layers import own
from singanet.program.recording.python_pass import copied, keep
from singanet.program.recording.tape import Tape
from singanet.program.recording.traced import plain
from singanet.program.recording.users import expect_unpatched, is_own, no_draws, stand_in
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.loss.loss import Loss


class LossStep:
    """Loss, metric and the gradient of the outputs.

    ``y``, ``weight`` and ``measure`` are those of the batch that is replayed; ``values`` are its
    ``(loss, metric)`` afterwards. ``note`` says why the loss is a Python step, if it is one.
    """

    def __init__(self, net: Net, plan: Plan, y: Any, weight: Array | None) -> None:
        self.net = net
        self.loss = net._expect_loss()
        self.names = plan.outputs
        self.y: Any = y
        self.weight = weight
        self.measure: Callable[[Any, Any], float | None] | None = None
        self.note = ""
        self._count = 0
        self._value: Any = 0.0
        self._score: float | None = None

    @property
    def values(self) -> tuple[float, float | None]:
        """The loss and the metric of the last replay."""
        return self._value, self._score

    def record(self, tape: Tape, outputs: Any, y: Any, weight: Any) -> dict[str, Any]:
        """Write the step down; the gradients by the name of the output.

        ``y`` and ``weight`` are what the batch gives, traced.
        """
        tape.layer, tape.phase = "loss", "loss"
        mark = len(tape.calls)
        tape.refine = self._refined
        try:
            dy = self._kernels(tape, outputs, y, weight)
        except NotRecordableError as error:
            del tape.calls[mark:]
            self.note = f"loss: {error}"
            dy = self._in_python(tape, outputs)
        finally:
            tape.refine = None
        self.y = self.weight = None
        return dy

    def _kernels(self, tape: Tape, outputs: Any, y: Any, weight: Any) -> dict[str, Any]:
        if not is_own(self.loss):
            raise NotRecordableError("a class that is not singanet's")
        if y is None:
            raise NotRecordableError("targets or weights that are no arrays of numbers")
        weights = () if weight is None else (weight,)
        try:
            losses = self.loss.forward(True, outputs, y, *weights)
        except SingaNetError as error:
            raise self._refined(error) from None
        if losses.dtype == np.float16:
            raise NotRecordableError("losses in float16, whose mean NumPy takes in float32")
        self._count = losses.size
        tape.add(self._read, (losses.sum(),), {}, (), "hidden", name="read").barrier = True
        tape.add(self._score_now, (outputs,), {}, (), "hidden", name="metric").barrier = True
        dy = self.loss.backward()
        return dy if isinstance(dy, dict) else {self.names[0]: dy}

    def _read(self, total: Array) -> None:
        # As NumPy's mean: the quotient in float64, rounded to the type of the losses.
        mean = float(total) / self._count if self._count else math.nan
        self._value = float(total.dtype.type(mean))

    def _score_now(self, outputs: Any) -> None:
        if self.measure is None:
            self._score = None
            return
        try:
            # A copy: metrics may keep what they are shown, or change it.
            self._score = self.measure(map_arrays(outputs, copied), self.y)
        except SingaNetError as error:
            raise self._refined(error) from None

    def _in_python(self, tape: Tape, outputs: Any) -> dict[str, Any]:
        expect_unpatched(self.loss)
        tape.does.expect_values()
        with no_draws():
            dy = self._gradient(stand_in(self.loss), map_arrays(outputs, plain))
        made: dict[str, Any] = own(tape, dy if isinstance(dy, dict) else {self.names[0]: dy})
        filled = arrays_in(made)
        call = tape.add(self._run, (outputs, made), {}, filled, "hidden", name="loss")
        call.barrier = True
        return made

    def _run(self, outputs: Any, out: dict[str, Any]) -> None:
        dy = self._gradient(self.loss, map_arrays(outputs, copied))
        keep(dy if isinstance(dy, dict) else {self.names[0]: dy}, out)

    def _gradient(self, loss: Loss, outputs: Any) -> Any:
        try:
            # A user's own loss need not know of weights.
            weights = () if self.weight is None else (self.weight,)
            losses = loss.forward(True, outputs, self.y, *weights)
            self._value = float(losses.mean())
        except SingaNetError as error:
            raise self._refined(error) from None
        self._score_now(outputs)
        return loss.backward()

    def _refined(self, error: SingaNetError) -> SingaNetError:
        """The error with the output's name, since losses know no layers."""
        return error.within(f"output of layer {one_of(self.names)}")
