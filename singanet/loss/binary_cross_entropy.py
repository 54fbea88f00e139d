"""Binary and multi-label cross-entropy of probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.loss.loss import Loss
from singanet.loss.targets import unit_targets
from singanet.loss.weights import term_weights
from singanet.ops.interface import Ops
from singanet.types import Array


class BinaryCrossEntropy(Loss):
    """−y log x − (1 − y) log(1 − x) for probabilities ``x``, which a last sigmoid yields.

    Shapes and weights are those of `SigmoidCrossEntropy`, which takes the scores before the
    sigmoid and is the better choice where they are at hand. Logarithms are of numbers no smaller
    than the type's smallest normal one, and the gradient is taken with x kept as far as the
    type's resolution from 0 and 1.
    """

    def __init__(
        self,
        pos_weight: float | Sequence[float] | None = None,
        class_weight: float | Sequence[float] | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self._weights = term_weights("BinaryCrossEntropy", pos_weight, class_weight)

    def _forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, float, Any]:
        y = unit_targets("BinaryCrossEntropy", ops, x, y)
        if x.size and (float(x.min()) < 0 or float(x.max()) > 1):
            raise DataError(
                "BinaryCrossEntropy",
                expected="outputs from 0 to 1",
                received=f"outputs from {float(x.min()):g} to {float(x.max()):g}",
                advice="end the net in a sigmoid, or use SigmoidCrossEntropy on scores",
            )
        yes, no = (y, 1 - y) if self._weights is None else self._weights.of(ops, x, y)
        tiny = float(np.finfo(x.dtype).tiny)
        losses = -yes * ops.log(ops.maximum(x, tiny)) - no * ops.log(ops.maximum(1 - x, tiny))
        return losses, x.size, (x, yes, no)

    def _backward(self, ops: Ops, saved: Any) -> Array:
        x, yes, no = saved
        edge = float(np.finfo(x.dtype).eps)
        return no / ops.maximum(1 - x, edge) - yes / ops.maximum(x, edge)
