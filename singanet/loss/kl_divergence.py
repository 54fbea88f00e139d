"""Distance of a distribution from another."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.errors import DataError
from singanet.loss.loss import Loss
from singanet.loss.targets import real_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array


class KLDivergence(Loss):
    """Σ_j t_j (log t_j − log softmax(x)_j) for scores ``x`` and probabilities ``t`` (B, ..., C).

    A position is one row of C; 0 log 0 is 0. Rows of ``t`` must sum to 1 within 0.001 and hold
    nothing negative. It is the cross-entropy less the entropy of the targets, so 0 is reached;
    gradient of a position: softmax(x) − t.
    """

    link_name = "softmax"

    def link(self, x: Array) -> Array:
        """softmax(x) along the last axis."""
        return ops_for(x).softmax(x)

    def count(self, x: Array, y: Array) -> float:
        """Rows."""
        return prod(x.shape[:-1])

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        target = real_targets("KLDivergence", x, y)
        if x.ndim < 2 or x.shape[-1] == 0:
            raise DataError(
                "KLDivergence",
                expected="outputs of shape (batch, ..., classes)",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with one output for every class",
            )
        rows, target = x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1])
        off = ops.absolute(target.sum(axis=1) - 1.0)
        # As a look at what is right: NaN is neither below nor above.
        if target.size and not (float(target.min()) >= 0 and float(off.max()) <= 1e-3):
            wrong = int((~((target >= 0).all(axis=1) & (off <= 1e-3))).argmax())
            raise DataError(
                "KLDivergence",
                expected="target rows that are distributions",
                received=f"a row with sum {float(target[wrong].sum()):g} at index {wrong}",
                advice="divide each row by its sum",
            )
        losses, p = ops.softmax_cross_entropy_soft(rows, target)
        own = ops.where(target > 0, target, 1)
        losses += (target * ops.log(own)).sum(axis=1)
        return losses.reshape(x.shape[:-1]), (x.shape, p, target)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        shape, p, target = saved
        p -= target
        return p.reshape(shape)
