"""A small net that foretells what a large one will write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from singanet.base.arguments import checked_count
from singanet.decoding.decoder import Decoder
from singanet.decoding.follower import Follower, spare_for
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.types import Array


class Drafter:
    """A ``net`` of the same vocabulary, which writes ``ahead`` ids that a larger one then judges.

    The larger net reads them at once, in the time of one, and takes them with the probability that
    makes the text one of its own (Leviathan et al. 2023): at temperature 0 exactly the same ids,
    else drawn from exactly its distribution. ``acceptance`` tells how many it took. ``prefix`` is a
    decoder of ``net`` that has read what comes before all prompts.
    """

    def __init__(self, net: Net, ahead: int = 4, prefix: Decoder | None = None) -> None:
        self.net, self.prefix = net, prefix
        self.ahead = checked_count("Drafter", "ahead", ahead, 1)
        self.offered = self.taken = 0
        if prefix is not None and (prefix.net is not net or prefix.samples != 1):
            raise ArgumentError(
                "Drafter, argument prefix",
                expected="a decoder of the net itself, of one sequence",
                received=f"one of {prefix.samples} sequences",
                advice="make it by net.decoder(), and read ids[None]",
            )

    @property
    def acceptance(self) -> float:
        """Which part of the offered ids was taken so far; NaN before any was offered."""
        return self.taken / self.offered if self.offered else float("nan")

    @property
    def spare(self) -> int:
        """How many steps a decoder has to be able to take back, `FeedForwardNet.decoder`."""
        return spare_for(self.ahead)

    def follower(self, count: int, max_length: int | None) -> Follower:
        """What reads so many texts."""
        if self.prefix is not None:
            return Follower(self.prefix.fork([0] * count), count, self.ahead)
        own = max_length if self.net.most_steps is None else None
        return Follower(Decoder(self.net, own, spare=self.spare), count, self.ahead)


class Offer(NamedTuple):
    """The ids (N, t) that a draft offers, and by which probabilities it drew each, (N, t, C)."""

    ids: Array
    drawn_by: Array


def offered(
    follower: Follower,
    texts: list[list[int]],
    ahead: int,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Offer:
    """Up to ``ahead`` ids after each text, drawn one after the other."""
    ids: list[Array] = []
    chances: list[Array] = []
    expected = follower.expected(texts)
    ahead = 1 + follower.room(ahead - 1)
    follower.mark()
    for k in range(ahead):
        chances.append(sampling.adjusted(expected))
        ids.append(picked(chances[-1], rng))
        if k + 1 < ahead:
            expected = follower.ahead(ids[-1][:, None])[:, 0]
    return Offer(np.stack(ids, axis=1), np.stack(chances, axis=1))


def judged(offer: Offer, wanted: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """How many ids of each row are taken, (N,), and the probabilities (N, C) of what comes next.

    ``wanted`` (N, t + 1, C) are those of the large net. An id x is taken with the probability
    min(1, p(x) / q(x)); after the first that is not, the next comes from max(0, p - q), so that
    each is drawn from p in all (Leviathan et al. 2023, appendix A.1).
    """
    taken, rest = np.zeros(len(offer.ids), np.int64), wanted[:, -1].copy()
    for n in range(len(offer.ids)):
        for k, x in enumerate(offer.ids[n]):
            p, q = wanted[n, k], offer.drawn_by[n, k]
            if rng.random() * q[x] < p[x]:
                taken[n] += 1
                continue
            left = np.maximum(p - q, 0.0)
            # Of equal ones nothing is left but rounding, for which no id is refused.
            rest[n] = left / left.sum() if left.sum() > 0 else p
            break
    return taken, rest


def picked(probabilities: Array, rng: np.random.Generator) -> Array:
    """One number (N,) for each row of probabilities (N, C)."""
    total = probabilities.cumsum(axis=1)
    below = total <= rng.random((len(total), 1)) * total[:, -1:]
    # Rounded up, a draw may lie behind the last that may be drawn.
    last = probabilities.shape[1] - 1 - (probabilities[:, ::-1] > 0).argmax(axis=1)
    found: Array = np.minimum(below.sum(axis=1), last)
    return found
