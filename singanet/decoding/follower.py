"""A decoder that keeps up with texts which grow, and whose ends may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from singanet.decoding.decoder import Decoder
from singanet.errors import ArgumentError
from singanet.types import Array

_AGAIN = 4
"""The most steps that are read again so that all texts have equally many to be read."""


class Follower:
    """What a net expects after texts of ids, of which ``decoder`` has read the beginnings.

    It knows where it is: it has read ``texts[n]`` up to ``ends[n]``. Where its limit is met, it
    begins anew with the last half of what a limit holds: a step depends on half to all of
    ``limit`` steps before it.
    """

    def __init__(self, decoder: Decoder, count: int, ahead: int = 0) -> None:
        self.decoder = decoder
        self.ends = np.zeros(count, np.int64)
        self._goes_back = decoder.goes_back(spare_for(ahead))
        self._mark: tuple[Decoder, Array] | None = None

    def room(self, most: int) -> int:
        """How many steps, up to ``most``, each text may have as if they came one by one.

        Behind them the limit is met, or steps before are computed otherwise.
        """
        limit, alike = self.decoder.limit, self.decoder.alike
        most = most if limit is None else min(most, limit - self.decoder.steps)
        starts = self.decoder.lengths.tolist()
        return next(
            (k for k in range(1, most) if not all(alike(n + 1, n + k + 1) for n in starts)), most
        )

    def expected(self, texts: Sequence[Sequence[int]]) -> Array:
        """Read the rest of ``texts``: how probable each id is to come next, (N, C)."""
        limit, ends = self.decoder.limit, np.array([len(text) for text in texts])
        counts = ends - self.ends
        over = np.zeros(len(texts), bool)
        if limit is not None:
            over = (self.decoder.lengths if self.decoder.samples else 0) + counts > limit
        more = counts.max() - counts
        if not over.any() and self._reads_again(more):
            # Cheaper than to part those that have fewer.
            self.decoder.back(more)
            counts = counts + more
        # A limit holds so many that begin anew.
        counts = np.where(over, np.minimum(ends, (limit or 0) // 2 + (limit or 0) % 2), counts)
        parts = [
            np.array(text[len(text) - count :]) for text, count in zip(texts, counts, strict=True)
        ]
        out = self.decoder.read(parts, set(np.flatnonzero(over).tolist()))
        self.ends = ends
        return _probabilities(self.decoder.net.device.ops.host, out, 2)

    def ahead(self, ids: Array) -> Array:
        """Read further ``ids`` (N, t): how probable what comes after each is, (N, t, C)."""
        out = self.decoder(ids)
        self.ends = self.ends + ids.shape[1]
        return _probabilities(self.decoder.net.device.ops.host, out, 3)

    def mark(self) -> None:
        """Be ready to `forget` what is read from now on."""
        self._mark = None if self._goes_back else (self.decoder.fork(), self.ends)

    def forget(self, ends: Array) -> None:
        """Go back to ``ends``; to the mark, where the net does not tell how it was there."""
        if self._mark is None:
            self.decoder.back(self.ends - ends)
            self.ends = ends
        else:
            (self.decoder, self.ends), self._mark = self._mark, None

    def reach(self, texts: Sequence[Sequence[int]], ends: Array) -> None:
        """Read up to ``ends``, for which there is room, where that has not been done."""
        if (self.ends < ends).any():
            pairs = zip(texts, self.ends.tolist(), ends.tolist(), strict=True)
            self.decoder.read([np.array([*text[start:end]]) for text, start, end in pairs])
            self.ends = ends

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these texts alone."""
        if self.decoder.samples:
            self.decoder = self.decoder.fork(rows)
        self.ends = self.ends[[*rows]]
        self._mark = None

    def _reads_again(self, more: Array) -> bool:
        """Whether to take so many steps back, of some texts, and to read them with the others."""
        if not self._goes_back or not 0 < more.max() <= _AGAIN or not self.decoder.samples:
            return False
        return bool((more <= np.minimum(self.ends, self.decoder.lengths)).all())


def spare_for(ahead: int) -> int:
    """How many steps are taken back at most, where ``ahead`` are tried."""
    return ahead + _AGAIN


def _probabilities(host: Callable[[Array], Array], out: object, axes: int) -> Array:
    """What a net gave, on the host. Errors: no probabilities."""
    shape = getattr(out, "shape", ())
    last = host(out) if len(shape) == axes else None  # type: ignore[arg-type]
    if last is None or not (last.min() >= 0 and np.allclose(last.sum(axis=-1), 1, atol=1e-2)):
        raise ArgumentError(
            "net.generate",
            expected="a net whose one output is probabilities (N, T, C) of what comes next",
            received=f"outputs of shape {shape} that are none" if shape else type(out).__name__,
            advice="give it the loss SoftmaxCrossEntropy, or end it with Softmax",
        )
    return last
