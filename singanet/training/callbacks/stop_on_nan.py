"""An end where numbers are no longer finite, with the layer in which that began."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.training.callbacks.callback import Callback
from singanet.training.course import StopTraining
from singanet.types import Array, Gradient, RowSparse


class StopOnNaN(Callback):
    """Ends the fit at the first loss or gradient that is not finite, before it is applied.

    What began it is found by running the batch forward once more: the data, or the first layer
    in forward order whose output is not finite, or else the first in backward order whose
    gradient is not. ``history.stopped`` says it in words, ``layer`` names the layer (None for
    the data and the loss). With ``error`` the fit raises it as a `DataError` instead. Looks at
    every gradient, which costs a reading and a boolean a number.
    """

    def __init__(self, error: bool = False) -> None:
        self.error = bool(error)
        self.layer: str | None = None

    def on_train_begin(self) -> None:
        """Forget an earlier fit."""
        self.layer = None

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Look at the gradients of a layer."""
        for name, grad in zip(names, grads, strict=True):
            if not _finite(grad):
                layer = self.session.layer
                self._end(f"layer {layer!r}, gradient of {name!r}", layer)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Look at the loss."""
        if not math.isfinite(logs["loss"]):
            self._end("loss", None)

    def _end(self, otherwise: str, layer: str | None) -> None:
        where, self.layer = self._first_output() or (otherwise, layer)
        reason = DataError(
            where,
            expected="finite numbers",
            received=f"NaN or infinity in epoch {self.session.epoch + 1}, "
            f"step {self.session.step + 1}",
            advice="lower the learning rate, clip the gradients, or check the data",
        )
        if self.error:
            raise reason
        raise StopTraining(str(reason))

    def _first_output(self) -> tuple[str, str | None] | None:
        """Where in forward order the numbers are first not finite, None if everywhere they are."""
        if not _finite(self.session.inputs):
            return "data x", None
        if self.session.ranks.apart:
            return None  # no rank has all layers
        for name, output in self._outputs().items():
            if not _finite(output):
                return f"layer {name!r}, output", name
        return None

    def _outputs(self) -> dict[str, Any]:
        """Every layer's output in training mode, in forward order; what it changes is put back."""
        net: Any = self.session.net
        generator = net.rng.bit_generator.state
        kept = {param.name: param.value.copy() for param in net.params() if param.is_state}
        names = [node.name for node in net.nodes()]
        outputs: dict[str, Any] = net.forward(True, self.session.inputs, output=names)
        net.rng.bit_generator.state = generator
        for param in net.params():
            if param.name in kept:
                param.value[...] = kept[param.name]
        # An evaluation drops what the training forward kept for a backward.
        net.forward(False, self.session.inputs)
        return outputs


def _finite(value: Any) -> bool:
    if isinstance(value, RowSparse):
        return _finite(value.rows)
    if isinstance(value, Mapping):
        return all(_finite(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(_finite(part) for part in value)
    return bool(ops_for(value).xp.isfinite(value).all())
