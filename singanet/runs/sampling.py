"""Text from a language model, a character at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from singanet.data import TextDataset
from singanet.decoding import Decoder, Sampling, written
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet


def sampled(
    net: FeedForwardNet,
    data: TextDataset,
    prompt: str,
    length: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """``length`` characters after ``prompt``, each drawn from what ``net`` expects next.

    ``net`` maps ids (N, T) to probabilities (N, T, characters) of what follows each, as the
    language models of `singanet.models` do; it reads each character once, as `written` says.
    Errors, at once: a number out of range; characters that the text does not have; another net.
    """
    if length < 1:
        raise _wrong("--length", "a positive number", str(length), "500 is usual")
    if seed < 0:
        raise _wrong("--seed", "0 or more", str(seed), "pass another seed")
    if not prompt:
        raise _wrong("--prompt", "at least one character", "none", "leave it out")
    ids, rng = data.encode(prompt), np.random.default_rng(seed)
    drawn = written(Decoder(net), [ids], sampling or Sampling(), rng)
    return (data.decode(new) for new, _ in islice(drawn, length))


def start_of(data: TextDataset) -> str:
    """What a text may begin after: a new line, or of a text without any its first character."""
    return "\n" if "\n" in data.characters else data.decode(data.train[:1])


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)
