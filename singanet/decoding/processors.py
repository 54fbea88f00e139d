"""Changes to the scores of the next token: penalties, bad words, own functions and guides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count, checked_number, is_int
from singanet.data import Tokenizer
from singanet.decoding.guide import Guide
from singanet.errors import ArgumentError, ShapeError, brief
from singanet.types import Array

Words: TypeAlias = "Tokenizer | Callable[[], Tokenizer | None] | None"
"""A tokenizer, or a function that reads it if a text needs it."""

ScoreFunction: TypeAlias = Callable[[Array, Array], Any]
"""A function of the ids (T,) of a text and the scores (C,) of its next token to new scores."""


@dataclass(frozen=True)
class Processors:
    """Changes to the scores of the next token, in this order, before temperature and truncation.

    The ids of a text are its prompt and the new ids; a `Guide` sees the new ids alone. Errors:
    `ArgumentError` for a ``repetition_penalty`` of 0 or less or an ``no_repeat_ngram_size`` below
    1; when called, for scores that exclude every token, `ShapeError` for scores of another shape.

    Args:
        repetition_penalty: Positive number: positive scores of the text's ids are divided by it,
            negative ones multiplied (Keskar et al. 2019). 1 changes nothing.
        no_repeat_ngram_size: Positive int: no run of this many ids occurs twice. None for any.
        bad_words: Runs of ids that are not written.
        forced: Dict from the number of a new id, from 0, to the ids that are written there.
        excluded: Dict from the number of a new id, from 0, to the ids that are not written there.
        logits: A function of the text's ids (T,) and the scores (C,) that returns changed scores.
        guide: A `Guide`, or None.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int | None = None
    bad_words: Sequence[Sequence[int]] = ()
    logits: ScoreFunction | None = None
    guide: Guide | None = None
    forced: Mapping[int, Sequence[int]] = field(default_factory=dict)
    excluded: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_number(
            "net.generate, argument repetition_penalty",
            self.repetition_penalty,
            "a positive number",
            lambda value: value > 0,
            "1.2 is usual, 1.0 changes nothing",
        )
        if self.no_repeat_ngram_size is not None:
            checked_count("net.generate", "no_repeat_ngram_size", self.no_repeat_ngram_size, 1)
        if self.logits is not None and not callable(self.logits):
            raise ArgumentError(
                "net.generate, argument logits",
                expected="a function of ids and scores",
                received=brief(self.logits)[:80],
                advice="pass one function, which may call several",
            )

    @classmethod
    def _of(
        cls,
        repetition_penalty: float,
        no_repeat_ngram_size: int | None,
        bad_words: Any,
        logits: ScoreFunction | None,
        guide: Any,
        *,
        tokenizer: Words,
        forced: Mapping[int, Sequence[int]] | None = None,
        excluded: Mapping[int, Sequence[int]] | None = None,
    ) -> Processors:
        """Return the changes by the arguments of `FeedForwardNet.generate`."""
        runs, texts = runs_and_texts("bad_words", bad_words)
        for text in texts:
            # Words inside a text have a space before them.
            for form in dict.fromkeys((text, f" {text.lstrip()}")):
                ids = expect_tokenizer("bad_words", tokenizer).encode(form, special=False)
                runs.append(ids.tolist())
        made = None if guide is None else Guide(guide, expect_tokenizer("guide", tokenizer))
        places = forced or {}, excluded or {}
        return cls(repetition_penalty, no_repeat_ngram_size, runs, logits, made, *places)

    @property
    def _are_none(self) -> bool:
        """Whether the scores never change."""
        return self == Processors(bad_words=self.bad_words) and not self.bad_words

    def __call__(self, ids: Sequence[int], prompt: int, scores: Array) -> Array:
        """Return the new scores (C,) of the text ``ids``, whose first ``prompt`` ids are given."""
        made = scores.copy()
        if self.repetition_penalty != 1.0:
            known = np.unique(ids)
            of_known = made[known]
            penalty = self.repetition_penalty
            made[known] = np.where(of_known < 0, of_known * penalty, of_known / penalty)
        if self.no_repeat_ngram_size is not None:
            made[_completions(ids, self.no_repeat_ngram_size)] = -np.inf
        for run in self.bad_words:
            if run[-1] >= len(made):
                raise ArgumentError(
                    "net.generate, argument bad_words",
                    expected=f"ids from 0 to {len(made) - 1}, of the net",
                    received=f"{[*run]}",
                    advice="pass the ids of the net's own tokenizer",
                )
            if len(run) <= len(ids) + 1 and [*ids[len(ids) + 1 - len(run) :]] == [*run[:-1]]:
                made[run[-1]] = -np.inf
        if len(ids) - prompt in self.forced:
            made[:] = -np.inf
            made[[*self.forced[len(ids) - prompt]]] = 0.0
        made[[*self.excluded.get(len(ids) - prompt, ())]] = -np.inf
        if self.logits is not None:
            made = self._changed(np.array(ids), made)
        if self.guide is not None:
            made[~self.guide.allowed(ids[prompt:], len(made))] = -np.inf
        if not (made > -np.inf).any():
            raise ArgumentError(
                "net.generate",
                expected="at least one token with a score above -inf",
                received=f"none after {len(ids)} ids, by the penalties, bad_words, logits or guide",
                advice="exclude fewer tokens; a text that may end here needs its end id",
            )
        return made

    def _weights(self, ids: Sequence[int], prompt: int, scores: Array) -> Array:
        """Return the new scores as weights (C,) of a draw, the largest 1."""
        made = self(ids, prompt, scores)
        weights: Array = np.exp(made - made.max())
        return weights

    def _changed(self, ids: Array, scores: Array) -> Array:
        assert self.logits is not None
        made = np.array(self.logits(ids, scores), np.float64)
        if made.shape != scores.shape or not (made < np.inf).all():
            raise ShapeError(
                "net.generate, argument logits",
                expected=f"scores of shape {scores.shape} without NaN and infinity",
                received=f"{made.shape}" + ", with some" * (made.shape == scores.shape),
                advice="change the array `scores` in place and return it",
            )
        return made


