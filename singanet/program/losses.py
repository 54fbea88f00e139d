"""The loss in a recorded step: a Python step that sees outputs and targets of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from singanet.errors import SingaNetError, one_of
from singanet.execution import Plan
from singanet.program.layers import keep, own
from singanet.program.tape import Tape, map_arrays
from singanet.program.traced import plain
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet


class LossStep:
    """Loss, metric and the gradient of the outputs; ``values`` are ``(loss, metric)``."""

    def __init__(self, net: FeedForwardNet, plan: Plan, y: Any, weight: Array | None) -> None:
        self.net = net
        self.names = plan.outputs
        self.y: Any = y
        self.weight = weight
        self.measure: Callable[[Any, Any], float | None] | None = None
        self.values: tuple[float, float | None] = (0.0, None)

    def record(self, tape: Tape, outputs: Any) -> dict[str, Any]:
        """Write the step down; the gradients by the name of the output."""
        tape.layer, tape.phase = "loss", "loss"
        dy = self._gradient(map_arrays(outputs, plain))
        made: dict[str, Any] = own(tape, dy if isinstance(dy, dict) else {self.names[0]: dy})
        filled: list[Array] = []
        map_arrays(made, filled.append)
        call = tape.add(self._run, (outputs, made), {}, filled, "hidden", name="loss")
        call.barrier = True
        self.y = self.weight = None
        return made

    def _run(self, outputs: Any, out: dict[str, Any]) -> None:
        dy = self._gradient(outputs)
        keep(dy if isinstance(dy, dict) else {self.names[0]: dy}, out)

    def _gradient(self, outputs: Any) -> Any:
        loss = self.net._expect_loss()
        try:
            # A user's own loss need not know of weights.
            weights = () if self.weight is None else (self.weight,)
            losses = loss.forward(True, outputs, self.y, *weights)
            score = None if self.measure is None else self.measure(outputs, self.y)
            self.values = float(losses.mean()), score
        except SingaNetError as error:
            raise error.within(f"output of layer {one_of(self.names)}") from None
        return loss.backward()
