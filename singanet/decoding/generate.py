"""Generation of tokens: sampling, draft models and streamed texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import (
    MESSAGES,
    are_messages,
    are_texts,
    checked_count,
    is_int,
    is_number,
)
from singanet.base.seeding import next_seed
from singanet.base.tracebacks import entry_point
from singanet.decoding.decoder import Decoder
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.types import Array

_SORTED = 256
"""Weights that are sorted at first, and how many times as many after each try."""

_AGAIN = 4
"""The maximum number of steps read again so that all texts have the same number to read."""


class PrefixCache:
    """The next-token probabilities of a net, with the prefix of each text cached in ``decoder``.

    ``decoder`` has read ``texts[n]`` up to ``ends[n]``. At the decoder's limit it restarts with the
    last half of the limit, so a step depends on the last ``limit`` / 2 to ``limit`` steps.
    """

    def __init__(self, decoder: Decoder, count: int, ahead: int = 0) -> None:
        self.decoder = decoder
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

    def expected(self, texts: Sequence[Sequence[int]]) -> Array:
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
        return _probabilities(self.decoder.net.device.ops.host, out, 2)

    def ahead(self, ids: Array) -> Array:
        """Read the tokens ``ids`` (N, t) and return the next-token probabilities, (N, t, C)."""
        out = self.decoder(ids)
        self.ends = self.ends + ids.shape[1]
        return _probabilities(self.decoder.net.device.ops.host, out, 3)

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


def _probabilities(host: Callable[[Array], Array], out: object, axes: int) -> Array:
    """Return the net's output on the host. Errors: `ArgumentError` if it is not probabilities."""
    shape = getattr(out, "shape", ())
    last = host(out) if len(shape) == axes else None  # type: ignore[arg-type]
    if last is None or not (last.min() >= 0 and np.allclose(last.sum(axis=-1), 1, atol=1e-2)):
        raise ArgumentError(
            "net.generate",
            expected="a net with one output, next-token probabilities (N, T, C)",
            received=f"outputs of shape {shape} that are not" if shape else type(out).__name__,
            advice="give it the loss SoftmaxCrossEntropy, or end it with Softmax",
        )
    return last


