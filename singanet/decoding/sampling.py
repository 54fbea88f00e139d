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
        chances = np.asarray(probabilities, np.float64)
        found: Array
        if self.temperature == 0:
            found = chances.argmax(axis=1)
            return found
        with np.errstate(divide="ignore"):
            scores = np.log(chances) / self.temperature
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        order = np.argsort(-weights, axis=1, kind="stable")
        falling = np.take_along_axis(weights, order, axis=1)[:, : self.top_k]
        total = falling.cumsum(axis=1)
        if self.top_p is not None:
            falling = np.where(total - falling < self.top_p * total[:, -1:], falling, 0.0)
            total = falling.cumsum(axis=1)
        below = total <= rng.random((len(total), 1)) * total[:, -1:]
        place = np.minimum(below.sum(axis=1), (falling > 0).sum(axis=1) - 1)
        found = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
        return found


def _wrong(what: str, expected: str, received: object, advice: str) -> ArgumentError:
    return ArgumentError(
        f"sampling, argument {what}", expected=expected, received=repr(received), advice=advice
    )