def _completions(ids: Sequence[int], size: int) -> list[int]:
    """Return the ids that would repeat a run of ``size`` ids."""
    end = [*ids[len(ids) + 1 - size :]]
    if len(end) != size - 1:
        return []
    starts = range(len(ids) - size + 1)
    return [ids[k + size - 1] for k in starts if [*ids[k : k + size - 1]] == end]


def runs_and_texts(name: str, given: Any) -> tuple[list[list[int]], list[str]]:
    """Return the runs of ids and the texts in an id, a text, or a list of ids, runs and texts.

    Errors: `ArgumentError` about the argument ``name`` for anything else.
    """
    single = is_int(given, 0) or isinstance(given, str)
    parts: Any = [] if given is None else [given] if single else given
    runs: list[list[int]] = []
    texts: list[str] = []
    try:
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
            else:
                runs.append([part] if is_int(part, 0) else [*part])
    except TypeError:
        runs = [[]]
    if not all(texts) or not all(run and all(is_int(k, 0) for k in run) for run in runs):
        raise ArgumentError(
            f"net.generate, argument {name}",
            expected="an id, a text, or several: runs of ids too, such as [2, [13, 13]]",
            received=brief(given)[:80],
            advice="texts need a tokenizer: pass tokenizer=singanet.pretrained.tokenizer(folder)",
        )
    return [[int(k) for k in run] for run in runs], texts


def expect_tokenizer(name: str, words: Words) -> Tokenizer:
    """Return the tokenizer. Errors: `ArgumentError` about the argument ``name`` if it is None."""
    tokenizer = words() if callable(words) else words
    if tokenizer is None:
        raise ArgumentError(
            f"net.generate, argument {name}",
            expected="ids, as the net has no tokenizer",
            received="a text or a guide",
            advice="pass tokenizer=singanet.pretrained.tokenizer(folder)",
        )
    return tokenizer


_AROUND = 16
"""Characters before a possible stop, whose tokens a decoder may join with others."""


class Stops:
    """The ends of texts: ``runs`` of ids, which remain, and ``texts``, which are cut off."""

    def __init__(self, given: Any, tokenizer: Words = None) -> None:
        self.runs, self.texts = runs_and_texts("stop", given)
        self._decode = expect_tokenizer("stop", tokenizer).decode if self.texts else None
        self._tail = _AROUND + max(map(len, self.texts), default=0)

    @property
    def count(self) -> int:
        """The number of ends."""
        return len(self.runs) + len(self.texts)

    def end(self, ids: Sequence[int]) -> int | None:
        """Return the number of ``ids`` in the result if they end the text, else None."""
        if any(ids[-len(run) :] == run for run in self.runs):
            return len(ids)
        decode = self._decode
        if decode is None or not self._may_end(ids, decode):
            return None
        text = decode(ids)
        places = [place for each in self.texts if (place := text.find(each)) >= 0]
        if not places:
            return None
        whole = text[: min(places)]
        return next(k for k in range(len(ids), -1, -1) if whole.startswith(decode(ids[:k])))

    def _may_end(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the last characters contain a stop; no earlier ones do."""
        count = self._tail
        while count < len(ids):
            tail = decode(ids[-count:])
            if len(tail) >= self._tail:
                return any(text in tail for text in self.texts)
            count *= 2
        return True
