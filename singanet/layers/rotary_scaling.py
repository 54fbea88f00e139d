"""Rotary positions of sequences longer than those that a model was trained on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import ceil, floor, log, pi, sqrt
from typing import Any, Protocol

import numpy as np

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.types import Array

__all__ = ["SCALINGS", "Scaling", "plain_speeds", "scaling_of"]


class Scaling(Hashable, Protocol):
    """One way of spreading the angles, with its parameters as a model's config.json calls them."""

    @property
    def longest(self) -> int | None:
        """From which number of steps on the speeds depend on that number; None if they never do."""

    @property
    def settles(self) -> bool:
        """Whether all sequences beyond that number have the same speeds."""

    @property
    def pairs(self) -> int | None:
        """For how many pairs of features it has numbers; None for any."""

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """Radians a step (size / 2,) of each pair, and the factor of cosines and sines."""


def plain_speeds(size: int, theta: float) -> Array:
    """theta^(-2i/size) for pair i."""
    speeds: Array = theta ** (-2.0 * np.arange(size // 2) / size)
    return speeds


@dataclass(frozen=True)
class Linear:
    """Every position divided by ``factor`` (Chen et al. 2023)."""

    factor: float
    longest = pairs = None
    settles = True

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """See `Scaling`."""
        return plain_speeds(size, theta) / self.factor, 1.0


@dataclass(frozen=True)
class Dynamic:
    """theta grows with sequences above ``original_max_position_embeddings`` steps.

    It is multiplied by (factor steps / original - factor + 1)^(d / (d - 2)), so that the slowest
    pair turns as far as it did (the NTK-aware scaling of Peng et al. 2023, "dynamic").
    """

    factor: float
    original_max_position_embeddings: int
    pairs = None
    settles = False

    @property
    def longest(self) -> int:
        """See `Scaling`."""
        return self.original_max_position_embeddings

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """See `Scaling`."""
        over = max(steps / self.original_max_position_embeddings, 1.0) - 1.0
        grown = (1.0 + self.factor * over) ** (size / (size - 2.0)) if size > 2 else 1.0
        return plain_speeds(size, theta * grown), 1.0


@dataclass(frozen=True)
class Yarn:
    """Slow pairs divided by ``factor``, fast ones left, a ramp between (Peng et al. 2023).

    A pair is fast that turns ``beta_fast`` times within the original length, slow one that turns
    ``beta_slow`` times; the ramp begins and ends at whole pairs, unless ``truncate`` is false.
    Cosines and sines are multiplied by ``attention_factor``, 0.1 ln(factor) + 1, or that with
    ``mscale`` ln(factor) over that with ``mscale_all_dim`` ln(factor) where both are given.
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
        """See `Scaling`."""
        first, last = (self._pair(size, theta, turns) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        ramp = (np.arange(size // 2) - first) / max(last - first, 1e-3)
        slow = np.clip(ramp, 0.0, 1.0)
        return plain_speeds(size, theta) * (1.0 - slow + slow / self.factor), self._gain()

    def _pair(self, size: int, theta: float, turns: float) -> float:
        """Which pair turns so many times within the original length."""
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
    """Long waves divided by ``factor``, short ones left, those between in part (Llama 3.1).

    A wave is long that has fewer than ``low_freq_factor`` turns within the original length, and
    short one of more than ``high_freq_factor`` turns.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    longest = pairs = None
    settles = True

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """See `Scaling`."""
        plain = plain_speeds(size, theta)
        turns = self.original_max_position_embeddings * plain / (2 * pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        short = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (short + (1.0 - short) / self.factor), 1.0


@dataclass(frozen=True)
class LongRope:
    """Each pair divided by a number of its own (Ding et al. 2024; Phi-3).

    By its ``long_factor`` in sequences of more than ``original_max_position_embeddings`` steps,
    else by its ``short_factor``. Cosines and sines are multiplied by ``attention_factor``,
    sqrt(1 + ln(factor) / ln(original)), where ``factor`` is how many times longer sequences may be.
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None
    settles = True

    @property
    def longest(self) -> int:
        """See `Scaling`."""
        return self.original_max_position_embeddings

    @property
    def pairs(self) -> int:
        """See `Scaling`."""
        return len(self.short_factor)

    def speeds(self, size: int, theta: float, steps: int) -> tuple[Array, float]:
        """See `Scaling`."""
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
"""By ``rope_type``."""


_MAY_BE_NONE = ("attention_factor", "mscale", "mscale_all_dim")


def scaling_of(given: Any) -> Scaling:
    """The scaling that a mapping describes as config.json does: ``rope_type``, and its parameters.

    Errors: `ArgumentError`, `UnknownNameError` for types and parameters that are not known, that
    are missing, or that have no sense.
    """
    where = "RotaryEmbedding, scaling"
    kind = given.get("rope_type") if isinstance(given, Mapping) else None
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnknownNameError(
            where,
            expected=f"a mapping whose rope_type is one of {one_of(SCALINGS)}",
            received=repr(given if kind is None else kind),
            advice=did_you_mean(str(kind), list(SCALINGS), "plain positions have scaling=None"),
        )
    known = {field.name: field for field in fields(SCALINGS[kind])}
    for name in given:
        if name not in known and name != "rope_type":
            raise UnknownNameError(
                where,
                expected=f"for rope_type {kind!r} the parameters {one_of(known)}",
                received=repr(name),
                advice=did_you_mean(str(name), list(known), "leave it out"),
            )
    missing = [name for name, f in known.items() if f.default is MISSING and name not in given]
    if missing:
        raise ArgumentError(
            where,
            expected=f"for rope_type {kind!r} also {' and '.join(missing)}",
            received=one_of(given),
            advice="take all that the config.json of the model says",
        )
    values = {name: _value(name, given[name]) for name in known if name in given}
    made: Scaling = SCALINGS[kind](**values)
    if isinstance(made, LongRope) and len(made.short_factor) != len(made.long_factor):
        raise ArgumentError(
            where,
            expected="as many numbers in long_factor as in short_factor, one a pair",
            received=f"{len(made.long_factor)} and {len(made.short_factor)}",
            advice="take what the config.json of the model says",
        )
    for less, more in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        low, high = (getattr(made, name, 0.0) for name in (less, more))
        if low > high or (low == high and low):
            raise ArgumentError(
                where,
                expected=f"{less} below {more}",
                received=f"{low} and {high}",
                advice="the two may have been given the other way round",
            )
    return made


def _value(name: str, value: Any) -> Any:
    """``value`` as the parameter ``name`` wants it."""
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
            received=repr(value),
            advice="take what the config.json of the model says",
        )
    return value


def _positive(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1e6
