"""Positions as rotations of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers.past import Counts, most
from singanet.layers.rotary_scaling import Scaling, plain_speeds, scaling_of
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(Configurable):
    """Of a `MultiHeadAttention`: queries and keys turned by their positions (Su et al. 2021).

    Pair i of the d features of a head is turned by t · theta^(-2i/d) at position t, so scores
    depend on how far a key is from its query. A pair is elements i and i + d/2, as in LLaMA's
    files at Hugging Face and GPT-NeoX; with ``interleaved`` 2i and 2i + 1, as in the paper, GPT-J
    and LLaMA's own files. Of a ``fraction`` the first int(d · fraction) features alone are turned,
    and counted as d.

    ``scaling`` is for sequences longer than those of the training, as in a model's config.json: a
    mapping of ``rope_type``, "linear", "dynamic", "yarn", "llama3" or "longrope", with the
    parameters of that type (``factor``, ``original_max_position_embeddings``, ...). Under
    "dynamic" and "longrope" angles depend on how long the whole sequence is, so steps that come by
    parts must not go beyond the original length.
    """

    def __init__(
        self,
        theta: float = 10000.0,
        interleaved: bool = False,
        *,
        fraction: float = 1.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        least = 0.0 if scaling is None else 1.0
        if not is_number(theta) or not least < theta < 1e30:
            raise ArgumentError(
                "RotaryEmbedding, theta",
                expected="a positive number" if scaling is None else "a number above 1",
                received=repr(theta),
                advice="10000.0 is usual, more for long sequences",
            )
        if not is_number(fraction) or not 0.0 < fraction <= 1.0:
            raise ArgumentError(
                "RotaryEmbedding, fraction",
                expected="a number above 0 and up to 1, the part of a head that is turned",
                received=repr(fraction),
                advice="leave it out to turn all features",
            )
        self.theta = float(theta)
        self.interleaved = interleaved
        self.fraction = float(fraction)
        self._scaling = None if scaling is None else scaling_of(scaling)

    @property
    def pairs(self) -> int | None:
        """How many pairs a head must have; None for any number."""
        return None if self._scaling is None else self._scaling.pairs

    def features(self, size: int) -> int:
        """How many of the ``size`` features of a head are turned."""
        return int(size * self.fraction)

    @property
    def longest(self) -> int | None:
        """Up to which number of steps angles do not depend on that number; None for any."""
        return None if self._scaling is None else self._scaling.longest

    def speeds(self, size: int, steps: int) -> tuple[Array, float]:
        """Radians a step for each pair of a head of ``size``, and what lengthens every pair.

        In sequences of ``steps`` steps; in float64.
        """
        return _speeds(self.features(size), self.theta, self._scaling, steps)

    def turned(self, ops: Ops, x: Array, first: Counts = 0, back: bool = False) -> Array:
        """``x`` (..., T, d) at the positions from ``first`` on; with ``back`` the transposed map.

        Of samples (N, heads, T, d) each may have a first position of its own, (N,). Errors: steps
        after others that change the angles of those.
        """
        steps, size = x.shape[-2:]
        if most(first) and self.longest is not None and most(first) + steps > self.longest:
            raise CallOrderError(
                "RotaryEmbedding, whose angles depend on the length of the sequence",
                expected=f"at most {self.longest} steps, where sequences come in parts",
                received=f"{steps} steps after {most(first)}",
                advice=f"use net.decoder(max_length={self.longest}), or predict sequences whole",
            )
        at = first if isinstance(first, int) else tuple(first.tolist())
        turns = _turns(at, steps, self.features(size), self.theta, self._scaling, x.dtype)
        cos, sin, other = map(ops.xp.asarray, turns)
        return ops.rotate(x, cos, other if back else sin, self.interleaved)


def _speeds(size: int, theta: float, scaling: Scaling | None, steps: int) -> tuple[Array, float]:
    if scaling is None:
        return plain_speeds(size, theta), 1.0
    return scaling.speeds(size, theta, steps)


@lru_cache(maxsize=8)
def _turns(
    first: int | tuple[int, ...],
    steps: int,
    size: int,
    theta: float,
    scaling: Scaling | None,
    dtype: np.dtype[Any],
) -> list[Array]:
    """Cosine and sine (T, size / 2) of every angle, lengthened, and what turns back.

    Of several firsts (N, 1, T, size / 2). Layers that turn alike have the same arrays, which
    programs so hold once.
    """
    if isinstance(first, int):
        made = _angled(first, steps, size, theta, scaling, dtype)
    else:
        each = [_angled(one, steps, size, theta, scaling, dtype) for one in first]
        made = [np.stack(arrays)[:, None] for arrays in zip(*each, strict=True)]
    for array in made:
        array.setflags(write=False)
    return made


def _angled(
    first: int,
    steps: int,
    size: int,
    theta: float,
    scaling: Scaling | None,
    dtype: np.dtype[Any],
) -> list[Array]:
    """`_turns` of sequences that stand at ``first``."""
    speed, gain = _speeds(size, theta, scaling, first + steps)
    angle = np.arange(first, first + steps)[:, None] * speed
    sin = gain * np.sin(angle)
    return [array.astype(dtype) for array in (gain * np.cos(angle), sin, -sin)]
