"""Speculative decoding: a smaller net proposes tokens that the net verifies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from singanet.base.arguments import checked_count
from singanet.decoding.decoder import Decoder
from singanet.decoding.prefix_cache import PrefixCache, spare_for
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError, one_of
from singanet.types import Array


class DraftModel:
    """A draft model for speculative decoding: it proposes tokens to a larger net.

    The larger net checks them in one forward pass and accepts each with the probability that makes
    the text a sample of its own distribution (Leviathan et al. 2023). At temperature 0 the tokens
    are exactly the larger net's. ``acceptance`` is the fraction of accepted tokens.

    Args:
        net: A net of the larger net's vocabulary.
        ahead: Positive int, the number of tokens that it proposes at a time.
        prefix: A `Decoder` of ``net`` that has read the common prefix of all prompts, or None.
    """

    def __init__(self, net: Net, ahead: int = 4, prefix: Decoder | None = None) -> None:
        self.net, self.prefix = net, prefix
        self.ahead = checked_count("DraftModel", "ahead", ahead, 1)
        self.offered = self.taken = 0
        if prefix is not None and (prefix.net is not net or prefix.samples != 1):
            raise ArgumentError(
                "DraftModel, argument prefix",
                expected="a decoder of the net itself, of one sequence",
                received=f"a decoder of {prefix.samples} sequences",
                advice="make it by net.decoder(), and read ids[None]",
            )

    def __repr__(self) -> str:
        return f"DraftModel(ahead={self.ahead}, acceptance={self.acceptance:.3f})"

    @property
    def acceptance(self) -> float:
        """The fraction of proposed tokens accepted so far; NaN before the first proposal."""
        return self.taken / self.offered if self.offered else float("nan")

    @property
    def spare(self) -> int:
        """The ``spare`` that a decoder of the larger net needs, `FeedForwardNet.decoder`."""
        return spare_for(self.ahead)

    def _follower(self, count: int, max_length: int | None) -> PrefixCache:
        """Return the draft's follower of ``count`` texts."""
        if self.prefix is not None:
            return PrefixCache(self.prefix.fork([0] * count), count, self.ahead)
        own = max_length if self.net.most_steps is None else None
        return PrefixCache(Decoder(self.net, own, spare=self.spare), count, self.ahead)


class Offer(NamedTuple):
    """The proposed tokens ``ids`` (N, t) and their distributions ``drawn_by`` (N, t, C)."""

    ids: Array
    drawn_by: Array


def offered(
    follower: PrefixCache,
    texts: list[list[int]],
    ahead: int,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Offer:
    """Propose up to ``ahead`` tokens after each text, drawn one after another."""
    ids: list[Array] = []
    chances: list[Array] = []
    expected = follower.expected(texts).probabilities
    ahead = 1 + follower.room(ahead - 1)
    follower.mark()
    for k in range(ahead):
        chances.append(sampling._adjusted(expected))
        ids.append(picked(chances[-1], rng))
        if k + 1 < ahead:
            expected = follower.ahead(ids[-1][:, None]).probabilities[:, 0]
    return Offer(np.stack(ids, axis=1), np.stack(chances, axis=1))


def judged(offer: Offer, wanted: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the number of accepted tokens of each row, (N,), and the next distribution (N, C).

    ``wanted`` (N, t + 1, C) are the large net's probabilities. A token x is accepted with the
    probability min(1, p(x) / q(x)). After the first rejection the next token comes from max(0, p -
    q), so that every token is distributed as p (Leviathan et al. 2023, appendix A.1).
    """
    taken, rest = np.zeros(len(offer.ids), np.int64), wanted[:, -1].copy()
    for n in range(len(offer.ids)):
        for k, x in enumerate(offer.ids[n]):
            p, q = wanted[n, k], offer.drawn_by[n, k]
            if rng.random() * q[x] < p[x]:
                taken[n] += 1
                continue
            left = np.maximum(p - q, 0.0)
            # If p and q are equal, only rounding remains, which must not rule out a token.
            rest[n] = left / left.sum() if left.sum() > 0 else p
            break
    return taken, rest


def picked(probabilities: Array, rng: np.random.Generator) -> Array:
    """Draw one index (N,) for each row of probabilities (N, C)."""
    total = probabilities.cumsum(axis=1)
    below = total <= rng.random((len(total), 1)) * total[:, -1:]
    # Rounding up could select an index after the last of positive probability.
    last = probabilities.shape[1] - 1 - (probabilities[:, ::-1] > 0).argmax(axis=1)
    found: Array = np.minimum(below.sum(axis=1), last)
    return found


def expect_same_words(net: Net, small: Net) -> None:
    """Errors: `ArgumentError` for a draft of another vocabulary."""
    words, of_draft = (
        {plan.by_name[name].out_shapes[0][-1] for name in plan.outputs}
        for plan in (net._execution_plan(), small._execution_plan())
    )
    if words != of_draft:
        raise ArgumentError(
            "net.generate, argument draft",
            expected=f"a net of the same vocabulary, {one_of(map(str, words))} words",
            received=f"{one_of(map(str, of_draft))} words",
            advice="take a smaller model of the same family, with the same tokenizer",
        )
