"""Scaled dot-product attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.types import Array


class Attention:
    """The weights softmax(q kᵀ scale) of each head (Vaswani et al. 2017).

    q is (N, h, Tq, d) and k (N, h, Tk, d): samples, heads, positions, features.
    """

    xp: Any

    def attention_weights(
        self, q: Array, k: Array, scale: float, causal: bool, lengths: Array | None
    ) -> Array:
        """The weights (N, h, Tq, Tk), each row a distribution over the keys that may be seen.

        ``causal`` shows query i the keys up to i; ``lengths`` (N,) is the number of keys of each
        sample that are there. A query that sees no key has zero weights.
        """
        xp = self.xp
        weights: Array = xp.matmul(q, k.swapaxes(2, 3))
        if not weights.size:
            return weights
        xp.multiply(weights, scale, out=weights)
        queries, keys = weights.shape[2:]
        if causal:
            later = ~xp.tri(queries, keys, dtype=bool)
            xp.copyto(weights, weights.dtype.type(-np.inf), where=later)
        if lengths is not None:
            absent = xp.arange(keys) >= lengths[:, None]
            xp.copyto(weights, weights.dtype.type(-np.inf), where=absent[:, None, None])
        top = weights.max(axis=3, keepdims=True)
        # -inf - -inf is no number, so rows that see nothing are shifted by a finite value.
        xp.maximum(top, np.finfo(weights.dtype).min, out=top)
        xp.subtract(weights, top, out=weights)
        xp.exp(weights, out=weights)
        # The largest weight is exp(0) = 1, so this only spares the rows that see nothing.
        xp.divide(weights, xp.maximum(weights.sum(axis=3, keepdims=True), 1), out=weights)
        return weights

    def attention_backward(
        self,
        dweights: Array,
        weights: Array,
        q: Array,
        k: Array,
        scale: float,
    ) -> tuple[Array, Array]:
        """Gradients of q and k from that of the weights, which is overwritten."""
        xp = self.xp
        inner = xp.multiply(dweights, weights).sum(axis=3, keepdims=True)
        xp.subtract(dweights, inner, out=dweights)
        xp.multiply(dweights, weights, out=dweights)
        xp.multiply(dweights, scale, out=dweights)
        dq: Array = xp.matmul(dweights, k)
        dk: Array = xp.matmul(dweights.swapaxes(2, 3), q)
        return dq, dk