@dataclass(frozen=True)
class Sampling:
    """A sampling rule: temperature, then top-k and nucleus (top-p) truncation.

    Errors: `ArgumentError` if ``temperature`` < 0, ``top_k`` < 1 or ``top_p`` is outside (0, 1].

    Args:
        temperature: Number from 0. A token of probability p is drawn with a probability
            proportional to p^(1/temperature); 0 takes the most likely token, the first of equals.
        top_k: Positive int, the number of most likely tokens among which to draw; None for all.
        top_p: Number in (0, 1]; it then limits the draw to the smallest set of this total
            probability (Holtzman et al. 2020). None for all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or self.temperature < 0:
            raise _wrong("temperature", "0 or more", self.temperature, "1.0 draws as expected")
        if self.top_k is not None:
            checked_count("sampling", "top_k", self.top_k, 1)
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise _wrong("top_p", "above 0 and up to 1", self.top_p, "0.9 is usual")

    def draw(self, probabilities: Array, rng: np.random.Generator) -> Array:
        """Draw one index (N,) for each row of ``probabilities`` (N, C).

        It takes one random number of ``rng`` a row.
        """
        return self.chosen(probabilities, rng.random(len(probabilities)))

    def chosen(self, probabilities: Array, chances: Array) -> Array:
        """Return one index (N,) for each row of ``probabilities`` (N, C).

        ``chances`` (N,) are uniform random numbers in [0, 1).
        """
        found: Array
        if self.temperature == 0:
            found = np.asarray(probabilities, np.float64).argmax(axis=1)
            return found
        weights = self._weights(probabilities)
        return np.array([self._drawn(*each) for each in zip(weights, chances, strict=True)])

    def _drawn(self, weights: Array, chance: float) -> int:
        """Return the index that ``chance`` selects, by falling weight.

        A draw is nearly always among the largest weights, so that few are sorted.
        """
        whole = weights.sum()
        count = _SORTED if self.top_k is None else self.top_k
        while True:
            order = _largest(weights, count)[: self.top_k]
            ends = len(order) == len(weights) or self.top_k is not None
            falling = weights[order]
            total = falling.cumsum()
            goal = chance * (total[-1] if ends else whole)
            if self.top_p is not None:
                kept = total - falling < self.top_p * (total[-1] if ends else whole)
                ends |= not kept[-1]
                falling, total = falling[kept], total[kept]
                goal = chance * total[-1] if ends else np.inf
            if ends or goal < total[-1]:
                place = min(int((total <= goal).sum()), int((falling > 0).sum()) - 1)
                return int(order[place])
            count *= _SORTED

    def _adjusted(self, probabilities: Array) -> Array:
        """Return the distribution (N, C) of the draw in float64; one-hot at temperature 0."""
        made = np.zeros(probabilities.shape)
        if self.temperature == 0:
            likeliest = np.asarray(probabilities, np.float64).argmax(axis=1)
            np.put_along_axis(made, likeliest[:, None], 1.0, axis=1)
            return made
        weights = self._weights(probabilities)
        if self.top_k is None and self.top_p is None:
            made = weights
        else:
            order, falling = self._falling(weights)
            np.put_along_axis(made, order[:, : falling.shape[1]], falling, axis=1)
        made /= made.sum(axis=1, keepdims=True)
        return made

    def _weights(self, probabilities: Array) -> Array:
        """Return p^(1/temperature), scaled so that the largest of a row is 1."""
        chances = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            scores = np.log(chances) / self.temperature
        weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights

    def _falling(self, weights: Array) -> tuple[Array, Array]:
        """Return the indices by falling weight, and the weights that truncation allows."""
        order = np.argsort(-weights, axis=1, kind="stable")
        falling = np.take_along_axis(weights, order, axis=1)[:, : self.top_k]
        if self.top_p is not None:
            total = falling.cumsum(axis=1)
            falling = np.where(total - falling < self.top_p * total[:, -1:], falling, 0.0)
        return order, falling


def _largest(weights: Array, count: int) -> Array:
    """Return the indices of at least ``count`` largest weights, falling; the first of equal ones.

    Among them are all that equal the last of these.
    """
    found = np.arange(len(weights))
    if count < len(weights):
        least = np.partition(weights, len(weights) - count)[len(weights) - count]
        found = np.flatnonzero(weights >= least)
    order: Array = found[np.argsort(-weights[found], kind="stable")]
    return order


def _wrong(what: str, expected: str, received: object, advice: str) -> ArgumentError:
    return ArgumentError(
        f"sampling, argument {what}", expected=expected, received=brief(received), advice=advice
    )


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
    expected = follower.expected(texts)
    ahead = 1 + follower.room(ahead - 1)
    follower.mark()
    for k in range(ahead):
        chances.append(sampling._adjusted(expected))
        ids.append(picked(chances[-1], rng))
        if k + 1 < ahead:
            expected = follower.ahead(ids[-1][:, None])[:, 0]
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


class Generated(NamedTuple):
    """The tokens drawn for a prompt, ``ids`` (L,), and their ``log_probabilities`` (L,).

    The log-probabilities are the net's own, in float64, before temperature and truncation.
    """

    ids: Array
    log_probabilities: Array


class Writer:
    """An endless iterator over the continuations of prompts.

    Each round returns the next tokens of each active row, by row number: one token, or one or
    several with a ``draft``. The draws of a row do not depend on the lengths of other rows. At the
    decoder's limit a text restarts with the last half of the limit.

    Errors: `ArgumentError` if the outputs are not probabilities or the draft has another
    vocabulary.

    Args:
        decoder: The `Decoder` that reads the prompts, and is not changed; its one sequence, if any,
            is the prefix of all prompts.
        prompts: Sequence of arrays (P,) of tokens.
        sampling: The rule of the draws, a `Sampling`.
        rng: The NumPy generator of the draws.
        draft: A `DraftModel`, or None.
        max_length: Int, the most steps of the draft if its net has no maximum; or None.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Array],
        sampling: Sampling,
        rng: np.random.Generator,
        draft: DraftModel | None = None,
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
        self._net = PrefixCache(begun, self._count, ahead)
        self._small = None if draft is None else draft._follower(self._count, max_length)

    def __repr__(self) -> str:
        return f"Writer({len(self.rows)} of {self._count} texts continue)"

    def __iter__(self) -> Iterator[Mapping[int, Generated]]:
        return self

    def __next__(self) -> Mapping[int, Generated]:
        if not self.rows:
            raise StopIteration
        ahead = self._ahead()
        found = self._one_each() if ahead < 1 else self._several(ahead)
        return {row: _told(*each) for row, each in zip(self.rows, found, strict=True)}

    def end(self, rows: Collection[int]) -> None:
        """Stop the rows ``rows``."""
        stay = [k for k, row in enumerate(self.rows) if row not in rows]
        if len(stay) == len(self.rows):
            return
        self.rows = [self.rows[k] for k in stay]
        self._texts = [self._texts[k] for k in stay]
        for each in (self._net, self._small):
            if each is not None and stay:
                each.keep(stay)

    def _ahead(self) -> int:
        """Return the number of tokens the draft proposes next, 0 if there is no room."""
        if self._draft is None or self._small is None:
            return 0
        # The draft starts once the prompts are read: each text then has one unread token.
        if not all(
            len(text) == end + 1 for text, end in zip(self._texts, self._net.ends, strict=True)
        ):
            return 0
        return self._net.room(self._draft.ahead + 1) - 1

    def _one_each(self) -> list[tuple[list[int], list[float]]]:
        expected = self._net.expected(self._texts)
        # Draw for finished rows too: the end of a row must not change another row's draws.
        chances = self._rng.random(self._count)[self.rows]
        ids = self._sampling.chosen(expected, chances)
        return self._append([[int(id)] for id in ids], expected[:, None])

    def _several(self, ahead: int) -> list[tuple[list[int], list[float]]]:
        assert self._draft is not None
        assert self._small is not None
        offer = offered(self._small, self._texts, ahead, self._sampling, self._rng)
        self._net.mark()
        last = np.array([[text[-1]] for text in self._texts])
        expected = self._net.ahead(np.concatenate([last, offer.ids], axis=1))
        wanted = self._sampling._adjusted(expected.reshape(-1, expected.shape[-1]))
        taken, rest = judged(offer, wanted.reshape(expected.shape), self._rng)
        self._draft.offered += offer.ids.size
        self._draft.taken += int(taken.sum())
        known = np.array([len(text) for text in self._texts])
        nexts = picked(rest, self._rng)
        new = [
            [*ids[:n], id]
            for ids, n, id in zip(offer.ids.tolist(), taken, nexts.tolist(), strict=True)
        ]
        found = self._append(new, expected)
        self._small.forget(np.minimum(self._small.ends, known + taken))
        self._net.forget(known + taken)
        self._net.reach(self._texts, known + taken)
        return found

    def _append(self, new: list[list[int]], expected: Array) -> list[tuple[list[int], list[float]]]:
        """Append the ``new`` tokens to the texts; return them with the net's probabilities."""
        found = []
        for text, ids, chances in zip(self._texts, new, expected, strict=True):
            text.extend(ids)
            found.append((ids, [float(chances[k, id]) for k, id in enumerate(ids)]))
        return found


