"""Norms of queries and keys."""

from __future__ import annotations

from singanet.base.arguments import is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError
from singanet.layers.rms import Kept, rms_norm, rms_norm_backward
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["QueryKeyNorm"]


class QueryKeyNorm(Configurable):
    """Of a `MultiHeadAttention`: queries and keys by their root mean square, before positions.

    Each head's d features become (``offset`` + gamma) x / sqrt(mean(x²) + ``epsilon``), where all
    heads share ``query_gamma`` and ``key_gamma`` (d,), as in Qwen3, and with an offset of 1 in
    Gemma 3 (after Henry et al. 2020). With ``joint`` the features of all heads are normalised
    together, by gammas (heads · d,), as in OLMo 2.
    """

    def __init__(self, epsilon: float = 1e-6, joint: bool = False, offset: float = 0.0) -> None:
        for name, value, good in (
            ("epsilon", epsilon, is_number(epsilon) and epsilon > 0),
            ("offset", offset, is_number(offset)),
        ):
            if not good:
                raise ArgumentError(
                    f"QueryKeyNorm, {name}",
                    expected="a positive number" if name == "epsilon" else "a finite number",
                    received=repr(value),
                    advice="leave it out for the usual one",
                )
        self.epsilon = float(epsilon)
        self.joint = bool(joint)
        self.offset = float(offset)

    def size(self, heads: int, features: int) -> int:
        """How many features are normalised together, of so many heads."""
        return heads * features if self.joint else features

    def normed(self, ops: Ops, x: Array, gamma: Array) -> tuple[Array, Kept]:
        """(N, T, heads · d) normalised, and what `backward` needs."""
        rows = x.reshape(-1, len(gamma))
        y, unit, inverse = rms_norm(ops, rows, gamma, self.epsilon, self.offset)
        return y.reshape(x.shape), (unit, inverse)

    def backward(self, ops: Ops, dy: Array, gamma: Array, kept: Kept) -> tuple[Array, Array]:
        """Gradients of (N, T, heads · d), and of gamma."""
        rows = dy.reshape(-1, len(gamma))
        dx, dgamma = rms_norm_backward(ops, rows, gamma, kept, self.offset)
        assert dgamma is not None
        return dx.reshape(dy.shape), dgamma
