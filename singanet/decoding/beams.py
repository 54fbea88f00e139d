"""Beam search: the likeliest of several continuations that are extended together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from singanet.base.arguments import checked_count, checked_number
from singanet.decoding.decoder import Decoder
from singanet.decoding.prefix_cache import PrefixCache
from singanet.decoding.processors import Processors, Stops
from singanet.errors import ArgumentError
from singanet.types import Array


class Beam(NamedTuple):
    """A continuation: its ids, their log-probabilities by the net, and its score."""

    ids: list[int]
    logs: list[float]
    score: float


class BeamSearch(NamedTuple):
    """The settings of a search.

    The score of a finished text is the sum of its ids' processed log-probabilities, divided by its
    number of ids to the power of ``length_penalty``. A search ends if ``num_beams`` texts are
    finished and the best unfinished one, divided alike, is no better than the worst of them.

    Args:
        num_beams: Positive int, the number of continuations.
        length_penalty: Number; above 0 it favors long texts, below 0 short ones.
    """

    num_beams: int
    length_penalty: float = 1.0

    @classmethod
    def _of(cls, num_beams: int, length_penalty: float) -> BeamSearch:
        """Return the checked settings; one beam is a search as well."""
        where, usual = "net.generate, argument length_penalty", "1.0 divides by the length"
        # Scores to a larger power are beyond the range of floats.
        power = checked_number(
            where, length_penalty, "a number from -20 to 20", lambda p: abs(p) <= 20, usual
        )
        count = checked_count("net.generate", "num_beams", num_beams, 1)
        if count == 1 and power != 1.0:
            raise ArgumentError(
                where,
                expected="a beam search, num_beams=2 or more, whose scores it divides",
                received=f"{power} and one beam",
                advice="pass num_beams=4, or leave length_penalty out",
            )
        return cls(count, power)

    def search(
        self,
        decoder: Decoder,
        prompts: Sequence[Array],
        length: int,
        processors: Processors,
        stops: Stops,
    ) -> list[Beam]:
        """Return the best continuation of each of ``prompts``, of at most ``length`` ids."""
        texts = [_Text(self, prompt.tolist(), length, processors, stops) for prompt in prompts]
        begun = decoder.fork([0] * len(texts)) if decoder.samples else decoder
        cache = PrefixCache(begun, len(texts))
        while active := [text for text in texts if text.running]:
            scored = cache.expected([[*t.prompt, *beam.ids] for t in active for beam in t.running])
            logs = _log_softmax(scored.logits)
            stay: list[int] = []
            first = 0
            for text in active:
                count = len(text.running)
                stay += [first + k for k in text.extend(logs[first : first + count])]
                first += count
            if stay and stay != list(range(first)):
                cache.keep(stay)
        return [text.finished[0] for text in texts]


class _Text:
    """The search of one text: ``running`` beams by falling score, the best ``finished`` ones."""

    def __init__(
        self,
        settings: BeamSearch,
        prompt: list[int],
        length: int,
        processors: Processors,
        stops: Stops,
    ) -> None:
        self.prompt, self.running = prompt, [Beam([], [], 0.0)]
        self.finished: list[Beam] = []
        self._settings, self._length = settings, length
        self._processors, self._stops = processors, stops

    def extend(self, logs: Array) -> list[int]:
        """Extend the beams by one id each; ``logs`` (beams, C) are the net's log-probabilities.

        Return, for each beam that runs on, the number of the one that it extends.
        """
        count, power = self._settings.num_beams, self._settings.length_penalty
        # As many candidates that at least `count` of them do not end.
        candidates = self._best(logs, max(2, 1 + self._stops.count) * count)
        parents: list[int] = []
        running: list[Beam] = []
        for rank, (beam, parent) in enumerate(candidates):
            end = self._stops.end(beam.ids)
            if end is None and len(beam.ids) == self._length:
                end = len(beam.ids)
            if end is None and len(running) < count:
                running.append(beam)
                parents.append(parent)
            if end is not None and rank < count:
                score = beam.score / len(beam.ids) ** power
                self.finished.append(Beam(beam.ids[:end], beam.logs[:end], score))
        self.finished.sort(key=lambda beam: -beam.score)
        del self.finished[count:]
        if len(self.finished) == count and running:
            best = running[0].score / len(running[0].ids) ** power
            if best <= self.finished[-1].score:
                running, parents = [], []
        self.running = running
        return parents

    def _best(self, logs: Array, count: int) -> list[tuple[Beam, int]]:
        """Return the ``count`` best extensions of all beams, each with the number of its beam."""
        processed = logs
        if not self._processors._are_none:
            texts = ([*self.prompt, *beam.ids] for beam in self.running)
            rows = zip(texts, logs, strict=True)
            start = len(self.prompt)
            processed = np.stack([self._processors(ids, start, row) for ids, row in rows])
        scores = processed + np.array([[beam.score] for beam in self.running])
        flat = scores.reshape(-1)
        if count < flat.size:
            chosen = np.argpartition(-flat, count - 1)[:count]
        else:
            chosen = np.arange(flat.size)
        chosen = chosen[flat[chosen] > -np.inf]
        order = chosen[np.lexsort((chosen, -flat[chosen]))]
        found = []
        for place in order.tolist():
            parent, id = divmod(place, logs.shape[1])
            beam = self.running[parent]
            logs_now = [*beam.logs, float(logs[parent, id])]
            found.append((Beam([*beam.ids, id], logs_now, float(flat[place])), parent))
        return found


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found
