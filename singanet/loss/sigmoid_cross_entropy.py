"""Binary and multi-label cross-entropy of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.loss.loss import Loss
from singanet.loss.targets import unit_targets
from singanet.loss.weights import term_weights
from singanet.ops import Ops, ops_for
from singanet.types import Array


class SigmoidCrossEntropy(Loss):
    """−y log σ(x) − (1 − y) log(1 − σ(x)) for scores ``x`` and targets ``y`` in [0, 1].

    Both have one shape (B, ...): (B,) or (B, 1) for one yes-or-no question, (B, C) for C labels;
    a position is an element. ``pos_weight`` multiplies the first term and ``class_weight`` both;
    each is a number or one for every class (the last axis). Computed from the scores without
    overflow, so SINGA's ε is not needed. Gradient of an element: σ(x) − y, weighted.
    """

    def __init__(
        self,
        pos_weight: float | Sequence[float] | None = None,
        class_weight: float | Sequence[float] | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self._weights = term_weights("SigmoidCrossEntropy", pos_weight, class_weight)

    def link(self, x: Array) -> Array:
        """σ(x)."""
        return ops_for(x).sigmoid(x)

    def _forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, float, Any]:
        y = unit_targets("SigmoidCrossEntropy", ops, x, y)
        if self._weights is None:
            return ops.sigmoid_cross_entropy(x, y), x.size, (x, y, None, None)
        # w (p y softplus(-x) + (1 - y) softplus(x)) with the two terms apart.
        yes, no = self._weights.of(ops, x, y)
        zero = ops.zeros(x.shape, x)
        losses = ops.sigmoid_cross_entropy(x, zero)
        losses *= no
        losses += yes * ops.sigmoid_cross_entropy(ops.negative(x), zero)
        return losses, x.size, (x, y, yes, no)

    def _backward(self, ops: Ops, saved: Any) -> Array:
        x, y, yes, no = saved
        dx = ops.sigmoid(x)
        if yes is None:
            dx -= y
        else:
            dx *= yes + no
            dx -= yes
        return dx
