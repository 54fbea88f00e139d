"""Positions as rotations of queries and keys."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(Configurable):
    """Of a `MultiHeadAttention`: queries and keys turned by their positions (Su et al. 2021).

    Pair i of the d features of a head is turned by t · theta^(-2i/d) at position t, so scores
    depend on how far a key is from its query. A pair is elements i and i + d/2, as in LLaMA's
    files at Hugging Face and GPT-NeoX; with ``interleaved`` 2i and 2i + 1, as in the paper, GPT-J
    and LLaMA's own files.
    """

    def __init__(self, theta: float = 10000.0, interleaved: bool = False) -> None:
        if not is_number(theta) or theta <= 0:
            raise ArgumentError(
                "RotaryEmbedding, theta",
                expected="a positive number",
                received=repr(theta),
                advice="10000.0 is usual, more for long sequences",
            )
        self.theta = float(theta)
        self.interleaved = interleaved

    def turned(self, ops: Ops, x: Array, first: int = 0, back: bool = False) -> Array:
        """``x`` (..., T, d) at the positions from ``first`` on; with ``back`` the other way."""
        steps, size = x.shape[-2:]
        cos, sin = _turns(first, steps, size, self.theta)
        like: Any = ops.xp.asarray
        sin = -sin if back else sin
        return ops.rotate(x, like(cos, x.dtype), like(sin, x.dtype), self.interleaved)


@lru_cache(maxsize=8)
def _turns(first: int, steps: int, size: int, theta: float) -> tuple[Array, Array]:
    """Cosine and sine (T, d/2) of every angle, in float64."""
    speed = theta ** (-2.0 * np.arange(size // 2) / size)
    angle = np.arange(first, first + steps)[:, None] * speed
    return np.cos(angle), np.sin(angle)
