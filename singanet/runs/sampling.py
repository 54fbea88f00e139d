"""Text from a language model, a character or a token at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from singanet.data import TextDataset, Tokenizer
from singanet.decoding import Decoder, Drafter, Sampling, Writer
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet
from singanet.types import Array


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
    if not prompt:
        raise _wrong("--prompt", "at least one character", "none", "leave it out")
    drawn = _drawn(net, data.encode(prompt), length, sampling or Sampling(), seed)
    return (data.decode(np.array([new])) for new in drawn)


def streamed(
    net: FeedForwardNet,
    tokenizer: Tokenizer,
    ids: Array,
    length: int,
    sampling: Sampling,
    seed: int = 0,
    ends: Collection[int] = (),
    stops: Sequence[str] = (),
    draft: Drafter | None = None,
) -> Iterator[str]:
    """What comes after ``ids``, as text that is whole: at most ``length`` tokens, up to an end.

    ``ends`` are the tokens with which a text ends; it ends before the first of the texts ``stops``,
    too, and what may begin one is told once it is seen not to. Past the most steps of ``net`` it
    reads the last half anew. A ``draft`` writes ahead, see `Drafter`. Errors, at once: a number out
    of range; more ``ids`` than the net has steps, or none.
    """
    most = getattr(net, "most_steps", None)
    if not len(ids) or (most is not None and len(ids) > most):
        expected = f"1 to {most} tokens" if most is not None else "at least one token"
        raise _wrong("the prompt", expected, str(len(ids)), "shorten it, or give it some words")
    if "" in stops:
        raise _wrong("--stop", "a text", "none", "leave it out")
    told = _texts(_drawn(net, ids, length, sampling, seed, draft), tokenizer, ends)
    return before_stops(told, stops) if stops else told


def before_stops(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """``texts`` up to the beginning of the one of ``stops`` that is complete first."""
    waiting, longest = "", max(map(len, stops))
    for text in texts:
        waiting += text
        found = [(p + len(stop), p) for stop in stops if (p := waiting.find(stop)) >= 0]
        if found:
            _, place = min(found)
            if place:
                yield waiting[:place]
            return
        # The end may be the beginning of one.
        most = min(len(waiting), longest - 1)
        begins = (k for k in range(most, 0, -1) if _begins(waiting[-k:], stops))
        kept = next(begins, 0)
        if ready := waiting[: len(waiting) - kept]:
            yield ready
        waiting = waiting[len(waiting) - kept :]
    if waiting:
        yield waiting


def _begins(text: str, stops: Sequence[str]) -> bool:
    return any(stop.startswith(text) for stop in stops)


def _texts(drawn: Iterator[int], tokenizer: Tokenizer, ends: Collection[int]) -> Iterator[str]:
    stream = tokenizer.stream()
    for new in drawn:
        if new in ends:
            break
        if text := stream.push(new):
            yield text
    if rest := stream.close():
        yield rest


def _drawn(
    net: FeedForwardNet,
    ids: Array,
    length: int,
    sampling: Sampling,
    seed: int,
    draft: Drafter | None = None,
) -> Iterator[int]:
    """So many ids after ``ids``; errors at once."""
    if length < 1:
        raise _wrong("--length", "a positive number", str(length), "500 is usual")
    if seed < 0:
        raise _wrong("--seed", "0 or more", str(seed), "pass another seed")
    spare = 0 if draft is None else draft.spare
    rng = np.random.default_rng(seed)
    writer = Writer(Decoder(net, spare=spare), [ids], sampling, rng, draft)
    return islice((int(new) for further in writer for new in further[0].ids), length)


def start_of(data: TextDataset) -> str:
    """What a text may begin after: a new line, or of a text without any its first character."""
    return "\n" if "\n" in data.characters else data.decode(data.train[:1])


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)
