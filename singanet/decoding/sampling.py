"""How the next of many is chosen by probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.errors import ArgumentError
from singanet.types import Array


@dataclass(frozen=True)
class Sampling:
    """A draw by probabilities p^(1/temperature), of the likeliest alone if wanted.

    ``temperature`` 0 takes the likeliest, the first of equal ones. ``top_k`` leaves as many,
    ``top_p`` then the fewest that together have this probability (Holtzman et al. 2020). Errors:
    `ArgumentError` for a temperature below 0, a ``top_k`` below 1, a ``top_p`` outside (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or self.temperature < 0:
            raise _wrong("temperature", "0 or more", self.temperature, "1.0 draws as expected")
        if self.top_k is not None:
            checked_count("sampling", "top_k", self.top_k, 1)
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise _wrong("top_p", "above 0 and up to 1", self.top_p, "0.9 is usual")

    def draw(self, probabilities: Array, rng: np.random.Generator) -> Array:
        """One number (N,) for each row of ``probabilities`` (N, C); one draw a row, in order."""
        return self.chosen(probabilities, rng.random(len(probabilities)))

    def chosen(self, probabilities: Array, chances: Array) -> Array:
        """One number (N,) for each row of ``probabilities`` (N, C), drawn by ``chances`` (N,).

        These are from 0 to below 1.
        """
        found: Array
        if self.temperature == 0:
            found = np.asarray(probabilities, np.float64).argmax(axis=1)
            return found
        order, falling = self._falling(self._weights(probabilities))
        total = falling.cumsum(axis=1)
        below = total <= chances[:, None] * total[:, -1:]
        place = np.minimum(below.sum(axis=1), (falling > 0).sum(axis=1) - 1)
        found = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
        return found

    def adjusted(self, probabilities: Array) -> Array:
        """The probabilities (N, C) with which each is drawn, in float64; ones where it is sure."""
        made = np.zeros(probabilities.shape)
        if self.temperature == 0:
            likeliest = np.asarray(probabilities, np.float64).argmax(axis=1)
            np.put_along_axis(made, likeliest[:, None], 1.0, axis=1)
            return made
        weights = self._weights(probabilities)
        if self.top_k is None and self.top_p is None:
            made = weights
        else:
            order, falling = self._falling(weights)
            np.put_along_axis(made, order[:, : falling.shape[1]], falling, axis=1)
        made /= made.sum(axis=1, keepdims=True)
        return made

    def _weights(self, probabilities: Array) -> Array:
        """p^(1/temperature), multiplied so that the largest of a row is 1."""
        chances = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            scores = np.log(chances) / self.temperature
        weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights

    def _falling(self, weights: Array) -> tuple[Array, Array]:
        """The places of all weights, the largest first, and the weights of those that may be."""
        order = np.argsort(-weights, axis=1, kind="stable")
        falling = np.take_along_axis(weights, order, axis=1)[:, : self.top_k]
        if self.top_p is not None:
            total = falling.cumsum(axis=1)
            falling = np.where(total - falling < self.top_p * total[:, -1:], falling, 0.0)
        return order, falling


def _wrong(what: str, expected: str, received: object, advice: str) -> ArgumentError:
    return ArgumentError(
        f"sampling, argument {what}", expected=expected, received=repr(received), advice=advice
    )
