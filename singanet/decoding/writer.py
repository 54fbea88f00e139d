"""Sequences of whole numbers that a net goes on with, round by round."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from singanet.decoding.decoder import Decoder
from singanet.decoding.draft import Drafter, judged, offered, picked
from singanet.decoding.follower import Follower
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError, one_of
from singanet.types import Array


class Generated(NamedTuple):
    """What was drawn for a prompt: ``ids`` (L,), and the ``log_probabilities`` (L,) of each.

    These are the net's own, in float64, whatever temperature and choice the draw was made with.
    """

    ids: Array
    log_probabilities: Array


class Writer:
    """What comes after ``prompts``, arrays (P,) of ids of any lengths: an iterator without end.

    Each round gives the further ids of each row that goes on, by its number: one, with a ``draft``
    one or several. Prompts are read by ``decoder``, whose one sequence, if it has any, comes before
    all of them; it stays as it is. A row's draws depend on no other row's length. Where the
    decoder's limit is met, it begins anew with the last half of what a limit holds. Errors: outputs
    that are no probabilities; a draft of another vocabulary.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Array],
        sampling: Sampling,
        rng: np.random.Generator,
        draft: Drafter | None = None,
        max_length: int | None = None,
    ) -> None:
        self._sampling, self._rng, self._draft = sampling, rng, draft
        self._count = len(prompts)
        self.rows = list(range(self._count))
        self._texts = [[int(id) for id in prompt] for prompt in prompts]
        if draft is not None:
            _expect_same_words(decoder.net, draft.net)
        begun = decoder.fork([0] * self._count) if decoder.samples else decoder.fork()
        ahead = 0 if draft is None else draft.ahead
        self._net = Follower(begun, self._count, ahead)
        self._small = None if draft is None else draft.follower(self._count, max_length)

    def __iter__(self) -> Iterator[Mapping[int, Generated]]:
        return self

    def __next__(self) -> Mapping[int, Generated]:
        if not self.rows:
            raise StopIteration
        ahead = self._ahead()
        found = self._one_each() if ahead < 1 else self._several(ahead)
        return {row: _told(*each) for row, each in zip(self.rows, found, strict=True)}

    def end(self, rows: Collection[int]) -> None:
        """Go on without ``rows``."""
        stay = [k for k, row in enumerate(self.rows) if row not in rows]
        if len(stay) == len(self.rows):
            return
        self.rows = [self.rows[k] for k in stay]
        self._texts = [self._texts[k] for k in stay]
        for each in (self._net, self._small):
            if each is not None and stay:
                each.keep(stay)

    def _ahead(self) -> int:
        """How many ids the draft is to offer, 0 where there is no room for any."""
        if self._draft is None or self._small is None:
            return 0
        # Its prompts are read first, and each text has one id then that is not.
        if not all(
            len(text) == end + 1 for text, end in zip(self._texts, self._net.ends, strict=True)
        ):
            return 0
        return self._net.room(self._draft.ahead + 1) - 1

    def _one_each(self) -> list[tuple[list[int], list[float]]]:
        expected = self._net.expected(self._texts)
        # Of rows that have ended, too: another row's end changes no draw.
        chances = self._rng.random(self._count)[self.rows]
        ids = self._sampling.chosen(expected, chances)
        return self._grown([[int(id)] for id in ids], expected[:, None])

    def _several(self, ahead: int) -> list[tuple[list[int], list[float]]]:
        assert self._draft is not None
        assert self._small is not None
        offer = offered(self._small, self._texts, ahead, self._sampling, self._rng)
        self._net.mark()
        last = np.array([[text[-1]] for text in self._texts])
        expected = self._net.ahead(np.concatenate([last, offer.ids], axis=1))
        wanted = self._sampling.adjusted(expected.reshape(-1, expected.shape[-1]))
        taken, rest = judged(offer, wanted.reshape(expected.shape), self._rng)
        self._draft.offered += offer.ids.size
        self._draft.taken += int(taken.sum())
        known = np.array([len(text) for text in self._texts])
        nexts = picked(rest, self._rng)
        new = [
            [*ids[:n], id]
            for ids, n, id in zip(offer.ids.tolist(), taken, nexts.tolist(), strict=True)
        ]
        found = self._grown(new, expected)
        self._small.forget(np.minimum(self._small.ends, known + taken))
        self._net.forget(known + taken)
        self._net.reach(self._texts, known + taken)
        return found

    def _grown(self, new: list[list[int]], expected: Array) -> list[tuple[list[int], list[float]]]:
        """Put the ``new`` ids behind the texts; with how probable the net finds each."""
        found = []
        for text, ids, chances in zip(self._texts, new, expected, strict=True):
            text.extend(ids)
            found.append((ids, [float(chances[k, id]) for k, id in enumerate(ids)]))
        return found


def _expect_same_words(net: Net, small: Net) -> None:
    words, of_draft = (
        {plan.by_name[name].out_shapes[0][-1] for name in plan.outputs}
        for plan in (net.execution_plan(), small.execution_plan())
    )
    if words != of_draft:
        raise ArgumentError(
            "net.generate, argument draft",
            expected=f"a net of the same vocabulary, {one_of(map(str, words))} words",
            received=f"{one_of(map(str, of_draft))} words",
            advice="take a smaller model of the same family, with the same tokenizer",
        )


def _told(ids: list[int], chances: list[float]) -> Generated:
    with np.errstate(divide="ignore"):
        return Generated(np.array(ids, np.int64), np.log(np.array(chances, np.float64)))