def _expect_same_words(net: Net, small: Net) -> None:
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


def _told(ids: list[int], chances: list[float]) -> Generated:
    with np.errstate(divide="ignore"):
        return Generated(np.array(ids, np.int64), np.log(np.array(chances, np.float64)))


@entry_point
def generate(
    net: Net,
    prompts: Any,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    stop: Any = None,
    max_length: int | None = None,
    *,
    draft: Net | DraftModel | None = None,
    prefix: Decoder | None = None,
) -> list[Generated]:
    """Generate text as `FeedForwardNet.generate`; return ids and their log-probabilities.

    Args:
        net: A net of probabilities (N, T, C).
        prompts: Array (N, P) of ids, or N arrays of any length.
        length: Positive int, the most ids after each prompt.
        sampling: The rule of the draws, a `Sampling`.
        seed: Int, the seed of the draws; None for the next of `set_seed`.
        stop: An id or a sequence of ids that ends a text, or several of them; None for none.
        max_length: Int, the most steps of the net; None for its own maximum.
        draft: A smaller net of the same vocabulary or a `DraftModel`, which proposes ids; or None.
        prefix: A `Decoder` of ``net`` that has read one sequence, which precedes each prompt.
    """
    checked_count("net.generate", "length", length, 1)
    rows, stops = _checked(prompts), _stops(stop)
    small = DraftModel(draft) if isinstance(draft, Net) else draft
    if prefix is None:
        spare = 0 if small is None else small.spare
        prefix = Decoder(net, max_length, spare=spare)
    else:
        _expect_prefix(net, prefix, max(map(len, rows)) + length - 1, max_length)
    rng = np.random.default_rng(next_seed() if seed is None else seed)
    writer = Writer(prefix, rows, sampling, rng, small, max_length)
    found: list[list[Generated]] = [[] for _ in rows]
    known: list[list[int]] = [[] for _ in rows]
    for further in writer:
        ended = []
        for row, new in further.items():
            count = _until_end(known[row], new.ids.tolist(), length, stops)
            found[row].append(Generated(new.ids[:count], new.log_probabilities[:count]))
            if len(known[row]) == length or _ends(known[row], stops):
                ended.append(row)
        writer.end(ended)
    return [_whole(parts) for parts in found]


