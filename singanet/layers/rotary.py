"""Rotary positions and their scaling to longer texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache, partial
from math import ceil, floor, log, pi, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.layers.kv_cache import Counts
from singanet.ops.interface import Ops
from singanet.types import Array


class Scaling(Hashable, Protocol):
    """One way of scaling the angles, with parameters named as in a model's config.json."""

    @property
    def longest(self) -> int | None:
        """The number of steps above which the speeds depend on it; None if they never do."""

    @property
    def settles(self) -> bool:
        """Whether all sequences above that number have the same speeds."""

    @property
    def pairs(self) -> int | None:
        """The number of pairs of features that it has factors for; None for any."""

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """Return radians a step (size / 2,) of each pair, and the factor of cosines and sines."""


def plain_speeds(size: int, theta: float) -> Array:
    """Return theta^(-2i/size) for pair i."""
    speeds: Array = theta ** (-2.0 * np.arange(size // 2) / size)
    return speeds


@dataclass(frozen=True)
class Linear:
    """Divide every position by ``factor`` (Chen et al. 2023)."""

    factor: float
    longest = pairs = None
    settles = True

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        return plain_speeds(size, theta) / self.factor, 1.0


@dataclass(frozen=True)
class Dynamic:
    """Increase theta with sequences above ``original_max_position_embeddings`` steps.

    It is multiplied by (factor steps / original - factor + 1)^(d / (d - 2)), so that the slowest
    pair rotates by the original angle (the NTK-aware scaling of Peng et al. 2023, "dynamic").
    """

    factor: float
    original_max_position_embeddings: int
    pairs = None
    settles = False

    @property
    def longest(self) -> int:
        return self.original_max_position_embeddings

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        over = max(steps / self.original_max_position_embeddings, 1.0) - 1.0
        grown = (1.0 + self.factor * over) ** (size / (size - 2.0)) if size > 2 else 1.0
        return plain_speeds(size, theta * grown), 1.0


@dataclass(frozen=True)
class Yarn:
    """Divide slow pairs by ``factor``, leave fast ones, and use a ramp between (Peng et al. 2023).

    Within the original length a fast pair makes ``beta_fast`` turns, a slow one ``beta_slow``; the
    ramp starts and ends at whole pairs, unless ``truncate`` is false. Cosines and sines are
    multiplied by ``attention_factor``, by default m(1) with m(s) = 0.1 s ln(factor) + 1; if both
    are passed, m(``mscale``) / m(``mscale_all_dim``).
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    longest = pairs = None
    settles = True

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        first, last = (self._pair(size, theta, turns) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        ramp = (np.arange(size // 2) - first) / max(last - first, 1e-3)
        slow = np.clip(ramp, 0.0, 1.0)
        return plain_speeds(size, theta) * (1.0 - slow + slow / self.factor), self._gain()

    def _pair(self, size: int, theta: float, turns: float) -> float:
        """Return the pair that makes ``turns`` turns within the original length."""
        return size * log(self.original_max_position_embeddings / (2 * pi * turns)) / 2 / log(theta)

    def _gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        more = 0.1 * log(max(self.factor, 1.0))
        if self.mscale and self.mscale_all_dim:
            return (1.0 + self.mscale * more) / (1.0 + self.mscale_all_dim * more)
        return 1.0 + more


@dataclass(frozen=True)
class Llama3:
    """Divide long waves by ``factor``, leave short ones, and use a ramp between (Llama 3.1).

    A long wave has fewer than ``low_freq_factor`` turns within the original length, a short one
    more than ``high_freq_factor`` turns.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    longest = pairs = None
    settles = True

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        plain = plain_speeds(size, theta)
        turns = self.original_max_position_embeddings * plain / (2 * pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        short = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (short + (1.0 - short) / self.factor), 1.0


@dataclass(frozen=True)
class LongRope:
    """Divide each pair by its own factor (Ding et al. 2024; Phi-3).

    Sequences of more than ``original_max_position_embeddings`` steps use ``long_factor``, others
    ``short_factor``. Cosines and sines are multiplied by ``attention_factor``, by default sqrt(1 +
    ln(factor) / ln(original)), with ``factor`` the ratio of the longest to the original length.
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None
    settles = True

    @property
    def longest(self) -> int:
        return self.original_max_position_embeddings

    @property
    def pairs(self) -> int:
        return len(self.short_factor)

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        original = self.original_max_position_embeddings
        by = self.long_factor if steps > original else self.short_factor
        gain = self.attention_factor
        if gain is None:
            gain = sqrt(1.0 + log(max(self.factor, 1.0)) / log(original))
        return plain_speeds(size, theta) / np.asarray(by), gain


SCALINGS: Mapping[str, Any] = {
    "linear": Linear,
    "dynamic": Dynamic,
    "yarn": Yarn,
    "llama3": Llama3,
    "longrope": LongRope,
}
"""The scalings by ``rope_type``."""


_MAY_BE_NONE = ("attention_factor", "mscale", "mscale_all_dim")


def scaling_of(given: Any) -> Scaling:
    """Return the scaling for a mapping as in config.json: ``rope_type`` and its parameters.

    Errors: `ArgumentError`, `UnknownNameError` for unknown types and parameters, missing parameters
    and invalid values.
    """
    where = "RotaryEmbedding, scaling"
    kind = given.get("rope_type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnknownNameError(
            where,
            expected=f"a mapping with a rope_type among {one_of(SCALINGS)}",
            received=brief(given if kind is None else kind),
            advice=did_you_mean(str(kind), list(SCALINGS), "plain positions have scaling=None"),
        )
    known = {field.name: field for field in fields(SCALINGS[kind])}
    for name in given:
        if name not in known and name != "rope_type":
            raise UnknownNameError(
                where,
                expected=f"for rope_type {kind!r} the parameters {one_of(known)}",
                received=brief(name),
                advice=did_you_mean(str(name), list(known), "remove it"),
            )
    missing = [name for name, f in known.items() if f.default is MISSING and name not in given]
    if missing:
        raise ArgumentError(
            where,
            expected=f"for rope_type {kind!r} also {' and '.join(missing)}",
            received=one_of(given),
            advice="copy all of them from the model's config.json",
        )
    values = {name: _value(name, given[name]) for name in known if name in given}
    made: Scaling = SCALINGS[kind](**values)
    if isinstance(made, LongRope) and len(made.short_factor) != len(made.long_factor):
        raise ArgumentError(
            where,
            expected="long_factor and short_factor of equal length, one number for each pair",
            received=f"{len(made.long_factor)} and {len(made.short_factor)}",
            advice="copy it from the model's config.json",
        )
    for less, more in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        low, high = (getattr(made, name, 0.0) for name in (less, more))
        if low > high or (low == high and low):
            raise ArgumentError(
                where,
                expected=f"{less} below {more}",
                received=f"{low} and {high}",
                advice="exchange the two",
            )
    return made


def _value(name: str, value: Any) -> Any:
    """Convert ``value`` to the type of the parameter ``name``."""
    if name == "truncate":
        good, wanted = isinstance(value, bool), "True or False"
    elif name in ("short_factor", "long_factor"):
        several = isinstance(value, (list, tuple)) and len(value) > 0
        good, wanted = several and all(map(_positive, value)), "a list of positive numbers"
        value = tuple(map(float, value)) if good else value
    elif name == "original_max_position_embeddings":
        good = is_number(value) and value == int(value) and 1 < value < 2**31
        wanted, value = "a whole number of steps above 1", int(value) if good else value
    elif name in _MAY_BE_NONE and value is None:
        return None
    else:
        good, wanted = _positive(value), "a positive number of at most a million"
        value = float(value) if good else value
    if not good:
        raise ArgumentError(
            f"RotaryEmbedding, scaling, {name}",
            expected=wanted,
            received=brief(value),
            advice="copy it from the model's config.json",
        )
    return value


def _positive(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1e6


class RowTexts(NamedTuple):
    """The texts in the rows of a batch: ``lengths(marks)`` is the length of each step's text.

    Lengths are integers that broadcast to (N, T).
    """

    lengths: Callable[[Array], Array]
    marks: Array

    @classmethod
    def packed(cls, segments: Array) -> RowTexts:
        """Texts whose steps share an id in (N, T)."""
        return cls(_of_segments, segments)

    @classmethod
    def padded(cls, mask: Array) -> RowTexts:
        """Texts with a mask (N, T) that is 0 at padded steps."""
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
    """Rotary positions of queries and keys of `MultiHeadAttention` (Su et al. 2021).

    Pair i of the d features of a head is rotated by t · theta^(-2i/d) at position t, so scores
    depend on the distance of a key from its query.

    Under "dynamic" and "longrope" angles depend on the length of a text: for texts packed into a
    row, or padded and masked, on the length of each. A decoder reads a text again from the start if
    its angles change: under "longrope" once, under "dynamic" at each step beyond the original
    length.

    Args:
        theta: Positive number, the base of the angles, 10000.0 by default.
        interleaved: Whether a pair is elements 2i and 2i + 1, as in the paper, GPT-J and LLaMA's
            own files; by default i and i + d/2, as in GPT-NeoX and in files of LLaMA at Hugging
            Face.
        fraction: Number up to 1; only the first d = int(size · fraction) features are rotated.
        scaling: For sequences longer than in training, as in a model's config.json: a mapping of
            ``rope_type``, "linear", "dynamic", "yarn", "llama3" or "longrope", with the parameters
            of that type (``factor``, ``original_max_position_embeddings``, ...).

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> rotary = singanet.layers.RotaryEmbedding(theta=10000.0)
        >>> singanet.layers.MultiHeadAttention(num_heads=4, rotary=rotary)(x).shape
        (10, 64)
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
                received=brief(theta),
                advice="10000.0 is usual, more for long sequences",
            )
        if not is_number(fraction) or not 0.0 < fraction <= 1.0:
            raise ArgumentError(
                "RotaryEmbedding, fraction",
                expected="a number above 0 and up to 1, the rotated share of a head",
                received=brief(fraction),
                advice="omit it to rotate all features",
            )
        self.theta = float(theta)
        self.interleaved = interleaved
        self.fraction = float(fraction)
        self._scaling = None if scaling is None else scaling_of(scaling)

    @property
    def pairs(self) -> int | None:
        """The number of pairs that a head must have; None for any."""
        return None if self._scaling is None else self._scaling.pairs

    def features(self, size: int) -> int:
        """Return the number of rotated features of a head of ``size``."""
        return int(size * self.fraction)

    @property
    def longest(self) -> int | None:
        """The number of steps up to which angles do not depend on it; None for any."""
        return None if self._scaling is None else self._scaling.longest

    @property
    def reach(self) -> int:
        """The steps that "dynamic" scaling is for: the original ones times its factor; else 0."""
        scaling = self._scaling
        return int(scaling.factor * scaling.longest) if isinstance(scaling, Dynamic) else 0

    def era(self, steps: int) -> int:
        """Return a number that is equal for texts with equal angles as one of ``steps`` steps.

        A text with that number of steps has the same angles.
        """
        longest = self.longest
        if self._scaling is None or longest is None or steps <= longest:
            return 0
        return longest + 1 if self._scaling.settles else steps

    def speeds(self, size: int, steps: int) -> tuple[Array, float]:
        """Return radians a step for each pair of a head of ``size``, and the factor of every pair.

        They are for sequences of ``steps`` steps, in float64.
        """
        return _speeds(self.features(size), self.theta, self._scaling, steps)

    def rotated(
        self,
        ops: Ops,
        x: Array,
        back: bool = False,
        texts: RowTexts | None = None,
        by_starts: Callable[..., Array] | None = None,
    ) -> Array:
        """Rotate ``x`` (..., T, d); with ``back`` apply the transpose.

        ``texts`` has the length of the text of each step, if it is not the number of steps;
        ``ops`` are the kernels. ``by_starts`` is `Context.by_starts` for steps that continue
        sequences; None for positions from 0.
        """
        steps, size = x.shape[-2:]
        if texts is not None and self.era(steps):
            cos, sin = (
                ops.look_up(
                    partial(self._fill, which, texts.lengths, size),
                    texts.marks,
                    (len(x), 1, steps, self.features(size) // 2),
                    x.dtype,
                )
                for which in (0, 2 if back else 1)
            )
        else:
            given = steps, self.features(size), x.dtype
            cos, sin = (
                ops.xp.asarray(self._turned(0, which, *given))
                if by_starts is None
                else by_starts(self._turned, which, *given)
                for which in (0, 2 if back else 1)
            )
        return ops.rotate(x, cos, sin, self.interleaved)

    def _turned(
        self, starts: Counts, which: int, steps: int, size: int, dtype: np.dtype[Any]
    ) -> Array:
        """Return one array of `_turns` for the steps after ``starts``."""
        firsts = [starts] if isinstance(starts, int) else starts.tolist()
        at = tuple((begin, self.era(begin + steps)) for begin in firsts)
        return _turns(at, steps, size, self.theta, self._scaling, dtype)[which]

    def _fill(
        self,
        which: int,
        lengths: Callable[[Array], Array],
        size: int,
        marks: Array,
        out: Array,
    ) -> None:
        """Write one array of `_turns` into ``out`` (N, 1, T, size / 2), for the texts ``marks``."""
        steps = out.shape[2]
        eras = np.broadcast_to(_eras(self, lengths(marks)), (len(out), steps))
        for era in np.unique(eras).tolist():
            at = ((0, era),)
            turns = _turns(at, steps, self.features(size), self.theta, self._scaling, out.dtype)
            np.copyto(out[:, 0], turns[which], where=(eras == era)[:, :, None])


def _speeds(size: int, theta: float, scaling: Scaling | None, steps: int) -> tuple[Array, float]:
    if scaling is None:
        return plain_speeds(size, theta), 1.0
    return scaling.speeds(size, theta, steps)


def _eras(rotary: RotaryEmbedding, lengths: Array) -> Array:
    """Return `RotaryEmbedding.era` of each length."""
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
    """Return the scaled cosine and sine (T, size / 2) of every angle, and the sine of the inverse.

    ``at`` has the first step and the era of sequences; for several the shape is (N, 1, T, size /
    2). Layers with equal angles share these arrays, so that programs store them once.
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
    """Return `_turns` of sequences that start at ``first``."""
    speed, gain = _speeds(size, theta, scaling, era)
    angle = np.arange(first, first + steps)[:, None] * speed
    sin = gain * np.sin(angle)
    return [array.astype(dtype) for array in (gain * np.cos(angle), sin, -sin)]
