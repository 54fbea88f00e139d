"""Sampling: which token a distribution gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.errors import ArgumentError, brief
from singanet.types import Array

_BITS = 46
"""The last bits of a weight, without which the weights of a part are alike: 64 parts an octave."""
_LEAST = int(np.float64(2.0**-64).view(np.int64)) >> _BITS
"""The part of the least weights, whose sum hardly counts."""


@dataclass(frozen=True)
class Sampling:
    """A sampling rule: temperature, then top-k, nucleus (top-p) and min-p truncation.

    Errors: `ArgumentError` if ``temperature`` < 0, ``top_k`` < 1, or ``top_p`` or ``min_p`` is
    outside (0, 1].

    Args:
        temperature: Number from 0. A token of probability p is drawn with a probability
            proportional to p^(1/temperature); 0 takes the most likely token, the first of equals.
        top_k: Positive int, the number of most likely tokens among which to draw; None for all.
        top_p: Number in (0, 1]; it then limits the draw to the smallest set of this total
            probability (Holtzman et al. 2020). None for all.
        min_p: Number in (0, 1]; it excludes tokens of less than this times the largest probability
            (Nguyen et al. 2024). None for all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or self.temperature < 0:
            raise _wrong("temperature", "0 or more", self.temperature, "1.0 draws as expected")
        if self.top_k is not None:
            checked_count("sampling", "top_k", self.top_k, 1)
        for name, usual in (("top_p", 0.9), ("min_p", 0.05)):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= 1):
                raise _wrong(name, "above 0 and up to 1", value, f"{usual} is usual")

    def draw(self, probabilities: Array, rng: np.random.Generator) -> Array:
        """Draw one index (N,) for each row of ``probabilities`` (N, C).

        It takes one random number of ``rng`` a row.
        """
        return self.chosen(probabilities, rng.random(len(probabilities)))

    def chosen(self, probabilities: Array, chances: Array) -> Array:
        """Return one index (N,) for each row of ``probabilities`` (N, C).

        ``chances`` (N,) are uniform random numbers in [0, 1).
        """
        found: Array
        if self.temperature == 0:
            found = np.asarray(probabilities, np.float64).argmax(axis=1)
            return found
        weights = self._weights(probabilities)
        return np.array([self._drawn(*each) for each in zip(weights, chances, strict=True)])

    def _drawn(self, weights: Array, chance: float) -> int:
        """Return the index that ``chance`` selects, by falling weight."""
        order = None
        if self.top_k is not None:
            order = _largest(weights, self.top_k)[: self.top_k]
            weights = weights[order]
        falling = _Falling(weights)
        whole = falling.whole
        if self.top_p is not None:
            whole = falling.at(self.top_p * whole, "left")[1]
        if self.min_p is not None:
            whole = min(whole, float(weights[weights >= self.min_p].sum()))
        place = falling.at(chance * whole, "right")[0]
        return place if order is None else int(order[place])

    def _adjusted(self, probabilities: Array) -> Array:
        """Return the distribution (N, C) of the draw in float64; one-hot at temperature 0."""
        made = np.zeros(probabilities.shape)
        if self.temperature == 0:
            likeliest = np.asarray(probabilities, np.float64).argmax(axis=1)
            np.put_along_axis(made, likeliest[:, None], 1.0, axis=1)
            return made
        weights = self._weights(probabilities)
        if self.top_k is None and not self._truncates:
            made = weights
        else:
            order, falling = self._falling(weights)
            np.put_along_axis(made, order[:, : falling.shape[1]], falling, axis=1)
        made /= made.sum(axis=1, keepdims=True)
        return made

    def _weights(self, probabilities: Array) -> Array:
        """Return p^(1/temperature), scaled so that the largest of a row is 1."""
        chances = np.asarray(probabilities, np.float64)
        if self.temperature == 1:
            found: Array = chances / chances.max(axis=1, keepdims=True)
            return found
        with np.errstate(divide="ignore"):
            scores = np.log(chances) / self.temperature
        weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights

    def _falling(self, weights: Array) -> tuple[Array, Array]:
        """Return the indices by falling weight, and the weights that truncation allows."""
        order = np.argsort(-weights, axis=1, kind="stable")
        falling = np.take_along_axis(weights, order, axis=1)[:, : self.top_k]
        if self._truncates:
            total = falling.cumsum(axis=1)
            falling = np.where(self._nucleus(falling, total, total[:, -1:]), falling, 0.0)
        return order, falling

    @property
    def _truncates(self) -> bool:
        return self.top_p is not None or self.min_p is not None

    def _nucleus(self, falling: Array, total: Array, whole: Any) -> Array:
        """Return which ``falling`` weights top-p and min-p allow; ``total`` are their sums."""
        kept: Array = falling >= (0.0 if self.min_p is None else self.min_p)
        return kept if self.top_p is None else kept & (total - falling < self.top_p * whole)


class _Falling:
    """Weights (C,) of up to 1 by falling size.

    Weights of about one size are a part. Only the weights of the part at a sum are sorted.
    """

    def __init__(self, weights: Array) -> None:
        self._weights: Array = np.ascontiguousarray(weights)
        # The bits of positive numbers have the order of the numbers.
        bits = self._weights.view(np.int64) >> _BITS
        self._parts: Array = np.maximum(bits - _LEAST, 0)
        self._sums: Array = np.bincount(self._parts, self._weights)[::-1].cumsum()

    @property
    def whole(self) -> float:
        """The sum of all weights."""
        return float(self._sums[-1])

    def at(self, goal: float, side: Literal["left", "right"]) -> tuple[int, float]:
        """Return the index at which the sum reaches ``goal``, and the sum with its weight.

        With the ``side`` right the sum exceeds the goal. Behind all weights it is the last one.
        """
        sums, weights = self._sums, self._weights
        part = min(int(sums.searchsorted(goal, side)), int(sums.searchsorted(sums[-1])))
        inside = np.flatnonzero(self._parts == len(sums) - 1 - part)
        order = inside[np.argsort(-weights[inside], kind="stable")]
        before = float(sums[part - 1]) if part else 0.0
        total = before + weights[order].cumsum()
        most = int(np.count_nonzero(weights[order])) - 1
        place = min(int(total.searchsorted(goal, side)), most)
        return int(order[place]), float(total[place])


def _largest(weights: Array, count: int) -> Array:
    """Return the indices of at least ``count`` largest weights, falling; the first of equal ones.

    Among them are all that equal the last of these.
    """
    found = np.arange(len(weights))
    if count < len(weights):
        least = np.partition(weights, len(weights) - count)[len(weights) - count]
        found = np.flatnonzero(weights >= least)
    order: Array = found[np.argsort(-weights[found], kind="stable")]
    return order


def _wrong(what: str, expected: str, received: object, advice: str) -> ArgumentError:
    return ArgumentError(
        f"sampling, argument {what}", expected=expected, received=brief(received), advice=advice
    )