def _until_end(known: list[int], new: list[int], length: int, stops: list[list[int]]) -> int:
    """Append ``new`` to ``known`` up to the end of the row and return the number appended."""
    for count, id in enumerate(new, 1):
        known.append(id)
        if len(known) == length or _ends(known, stops):
            return count
    return len(new)


def _ends(known: list[int], stops: list[list[int]]) -> bool:
    return any(known[-len(stop) :] == stop for stop in stops)


def _whole(parts: list[Generated]) -> Generated:
    return Generated(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _expect_prefix(net: Net, prefix: Decoder, steps: int, max_length: int | None) -> None:
    """Errors: `ArgumentError` for a prefix of another net or without room for ``steps``."""
    if prefix.net is not net or prefix.samples != 1 or max_length is not None:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected="a decoder of this net that has read one sequence, and no max_length",
            received=f"a decoder of {prefix.samples} sequences"
            + ", of another net" * (prefix.net is not net),
            advice="decoder = net.decoder(max_length); decoder.read([ids])",
        )
    if prefix.limit is not None and prefix.steps + steps > prefix.limit:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected=f"at most {prefix.limit} steps of prefix, prompt and new tokens",
            received=f"{prefix.steps} and {steps}",
            advice="reduce length, or pass whole prompts, which restart with their last half",
        )


def _stops(given: Any) -> list[list[int]]:
    """Return the token sequences that end a row, from a token, tokens or sequences."""
    parts: Any = [given] if is_int(given, 0) else [] if given is None else given
    try:
        runs = [[part] if is_int(part, 0) else list(part) for part in parts]
    except TypeError:
        runs = [[]]
    if not all(run and all(is_int(k, 0) for k in run) for run in runs):
        raise ArgumentError(
            "net.generate, argument stop",
            expected="an id, several, or runs of ids, such as [2, [13, 13]]",
            received=brief(given)[:80],
            advice="encode texts by tokenizer.encode(text, special=False).tolist()",
        )
    return [[int(k) for k in run] for run in runs]


def _checked(prompts: Any) -> list[Array]:
    """Return the prompts as integer arrays of at least one token each."""
    rows = [np.asarray(prompt) for prompt in prompts]
    if not rows or any(row.ndim != 1 or not row.size or row.dtype.kind not in "iu" for row in rows):
        raise DataError(
            "net.generate, argument prompts",
            expected="an array (N, P) of whole numbers, or N arrays (P,), with at least one each",
            received=f"{len(rows)} of shapes {[row.shape for row in rows][:8]}",
            advice=_prompt_advice(prompts),
        )
    return rows


def _prompt_advice(prompts: Any) -> str:
    if are_messages(prompts):
        return MESSAGES
    if are_texts(prompts):
        return "encode each text by tokenizer.encode(text)"
    return "one prompt is ids[None], or [ids]"
