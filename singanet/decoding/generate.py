"""Generation of texts, token by token or whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, are_texts, checked_count
from singanet.base.seeding import next_seed
from singanet.base.tracebacks import entry_point
from singanet.decoding.beams import BeamSearch
from singanet.decoding.decoder import Decoder
from singanet.decoding.drafts import DraftModel, expect_same_words, judged, offered, picked
from singanet.decoding.prefix_cache import PrefixCache, Scored
from singanet.decoding.processors import Processors, Stops, Words
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.types import Array


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
        processors: Changes to the scores before the draws, `Processors`; None for none.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Array],
        sampling: Sampling,
        rng: np.random.Generator,
        draft: DraftModel | None = None,
        max_length: int | None = None,
        processors: Processors | None = None,
    ) -> None:
        self._sampling, self._rng, self._draft = sampling, rng, draft
        self._processors = Processors() if processors is None else processors
        self._starts = [len(prompt) for prompt in prompts]
        self._count = len(prompts)
        self.rows = list(range(self._count))
        self._texts = [[int(id) for id in prompt] for prompt in prompts]
        if draft is not None:
            expect_same_words(decoder.net, draft.net)
        begun = decoder.fork([0] * self._count) if decoder.samples else decoder
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
        ids = self._sampling.chosen(self._processed(expected), chances)
        return self._append([[int(id)] for id in ids], expected.probabilities[:, None])

    def _processed(self, scored: Scored, offered: Array | None = None) -> Array:
        """Return weights (N, C) or (N, t, C) of the next ids, by the processors.

        The last t - 1 of t steps are after the ids ``offered`` (N, t - 1).
        """
        if self._processors._are_none:
            return scored.probabilities
        found = np.zeros_like(scored.probabilities, np.float64)
        steps = found.reshape(len(self.rows), -1, found.shape[-1])
        logits = scored.logits.reshape(steps.shape)
        for n, (row, text) in enumerate(zip(self.rows, self._texts, strict=True)):
            ids = [*text]
            for k in range(steps.shape[1]):
                if k and offered is not None:
                    ids.append(int(offered[n, k - 1]))
                    if not steps[n, k - 1, ids[-1]]:
                        # The id is rejected: what would follow it does not matter.
                        steps[n, k:] = 1.0
                        break
                steps[n, k] = self._processors._weights(ids, self._starts[row], logits[n, k])
        return found

    def _several(self, ahead: int) -> list[tuple[list[int], list[float]]]:
        assert self._draft is not None
        assert self._small is not None
        offer = offered(self._small, self._texts, ahead, self._sampling, self._rng)
        self._net.mark()
        last = np.array([[text[-1]] for text in self._texts])
        expected = self._net.ahead(np.concatenate([last, offer.ids], axis=1))
        weights = self._processed(expected, offer.ids)
        wanted = self._sampling._adjusted(weights.reshape(-1, weights.shape[-1]))
        taken, rest = judged(offer, wanted.reshape(weights.shape), self._rng)
        self._draft.offered += offer.ids.size
        self._draft.taken += int(taken.sum())
        known = np.array([len(text) for text in self._texts])
        nexts = picked(rest, self._rng)
        new = [
            [*ids[:n], id]
            for ids, n, id in zip(offer.ids.tolist(), taken, nexts.tolist(), strict=True)
        ]
        found = self._append(new, expected.probabilities)
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
    processors: Processors | None = None,
    beams: BeamSearch | None = None,
    tokenizer: Words = None,
    inputs: Mapping[str, Any] | None = None,
    encoder: tuple[str, int, str | None] | None = None,
) -> list[Generated]:
    """Generate text as `FeedForwardNet.generate`; return ids and their log-probabilities.

    Args:
        net: A net of probabilities (N, T, C).
        prompts: Array (N, P) of ids, or N arrays of any length.
        length: Positive int, the most ids after each prompt.
        sampling: The rule of the draws, a `Sampling`.
        seed: Int, the seed of the draws; None for the next of `set_seed`.
        stop: An id, a sequence of ids or a text that ends a text, or several of them; None for
            none.
        max_length: Int, the most steps of the net; None for its own maximum.
        draft: A smaller net of the same vocabulary or a `DraftModel`, which proposes ids; or None.
        prefix: A `Decoder` of ``net`` that has read one sequence, which precedes each prompt.
        processors: Changes to the scores, `Processors`; None for none.
        beams: A `BeamSearch` in place of draws; None, or a search of one beam, for draws.
        tokenizer: The `Tokenizer` of the texts in ``stop``, or a function that returns it.
        inputs: Dict of further inputs (N, ...) by name; None for none.
        encoder: The name of the input of an encoder, which reads the prompts, the id that starts
            each text, and the name of the input that masks prompts, or None; None for a net that
            continues its prompts.
    """
    checked_count("net.generate", "length", length, 1)
    _expect_kind("prefix", prefix, Decoder, "decoder = net.decoder(); decoder.read([ids])")
    _expect_kind("draft", draft, (Net, DraftModel), "load the smaller model, and pass its net")
    _expect_kind("inputs", inputs, Mapping, "pass inputs={name: array}")
    rows, stops = _checked(prompts), Stops(stop, tokenizer)
    small = DraftModel(draft) if isinstance(draft, Net) else draft
    changes = Processors() if processors is None else processors
    if changes.guide is not None:
        stops.runs.append([changes.guide.end])
    if beams is not None and beams.num_beams == 1:
        beams = None
    if beams is not None:
        _expect_no_draws(sampling, small)
    seed = next_seed() if seed is None else checked_count("net.generate", "seed", seed, 0)
    rng = np.random.default_rng(seed)

    def written(rows: Sequence[Array], decoder: Decoder) -> list[Generated]:
        if beams is not None:
            found = beams.search(decoder, rows, length, changes, stops)
            return [Generated(np.array(b.ids, np.int64), np.array(b.logs)) for b in found]
        writer = Writer(decoder, rows, sampling, rng, small, max_length, changes)
        return _written(writer, length, stops)

    spare = 0 if small is None else small.spare
    fixed = _rows_of(inputs, len(rows))
    if encoder is not None:
        if prefix is not None or small is not None:
            raise ArgumentError(
                "net.generate",
                expected="no prefix and no draft, as an encoder reads the prompts",
                received="a prefix" if small is None else "a draft",
                advice="leave it out",
            )
        # A text begins anew, so that its length is the most steps.
        most = next(each for each in (max_length, net.most_steps, length) if each is not None)
        return _of_encoder(net, rows, fixed, most, encoder, written)
    if prefix is None:
        _expect_one_sequence(net, fixed)
        prefix = Decoder(net, max_length, fixed, spare)
    else:
        _expect_prefix(net, prefix, max(map(len, rows)) + length - 1, max_length, fixed)
    return written(rows, prefix)


def _of_encoder(
    net: Net,
    prompts: Sequence[Array],
    fixed: Mapping[str, Array],
    max_length: int,
    encoder: tuple[str, int, str | None],
    written: Callable[[Sequence[Array], Decoder], list[Generated]],
) -> list[Generated]:
    """Return the texts after ``prompts``, which the encoder reads in groups of one length."""
    name, start, mask = encoder
    groups: dict[int, list[int]] = {}
    for n, prompt in enumerate(prompts):
        groups.setdefault(len(prompt), []).append(n)
    found: dict[int, Generated] = {}
    for places in groups.values():
        given = {name: np.stack([prompts[n] for n in places])}
        if mask is not None:
            given[mask] = np.ones_like(given[name])
        given |= {key: value[places] for key, value in fixed.items()}
        _expect_one_sequence(net, given)
        texts = written([np.array([start])] * len(places), Decoder(net, max_length, given))
        found.update(zip(places, texts, strict=True))
    return [found[n] for n in range(len(prompts))]


def _written(writer: Writer, length: int, stops: Stops) -> list[Generated]:
    """Return the continuations up to ``length`` ids or the first of ``stops``."""
    known: list[list[int]] = [[] for _ in writer.rows]
    logs: list[list[float]] = [[] for _ in writer.rows]
    for further in writer:
        ended = []
        for row, new in further.items():
            for id, log in zip(new.ids.tolist(), new.log_probabilities.tolist(), strict=True):
                known[row].append(id)
                logs[row].append(log)
                end = stops.end(known[row])
                if end is not None:
                    del known[row][end:], logs[row][end:]
                if end is not None or len(known[row]) == length:
                    ended.append(row)
                    break
        writer.end(ended)
    pairs = zip(known, logs, strict=True)
    return [Generated(np.array(ids, np.int64), np.array(log, np.float64)) for ids, log in pairs]


def _rows_of(inputs: Mapping[str, Any] | None, rows: int) -> dict[str, Array]:
    """Return the further inputs. Errors: `DataError` unless each has a row for every prompt."""
    found = {name: np.asarray(value) for name, value in (inputs or {}).items()}
    wrong = {name: value.shape for name, value in found.items() if value.shape[:1] != (rows,)}
    if wrong:
        raise DataError(
            "net.generate, argument inputs",
            expected=f"arrays of {rows} rows, one for each prompt",
            received=f"the shapes {wrong}",
            advice="repeat an array for each prompt: np.repeat(array[None], len(prompts), 0)",
        )
    return found


def _expect_kind(name: str, given: Any, kind: Any, advice: str) -> None:
    """Errors: `ArgumentError` unless the argument ``name`` is None or of the ``kind``."""
    if given is not None and not isinstance(given, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise ArgumentError(
            f"net.generate, argument {name}",
            expected=f"a {' or '.join(each.__name__ for each in kinds)}, or None",
            received=brief(given)[:80],
            advice=advice,
        )


def _expect_one_sequence(net: Net, given: Mapping[str, Any]) -> None:
    """Errors: `ArgumentError` unless ``given`` are all inputs of the net but one."""
    names = [*net._execution_plan().inputs]
    missing = [name for name in names if name not in given]
    if len(missing) != 1 or len(names) != len(given) + 1:
        raise ArgumentError(
            "net.generate, argument inputs",
            expected=f"arrays for all but one of the net's inputs {one_of(names)}",
            received=one_of([*given]) or "none",
            advice="pass inputs={name: array}, with a row for each prompt; for a net of fewer"
            " inputs pretrained.load(folder, inputs=[...])",
        )


def _expect_no_draws(sampling: Sampling, draft: DraftModel | None) -> None:
    """Errors: `ArgumentError` for settings of draws or a draft beside a beam search."""
    draws = sampling.top_k, sampling.top_p, sampling.min_p
    if sampling.temperature not in (0, 1) or draft is not None or draws != (None,) * 3:
        raise ArgumentError(
            "net.generate, argument num_beams",
            expected="no temperature, top_k, top_p, min_p or draft: a search draws nothing",
            received=f"{sampling}" if draft is None else f"{draft}",
            advice="leave them out, or set num_beams=1",
        )


def _expect_prefix(
    net: Net, prefix: Decoder, steps: int, max_length: int | None, fixed: Mapping[str, Array]
) -> None:
    """Errors: `ArgumentError` for a prefix of another net or without room for ``steps``."""
    if fixed:
        raise ArgumentError(
            "net.generate, argument inputs",
            expected="no further inputs beside a prefix, whose decoder has them",
            received=one_of([*fixed]),
            advice="prefix = net.decoder(fixed={name: array})",
        )
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


def _checked(prompts: Any) -> list[Array]:
    """Return the prompts as integer arrays of at least one token each."""
    several = isinstance(prompts, Iterable) and getattr(prompts, "ndim", 1) > 0
    rows = [np.asarray(prompt) for prompt in prompts] if several else []
    if not rows or any(row.ndim != 1 or not row.size or row.dtype.kind not in "iu" for row in rows):
        raise DataError(
            "net.generate, argument prompts",
            expected="an array (N, P) of whole numbers, or N arrays (P,), with at least one each",
            received=f"{len(rows)} of shapes {[row.shape for row in rows][:8]}",
            advice=_prompt_advice(prompts),
        )
    return rows


def _prompt_advice(prompts: Any) -> str:
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        return "pass the ids alone, prompts['input_ids']; those of several prompts as a list"
    if are_messages(prompts):
        return MESSAGES
    if are_texts(prompts):
        return "encode each text by tokenizer.encode(text)"
    return "one prompt is ids[None], or [ids]"
