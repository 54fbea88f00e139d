"""Positions as rotations of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError
from singanet.layers.past import Counts
from singanet.layers.rotary_scaling import Dynamic, Scaling, plain_speeds, scaling_of
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["RotaryEmbedding", "RowTexts"]


class RowTexts(NamedTuple):
    """What tells of the texts in the rows of a batch: ``lengths(told)`` are theirs, by step.

    They are whole numbers that spread over (N, T).
    """

    lengths: Callable[[Array], Array]
    told: Array

    @classmethod
    def packed(cls, segments: Array) -> RowTexts:
        """Texts whose steps have ids (N, T) in common."""
        return cls(_of_segments, segments)

    @classmethod
    def padded(cls, mask: Array) -> RowTexts:
        """Texts with a mask (N, T) that is 0 at steps beside them."""
        return cls(_of_mask, mask)


def _of_segments(ids: Array) -> Array:
    found = np.empty(ids.shape, np.int64)
    for row, lengths in zip(ids, found, strict=True):
        _, where, counts = np.unique(row, return_inverse=True, return_counts=True)
        lengths[...] = counts[where]
    return found


def _of_mask(mask: Array) -> Array:
    found: Array = (mask != 0).sum(axis=1, keepdims=True)
    return found


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
    "dynamic" and "longrope" angles depend on how long a text is: of texts that are packed into a
    row, or padded and masked, on each one's own length. A decoder reads a text again from its
    beginning where its angles change: under "longrope" once, under "dynamic" at each step beyond
    the original length.
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

    @property
    def reach(self) -> int:
        """How many steps "dynamic" scaling is for: the original ones times its factor; else 0."""
        scaling = self._scaling
        return int(scaling.factor * scaling.longest) if isinstance(scaling, Dynamic) else 0

    def era(self, steps: int) -> int:
        """A number that texts of ``steps`` steps have in common with all that have their angles.

        Texts of so many steps have these angles, too.
        """
        longest = self.longest
        if self._scaling is None or longest is None or steps <= longest:
            return 0
        return longest + 1 if self._scaling.settles else steps

    def speeds(self, size: int, steps: int) -> tuple[Array, float]:
        """Radians a step for each pair of a head of ``size``, and what lengthens every pair.

        In sequences of ``steps`` steps; in float64.
        """
        return _speeds(self.features(size), self.theta, self._scaling, steps)

    def turned(
        self,
        ops: Ops,
        x: Array,
        first: Counts = 0,
        back: bool = False,
        texts: RowTexts | None = None,
    ) -> Array:
        """``x`` (..., T, d) at the positions from ``first`` on; with ``back`` the transposed map.

        Of samples (N, heads, T, d) each may have a first position of its own, (N,). ``texts`` tell
        how long the text of each step is, where that is not the number of steps.
        """
        steps, size = x.shape[-2:]
        if texts is not None and self.era(steps):
            cos, sin = (
                ops.look_up(
                    partial(self._fill, which, texts.lengths, size),
                    texts.told,
                    (len(x), 1, steps, self.features(size) // 2),
                    x.dtype,
                )
                for which in (0, 2 if back else 1)
            )
        else:
            firsts = [first] if isinstance(first, int) else first.tolist()
            at = tuple((begin, self.era(begin + steps)) for begin in firsts)
            turns = _turns(at, steps, self.features(size), self.theta, self._scaling, x.dtype)
            cos, sin = ops.xp.asarray(turns[0]), ops.xp.asarray(turns[2 if back else 1])
        return ops.rotate(x, cos, sin, self.interleaved)

    def _fill(
        self,
        which: int,
        lengths: Callable[[Array], Array],
        size: int,
        told: Array,
        out: Array,
    ) -> None:
        """Write one of `_turns` into ``out`` (N, 1, T, size / 2), by what is ``told`` of texts."""
        steps = out.shape[2]
        eras = np.broadcast_to(_eras(self, lengths(told)), (len(out), steps))
        for era in np.unique(eras).tolist():
            at = ((0, era),)
            turns = _turns(at, steps, self.features(size), self.theta, self._scaling, out.dtype)
            np.copyto(out[:, 0], turns[which], where=(eras == era)[:, :, None])


def _speeds(size: int, theta: float, scaling: Scaling | None, steps: int) -> tuple[Array, float]:
    if scaling is None:
        return plain_speeds(size, theta), 1.0
    return scaling.speeds(size, theta, steps)


def _eras(rotary: RotaryEmbedding, lengths: Array) -> Array:
    """`RotaryEmbedding.era` of each length."""
    each, where = np.unique(lengths, return_inverse=True)
    found: Array = np.array([rotary.era(length) for length in each.tolist()])[where]
    return found.reshape(lengths.shape)


@lru_cache(maxsize=8)
def _turns(
    at: tuple[tuple[int, int], ...],
    steps: int,
    size: int,
    theta: float,
    scaling: Scaling | None,
    dtype: np.dtype[Any],
) -> list[Array]:
    """Cosine and sine (T, size / 2) of every angle, lengthened, and what turns back.

    ``at`` are the first step and the era of sequences; of several (N, 1, T, size / 2). Layers that
    turn alike have the same arrays, which programs so hold once.
    """
    each = [_angled(*one, steps, size, theta, scaling, dtype) for one in at]
    made = each[0]
    if len(each) > 1:
        made = [np.stack(arrays)[:, None] for arrays in zip(*each, strict=True)]
    for array in made:
        array.setflags(write=False)
    return made


def _angled(
    first: int,
    era: int,
    steps: int,
    size: int,
    theta: float,
    scaling: Scaling | None,
    dtype: np.dtype[Any],
) -> list[Array]:
    """`_turns` of sequences that stand at ``first``."""
    speed, gain = _speeds(size, theta, scaling, era)
    angle = np.arange(first, first + steps)[:, None] * speed
    sin = gain * np.sin(angle)
    return [array.astype(dtype) for array in (gain * np.cos(angle), sin, -sin)]
