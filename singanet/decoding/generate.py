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
from singanet.decoding.decoder import Decoder
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError, one_of
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
        self._goes_back = decoder._goes_back(spare_for(ahead))
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


@dataclass(frozen=True)
class Sampling:
    """A draw by probabilities p^(1/temperature), of the likeliest alone if wanted.

    ``temperature`` 0 takes the likeliest, the first of equal ones. ``top_k`` leaves as many,
    ``top_p`` then the fewest that together have this probability (Holtzman et al. 2020). Errors:
    `ArgumentError` for a temperature below 0, a ``top_k`` below 1, a ``top_p`` outside (0, 1].
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
        """One number (N,) for each row of ``probabilities`` (N, C); one draw a row, in order."""
        return self.chosen(probabilities, rng.random(len(probabilities)))

    def chosen(self, probabilities: Array, chances: Array) -> Array:
        """One number (N,) for each row of ``probabilities`` (N, C), drawn by ``chances`` (N,).

        These are from 0 to below 1.
        """
        found: Array
        if self.temperature == 0:
            found = np.asarray(probabilities, np.float64).argmax(axis=1)
            return found
        order, falling = self._falling(self._weights(probabilities))
        total = falling.cumsum(axis=1)
        below = total <= chances[:, None] * total[:, -1:]
        place = np.minimum(below.sum(axis=1), (falling > 0).sum(axis=1) - 1)
        found = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
        return found

    def _adjusted(self, probabilities: Array) -> Array:
        """The probabilities (N, C) with which each is drawn, in float64; ones where it is sure."""
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
        """p^(1/temperature), multiplied so that the largest of a row is 1."""
        chances = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            scores = np.log(chances) / self.temperature
        weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights

    def _falling(self, weights: Array) -> tuple[Array, Array]:
        """The places of all weights, the largest first, and the weights of those that may be."""
        order = np.argsort(-weights, axis=1, kind="stable")
        falling = np.take_along_axis(weights, order, axis=1)[:, : self.top_k]
        if self.top_p is not None:
            total = falling.cumsum(axis=1)
            falling = np.where(total - falling < self.top_p * total[:, -1:], falling, 0.0)
        return order, falling


def _wrong(what: str, expected: str, received: object, advice: str) -> ArgumentError:
    return ArgumentError(
        f"sampling, argument {what}", expected=expected, received=repr(received), advice=advice
    )


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

    def _follower(self, count: int, max_length: int | None) -> Follower:
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
        chances.append(sampling._adjusted(expected))
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
        self._small = None if draft is None else draft._follower(self._count, max_length)

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


def generate(
    net: Net,
    prompts: Any,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    stop: Any = None,
    max_length: int | None = None,
    *,
    draft: Net | Drafter | None = None,
    prefix: Decoder | None = None,
) -> list[Generated]:
    """See `FeedForwardNet.generate`."""
    checked_count("net.generate", "length", length, 1)
    rows, stops = _checked(prompts), _stops(stop)
    small = Drafter(draft) if isinstance(draft, Net) else draft
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
    """How many of ``new`` ids still belong to the row; these are put behind those ``known``."""
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
    """Errors: a prefix of another net, or behind which ``steps`` find no room."""
    if prefix.net is not net or prefix.samples != 1 or max_length is not None:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected="a decoder of this net that has read one sequence, and no max_length beside",
            received=f"one of {prefix.samples} sequences"
            + ", of another net" * (prefix.net is not net),
            advice="decoder = net.decoder(max_length); decoder.read([ids])",
        )
    if prefix.limit is not None and prefix.steps + steps > prefix.limit:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected=f"at most {prefix.limit} steps of prefix, prompt and what is written",
            received=f"{prefix.steps} and {steps}",
            advice="write less, or give whole prompts: then the last half is read anew",
        )


def _stops(given: Any) -> list[list[int]]:
    """The runs of ids that end a row: of an id, ids, or runs of them."""
    parts: Any = [given] if is_int(given, 0) else [] if given is None else given
    try:
        runs = [[part] if is_int(part, 0) else list(part) for part in parts]
    except TypeError:
        runs = [[]]
    if not all(run and all(is_int(k, 0) for k in run) for run in runs):
        raise ArgumentError(
            "net.generate, argument stop",
            expected="an id, several, or runs of ids, such as [2, [13, 13]]",
            received=repr(given)[:80],
            advice="texts become ids by tokenizer.encode(text, special=False).tolist()",
        )
    return [[int(k) for k in run] for run in runs]


def _checked(prompts: Any) -> list[Array]:
    """The prompts as arrays of whole numbers, each with at least one."""
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
        return "make ids of each text by tokenizer.encode(text)"
    return "one prompt is ids[None], or [ids]"
