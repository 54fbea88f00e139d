"""Text from a language model, a character at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from singanet.data import TextDataset
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet
from singanet.types import Array


def sampled(
    net: FeedForwardNet,
    data: TextDataset,
    window: int,
    prompt: str,
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """``length`` characters after ``prompt``, each drawn from what ``net`` expects next.

    A character of probability p is drawn with p^(1/temperature), scaled to sum to 1; at 0 the
    likeliest is taken. ``net`` maps ids (1, window) to probabilities (1, window, characters) of
    what follows each, as the language models of `singanet.models` do, and sees the last ``window``
    characters. Errors, at once: a number out of range; characters that the text does not have.
    """
    if not 0.0 <= temperature < math.inf:
        raise _wrong("--temperature", "0 or more", str(temperature), "1 draws as the net expects")
    if length < 1:
        raise _wrong("--length", "a positive number", str(length), "500 is usual")
    if seed < 0:
        raise _wrong("--seed", "0 or more", str(seed), "pass another seed")
    if not prompt:
        raise _wrong("--prompt", "at least one character", "none", "leave it out")
    ids = list(data.encode(prompt))
    return _drawn(net, data, ids, window, length, temperature, np.random.default_rng(seed))


def start_of(data: TextDataset) -> str:
    """What a text may begin after: a new line, or of a text without any its first character."""
    return "\n" if "\n" in data.characters else data.decode(data.train[:1])


def _drawn(
    net: FeedForwardNet,
    data: TextDataset,
    ids: list[int],
    window: int,
    length: int,
    temperature: float,
    rng: np.random.Generator,
) -> Iterator[str]:
    for _ in range(length):
        seen = ids[-window:]
        # What stands behind the last character is not looked at: the nets are causal.
        padded = np.zeros((1, window), np.int32)
        padded[0, : len(seen)] = seen
        chosen = draw(net.predict(padded)[0, len(seen) - 1], temperature, rng)
        ids.append(chosen)
        yield data.decode(np.array([chosen]))


def draw(probabilities: Array, temperature: float, rng: np.random.Generator) -> int:
    """The number of one of ``probabilities`` (C,), sharpened or flattened by ``temperature``."""
    chances = np.asarray(probabilities, np.float64)
    if temperature == 0.0:
        return int(chances.argmax())
    with np.errstate(divide="ignore"):
        scores = np.log(chances) / temperature
    weights = np.exp(scores - scores.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)
