"""The next-token scores of a net, with the prefix of each text cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from singanet.decoding.decoder import Decoder
from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.types import Array

_AGAIN = 4
"""The maximum number of steps read again so that all texts have the same number to read."""


class Scored(NamedTuple):
    """The ``probabilities`` (..., C) of the next token, and a softmax loss's ``raw`` outputs."""

    probabilities: Array
    raw: Array | None

    @property
    def logits(self) -> Array:
        """The scores before the softmax in float64; log-probabilities if the net has none."""
        if self.raw is not None:
            return np.asarray(self.raw, np.float64)
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(self.probabilities, np.float64))


class PrefixCache:
    """The next-token probabilities of a net, with the prefix of each text cached in ``decoder``.

    ``decoder`` has read ``texts[n]`` up to ``ends[n]``. At the decoder's limit it restarts with the
    last half of the limit, so a step depends on the last ``limit`` / 2 to ``limit`` steps.
    """

    def __init__(self, decoder: Decoder, count: int, ahead: int = 0) -> None:
        self.decoder = decoder.fork()
        self.decoder._linked = False
        self.ends = np.zeros(count, np.int64)
        self._goes_back = decoder._goes_back(spare_for(ahead))
        self._mark: tuple[Decoder, Array] | None = None

    def room(self, most: int) -> int:
        """Return the number of steps, up to ``most``, that can be read at once.

        Behind them a text would reach the limit, or earlier steps would be computed with other
        angles.
        """
        limit, alike = self.decoder.limit, self.decoder.alike
        most = most if limit is None else min(most, limit - self.decoder.steps)
        starts = self.decoder.lengths.tolist()
        return next(
            (k for k in range(1, most) if not all(alike(n + 1, n + k + 1) for n in starts)), most
        )

    def expected(self, texts: Sequence[Sequence[int]]) -> Scored:
        """Read the rest of ``texts`` and return the probabilities of the next token, (N, C)."""
        limit, ends = self.decoder.limit, np.array([len(text) for text in texts])
        counts = ends - self.ends
        over = np.zeros(len(texts), bool)
        if limit is not None:
            over = (self.decoder.lengths if self.decoder.samples else 0) + counts > limit
        more = counts.max() - counts
        if not over.any() and self._reads_again(more):
            # Reading steps again is cheaper than splitting the batch.
            self.decoder.back(more)
            counts = counts + more
        # At the limit a text restarts with this many steps.
        counts = np.where(over, np.minimum(ends, (limit or 0) // 2 + (limit or 0) % 2), counts)
        parts = [
            np.array(text[len(text) - count :]) for text, count in zip(texts, counts, strict=True)
        ]
        out = self.decoder.read(parts, set(np.flatnonzero(over).tolist()))
        self.ends = ends
        return scored(self.decoder.net, out, 2)

    def ahead(self, ids: Array) -> Scored:
        """Read the tokens ``ids`` (N, t) and return the next-token probabilities, (N, t, C)."""
        out = self.decoder(ids)
        self.ends = self.ends + ids.shape[1]
        return scored(self.decoder.net, out, 3)

    def mark(self) -> None:
        """Save the state, so that `forget` can return to it."""
        self._mark = None if self._goes_back else (self.decoder.fork(), self.ends)

    def forget(self, ends: Array) -> None:
        """Go back to ``ends``, or to the mark if the net cannot remove single steps."""
        if self._mark is None:
            self.decoder.back(self.ends - ends)
            self.ends = ends
        else:
            (self.decoder, self.ends), self._mark = self._mark, None

    def reach(self, texts: Sequence[Sequence[int]], ends: Array) -> None:
        """Read the texts up to ``ends`` if they are not yet read; there must be room."""
        if (self.ends < ends).any():
            pairs = zip(texts, self.ends.tolist(), ends.tolist(), strict=True)
            self.decoder.read([np.array([*text[start:end]]) for text, start, end in pairs])
            self.ends = ends

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with the texts ``rows`` alone."""
        if self.decoder.samples:
            self.decoder = self.decoder.fork(rows)
        self.ends = self.ends[[*rows]]
        self._mark = None

    def _reads_again(self, more: Array) -> bool:
        """Return whether to remove ``more`` steps of each text and read them with the others."""
        if not self._goes_back or not 0 < more.max() <= _AGAIN or not self.decoder.samples:
            return False
        return bool((more <= np.minimum(self.ends, self.decoder.lengths)).all())


def spare_for(ahead: int) -> int:
    """Return the number of steps removed at most if a draft tries ``ahead`` tokens."""
    return ahead + _AGAIN


def scored(net: Net, out: Any, axes: int) -> Scored:
    """Return the outputs on the host. Errors: `ArgumentError` if they are not probabilities."""
    linked = out if net.loss is None else net.loss.link(out)
    host, shape = net.device.ops.host, getattr(linked, "shape", ())
    last = host(linked) if len(shape) == axes else None
    if last is None or not (last.min() >= 0 and np.allclose(last.sum(axis=-1), 1, atol=1e-2)):
        raise ArgumentError(
            "net.generate",
            expected="a net with one output, next-token probabilities (N, T, C)",
            received=f"outputs of shape {shape} that are not" if shape else type(out).__name__,
            advice="give it the loss SoftmaxCrossEntropy, or end it with Softmax",
        )
    is_softmax = getattr(net.loss, "link_name", "") == "softmax"
    return Scored(last, host(out) if is_softmax else None)
