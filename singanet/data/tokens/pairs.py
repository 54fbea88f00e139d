"""A loader of preferences: pairs of answers, and judged answers."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.base.files import explained, path_of, replacing
from singanet.base.progress import progress
from singanet.data.loaders import Batch
from singanet.data.tokens.answers import AnsweredText, empty, joined, rendered
from singanet.data.tokens.text_files import Fragment, TextRecord
from singanet.data.tokens.token_loader import RowPlace, TokenLoader, expect_text
from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import ArgumentError, CallOrderError, DataError, brief, one_of
from singanet.types import Array

METHODS = ("dpo", "orpo", "kto", "reward")
TOO_LONG = ("refuse", "skip", "cut")
_PAIR, _JUDGED = ("prompt", "chosen", "rejected"), ("prompt", "completion", "label")
_REFERENCED = ("dpo", "kto")
_FORM = (
    'write {"prompt", "chosen", "rejected"}, or for method="kto" {"prompt", "completion", "label"}'
)
_CLOSE = 1e-3
"""The difference of log-probabilities, relative to 1 and to them, at which a file is of a net."""


class PairRow(NamedTuple):
    """The texts of a row, its target, and its place in the files: a part, and a number there."""

    texts: list[AnsweredText]
    target: float
    part: tuple[int, int]
    number: int


def _with_prompt(record: TextRecord) -> TextRecord:
    """Return the line with its prompt: if it has none, what both answers begin with, as in trl."""
    entry = record.entry
    chosen: Any = entry.get("chosen")
    rejected: Any = entry.get("rejected")
    if (
        "prompt" in entry
        or not isinstance(chosen, (str, list))
        or type(chosen) is not type(rejected)
    ):
        return record
    pairs = enumerate(zip(chosen, rejected, strict=False))
    size = next((k for k, (a, b) in pairs if a != b), min(len(chosen), len(rejected)))
    if isinstance(chosen, str) and chosen[:size].endswith(" "):
        # A word is one token with the space before it.
        size -= 1
    if size == 0:
        return record
    parts = {"prompt": chosen[:size], "chosen": chosen[size:], "rejected": rejected[size:]}
    return replace(record, entry={**entry, **parts})


class Pairs(TokenLoader):
    """A loader of preferences in ``.jsonl`` files, for a net from `pretrained.preference_net`.

    A line is ``{"prompt": ..., "chosen": ..., "rejected": ...}``, for the method "kto" ``{"prompt":
    ..., "completion": ..., "label": true}``. Without a prompt it is what both answers begin with,
    as in trl. All of them are texts, or all are lists of messages,
    which the model's chat template renders with the line's "tools" if it has some. Texts are joined
    unchanged, with ``eos_token`` at the end. An answer begins at the first token in which prompt
    and answer differ from the prompt alone.

    A batch is ``(x, y)``. A row of ``x``, a dict, has both texts of a pair, one after the other:
    "input_ids" (N, T); "segments" (N, T), 1 and 2 for the texts and 0 for padding; "labels" (N, T),
    the next tokens; "parts" (N, K, T) float32, 1 at the labels of part k: for K = 2 the chosen and
    the rejected answer, and for "orpo" the prompt before the chosen answer as a third one. For
    "reward" there are no labels, and the last token of each text is its part. For "kto" the second
    text is the prompt with the answer of another line, the one before it among ``batch_size`` lines
    as they are in the file; these lines are one batch.

    ``y`` are the targets of `DPO`, `ORPO`, `KTO` and `RewardRanking`. A margin of "reward" is the
    line's "margin", or 0. "dpo" and "kto" need `refer` before the first batch. The last batch of an
    epoch may have fewer rows, also than ranks.

    Errors: `DataError` with file and line for a line of another kind, an empty answer, a text that
    is too long, and a template that renders a prompt otherwise if an answer follows.

    Args:
        paths: Path of a ``.jsonl`` file or a folder of them, or a list of paths.
        tokenizer: The `Tokenizer` of the model.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the most tokens that the net reads of a text; a row has up to two.
        method: "dpo", "orpo", "kto" or "reward".
        too_long: Treatment of texts of more than ``length + 1`` tokens (``length`` for "reward"):
            "refuse" raises an error, "skip" drops the row, "cut" truncates the text, and drops the
            row if no token of an answer is left.
        pad_to: Lengths up to ``2 * length``; a batch is padded to one of them, or ``2 * length``.
            None for quarters of it.
        shuffle: Whether each epoch has an order of its own, of blocks and of rows in a block.
        seed: Int from 0 on, the seed of the orders.
        window: Positive int, the bytes of a file that are read at a time: a block.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> import pathlib, tokenizers
        >>> letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "c": 2}, []))
        >>> tokenizer = singanet.data.Tokenizer(letters)
        >>> line = '{"prompt": "ab", "chosen": "ca", "rejected": "b"}'
        >>> _ = pathlib.Path("pairs.jsonl").write_text(line)
        >>> pairs = singanet.data.Pairs("pairs.jsonl", tokenizer, 1, length=4, method="orpo")
        >>> [(x["segments"].tolist(), y.tolist()) for x, y in pairs]
        [([[1, 1, 1, 2, 2, 0]], [[2.0, 1.0, 1.0]])]
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        tokenizer: Tokenizer,
        batch_size: int,
        length: int,
        *,
        method: str = "dpo",
        too_long: str = "refuse",
        pad_to: Sequence[int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = 1 << 20,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(
            paths,
            tokenizer,
            batch_size,
            length,
            inputs=("input_ids", "segments"),
            shuffle=shuffle,
            seed=seed,
            window=window,
            rank=rank,
            world_size=world_size,
        )
        for name, given, known in (("method", method, METHODS), ("too_long", too_long, TOO_LONG)):
            if given not in known:
                raise ArgumentError(
                    f"Pairs, {name}",
                    expected=one_of(known),
                    received=brief(given)[:80],
                    advice=f"omit it for {known[0]!r}",
                )
        self.method, self.too_long = method, too_long
        most = 2 * self.length
        widths = [max(1, most * k // 4) for k in (1, 2, 3)] if pad_to is None else pad_to
        lengths = {checked_count("Pairs", "pad_to", each, 1, most) for each in widths}
        self.pad_to = tuple(sorted(lengths))
        self._widths = tuple(sorted({*lengths, most}))
        # The reference's outputs by part of the files: copies share them.
        self._reference: dict[tuple[int, int], Array] = {}

    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        """Return the texts of ``record`` as fragments, with their answers as targets."""
        made = self._texts_of(record)
        texts = [] if made is None else made[0]
        return [_fragment(text, text.start) for text in texts]

    @property
    def needs_reference(self) -> bool:
        """Whether the targets are outputs of a reference, see `refer`."""
        return self.method in _REFERENCED

    def __iter__(self) -> Iterator[Batch]:
        self._expect_reference()
        return super().__iter__()

    def refer(self, net: Any, file: str | os.PathLike[str] | None = None) -> None:
        """Compute the reference's outputs for all rows, once before a training.

        Copies such as those of `keep_back` get them, too. If ``file`` exists and is of these rows
        and of a net with the outputs of ``net``, its values are read instead, so that a resumed
        training has the same reference. Errors: `FileAccessError`; `DataError` for rows without a
        finite output.

        Args:
            net: The net of `pretrained.preference_net` before its training, or any object whose
                ``predict(x)`` returns log-probabilities (N, 2).
            file: Path of an ``.npz`` file to read, or to write.
        """
        place = None if file is None else path_of(file, "file")
        if place is not None and self._read_reference(place, net):
            return
        found: dict[tuple[int, int], list[Array]] = {part: [] for part in self._parts()}
        for block in progress(range(len(self.files.blocks)), "reference"):
            rows = self._lines(block)
            for first in range(0, len(rows), self.batch_size):
                several = rows[first : first + self.batch_size]
                for row, value in zip(several, self._predicted(net, several), strict=True):
                    found[row.part].append(value)
        self._reference.clear()
        for part, values in found.items():
            self._reference[part] = np.array(values, np.float32).reshape(-1, 2)
        if place is not None:
            self.save_reference(place)

    def refer_as(self, other: Pairs) -> None:
        """Use the reference's outputs of ``other``, a loader of the same rows.

        Errors: `ArgumentError` for a loader of other rows.
        """
        if other._rows_identity() != self._rows_identity():
            raise ArgumentError(
                "Pairs.refer_as, other",
                expected="a loader of the same files, tokenizer, method, length and window",
                received="another one",
                advice="call refer(net)",
            )
        self._reference = other._reference

    def _predicted(self, net: Any, rows: list[PairRow]) -> Array:
        values = np.asarray(net.predict(self._inputs_of(rows)), np.float32)
        if values.shape != (len(rows), 2) or not np.isfinite(values).all():
            raise DataError(
                "Pairs.refer",
                expected=f"finite log-probabilities ({len(rows)}, 2) of the reference",
                received=f"shape {values.shape}, some not finite",
                advice="pass the net of pretrained.preference_net for the same method",
            )
        return values

    def _read_reference(self, place: Path, net: Any) -> bool:
        """Read the file at ``place``; return False if there is none of these rows and net."""
        if not place.is_file():
            return False
        with explained(place, "read"), np.load(place, allow_pickle=False) as stored:
            if "rows" not in stored or stored["rows"].tolist() != self._rows_identity():
                return False
            values, parts = stored["values"], stored["parts"].tolist()
            counts = stored["counts"].tolist()
        ends = np.cumsum(counts)[:-1]
        found = dict(zip(map(tuple, parts), np.split(values, ends), strict=True))
        first = next((rows for b in range(len(self.files.blocks)) if (rows := self._lines(b))), [])
        first = first[: self.batch_size]
        if not found.keys() >= {*self._parts()}:
            return False
        if first:
            stored_values = np.stack([found[row.part][row.number] for row in first])
            if not np.allclose(stored_values, self._predicted(net, first), _CLOSE, _CLOSE):
                return False
        self._reference.clear()
        self._reference.update(found)
        return True

    def save_reference(self, file: str | os.PathLike[str]) -> None:
        """Write the reference's outputs to ``file``, an ``.npz`` file for `refer`.

        Errors: `FileAccessError`; `CallOrderError` before `refer`.
        """
        self._expect_reference()
        place, reference = path_of(file, "file"), self._reference
        arrays = {
            "rows": np.array(self._rows_identity(), np.int64),
            "values": np.concatenate([*reference.values(), np.empty((0, 2), np.float32)]),
            "counts": np.array([len(values) for values in reference.values()], np.int64),
            "parts": np.array([*reference], np.int64).reshape(-1, 2),
        }
        with replacing(place) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

    def _rows_identity(self) -> list[int]:
        """Return numbers by which rows, and their parts of the files, can be compared."""
        names = ("tokenizer", "length", "window", "method", "too_long")
        own, files = self._identity(), [f"{p.name} {size}" for p, size in self.files.sizes.items()]
        listed = zlib.crc32("\n".join(files).encode("utf-8", "surrogateescape"))
        together = self._together if self.method == "kto" else 0
        return [listed, together, *(own[name] for name in names)]

    def _parts(self, blocks: Sequence[int] | None = None) -> dict[tuple[int, int], Path]:
        """Return the parts of the ``blocks``, None for all, with their files."""
        numbers = {path: k for k, path in enumerate(self.files.sizes)}
        chosen = range(len(self.files.blocks)) if blocks is None else blocks
        parts = [part for block in chosen for part in self.files.blocks[block]]
        return {(numbers[part.path], part.begin): part.path for part in parts}

    def _expect_reference(self) -> None:
        if self.needs_reference and not self._reference:
            raise CallOrderError(
                "Pairs",
                expected="the outputs of the reference before the first batch",
                received="none",
                advice="call pairs.refer(net) before the training",
            )

    def _identity(self) -> dict[str, int]:
        return {
            **super()._identity(),
            "method": METHODS.index(self.method),
            "too_long": TOO_LONG.index(self.too_long),
            "reference": zlib.crc32(b"".join(v.tobytes() for v in self._reference.values())),
        }

    # -- rows -------------------------------------------------------------------------------

    def _lines(self, block: int) -> list[PairRow]:
        """Return the rows of a block in the order of the files."""
        counts: dict[tuple[int, int], int] = {}
        parts = {path: part for part, path in self._parts([block]).items()}
        found = []
        for record in self.files.records(block):
            made = self._texts_of(record)
            if made is None:
                continue
            key = parts[record.path]
            number = counts[key] = counts.get(key, -1) + 1
            found.append(PairRow(*made, key, number))
        return self._mismatched(found) if self.method == "kto" else found

    def _mismatched(self, rows: list[PairRow]) -> list[PairRow]:
        """Add the prompt with the answer of the line before, around the lines of a batch."""
        found = []
        for first in range(0, len(rows), self._together):
            several = rows[first : first + self._together]
            for k, row in enumerate(several if len(several) > 1 else ()):
                own, other = row.texts[0], several[k - 1].texts[0]
                ids = np.concatenate([own.ids[: own.start], other.ids[other.start :]])
                text = AnsweredText(ids[: self._longest], own.start)
                found.append(row._replace(texts=[own, text]))
            if len(several) == 1:
                found += several  # whose second text is empty, and has the log-probability 0
        return found

    def _block(self, epoch: int, block: int) -> list[Any]:
        rows = self._lines(block)
        if not self.shuffle:
            return rows
        rng = np.random.default_rng([self.seed, epoch, block])
        size = self._together
        if self.method != "kto":
            # Rows of similar widths are a batch.
            rows = [rows[k] for k in rng.permutation(len(rows)).tolist()]
            rows.sort(key=lambda row: bisect_left(self._widths, self._width(row)))
        batches = [rows[first : first + size] for first in range(0, len(rows), size)]
        whole = [batch for batch in batches if len(batch) == size]
        drawn = [whole[k] for k in rng.permutation(len(whole)).tolist()]
        return [row for batch in [*drawn, *batches[len(whole) :]] for row in batch]

    def _batches(self, epoch: int, start: RowPlace) -> Iterator[tuple[RowPlace, list[Any]]]:
        rows = self._rows(epoch, start)
        while several := list(islice(rows, self._together)):
            yield several[0][0], [row for _, row in several]

    def count_batches(self) -> int:
        """Count the batches of an epoch; this reads and encodes all texts, a block at a time."""
        blocks = range(len(self.files.blocks))
        rows = sum(len(self._lines(block)) for block in progress(blocks, "counting batches"))
        self._batch_count = -(-rows // self._together)
        return self._batch_count

    def _batch(self, rows: list[Any]) -> Batch:
        width = self._width_of(rows)
        mine = rows[self.rank :: self.world_size]
        return self._inputs_of(mine, width), self._targets(mine)

    def _width(self, row: PairRow) -> int:
        return sum(len(text.ids) - self._shift for text in row.texts)

    def _width_of(self, rows: Sequence[PairRow]) -> int:
        return self._widths[bisect_left(self._widths, max(map(self._width, rows)))]

    @property
    def _shift(self) -> int:
        """How many tokens of a text the net does not read: the last one, which is only a label."""
        return int(self.method != "reward")

    @property
    def _longest(self) -> int:
        return self.length + self._shift

    def _inputs_of(self, rows: Sequence[PairRow], width: int | None = None) -> dict[str, Array]:
        width = self._width_of(rows) if width is None else width
        shape = len(rows), width
        ids, segments = np.full(shape, self._padding, np.int32), np.zeros(shape, np.int32)
        labels = np.zeros(shape, np.int32)
        parts = np.zeros((len(rows), 3 if self.method == "orpo" else 2, width), np.float32)
        for r, row in enumerate(rows):
            at = 0
            for k, text in enumerate(row.texts):
                end = at + len(text.ids) - self._shift
                ids[r, at:end], segments[r, at:end] = text.ids[: end - at], k + 1
                if self.method == "reward":
                    parts[r, k, end - 1] = 1
                else:
                    labels[r, at:end] = text.ids[1:]
                    parts[r, k, at + text.start - 1 : end] = 1
                if k == 0 and self.method == "orpo":
                    parts[r, 2, at : at + text.start - 1] = 1
                at = end
        x = {"input_ids": ids, "segments": segments, "parts": parts}
        return x if self.method == "reward" else {**x, "labels": labels}

    def _targets(self, rows: Sequence[PairRow]) -> Array:
        if self.method == "reward":
            return np.array([row.target for row in rows], np.float32)
        if self.method == "orpo":
            counts = [
                [*(len(text.ids) - text.start for text in row.texts), row.texts[0].start - 1]
                for row in rows
            ]
            return np.array(counts, np.float32).reshape(-1, 3)
        values = [self._reference[row.part][row.number] for row in rows]
        found = np.array(values, np.float32).reshape(-1, 2)
        if self.method == "dpo":
            return found
        return np.column_stack([found, np.array([row.target for row in rows], np.float32)])

    # -- texts ------------------------------------------------------------------------------

    def _texts_of(self, record: TextRecord) -> tuple[list[AnsweredText], float] | None:
        """Return the texts of a line and its target; None for a line that is dropped."""
        judged = self.method == "kto"
        record = record if judged else _with_prompt(record)
        entry = record.entry
        self._expect_kind(record, _JUDGED if judged else _PAIR, _PAIR if judged else _JUDGED)
        names = ("completion",) if judged else ("chosen", "rejected")
        target = self._label(record) if judged else self._margin(record)
        texts = []
        for name in names:
            prompt, answer = entry["prompt"], entry[name]
            if isinstance(prompt, str) != isinstance(answer, str):
                raise DataError(
                    record.where,
                    expected="texts alone, or lists of messages alone",
                    received=f'"prompt" a {type(prompt).__name__}, "{name}" a '
                    f"{type(answer).__name__}",
                    advice="write prompt and answers alike",
                )
            if isinstance(prompt, str):
                texts.append(
                    joined(record, self.tokenizer, prompt, expect_text(record, name, _FORM), name)
                )
            else:
                texts.append(rendered(record, self.tokenizer, prompt, answer, name))
        if self.method != "orpo":
            # As in trl, whose ORPO alone lets the answers of a pair begin at different tokens.
            start = min(text.start for text in texts)
            texts = [AnsweredText(text.ids, start) for text in texts]
        texts = [AnsweredText(text.ids, max(text.start, 1)) for text in texts]
        for name, text in zip(names, texts, strict=True):
            if len(text.ids) <= text.start:
                raise empty(record, name)
        if max(len(text.ids) for text in texts) > self._longest:
            if self.too_long == "refuse":
                raise DataError(
                    record.where,
                    expected=f"texts of at most {self._longest} tokens, prompt and answer",
                    received=f"{max(len(text.ids) for text in texts)}",
                    advice="pass a larger length, or too_long='skip' or 'cut'",
                )
            begins = max(text.start for text in texts)
            if self.too_long == "skip" or begins >= self._longest:
                return None
            texts = [AnsweredText(text.ids[: self._longest], text.start) for text in texts]
        return texts, target

    def _expect_kind(
        self, record: TextRecord, wanted: Sequence[str], others: Sequence[str]
    ) -> None:
        entry = record.entry
        missing = [name for name in wanted if name not in entry]
        if missing or any(name in entry for name in others[1:]):
            raise DataError(
                record.where,
                expected=f"an object with {one_of(wanted)}, for method={self.method!r}",
                received=f"entries {one_of(list(entry)[:8])}",
                advice=_FORM,
            )

    def _label(self, record: TextRecord) -> float:
        label = record.entry["label"]
        if label not in (True, False) or isinstance(label, float):
            raise DataError(
                record.where,
                expected='"label" true for a desirable answer, or false',
                received=brief(label)[:40],
                advice="judge each answer",
            )
        return float(label)

    def _margin(self, record: TextRecord) -> float:
        margin = record.entry.get("margin", 0.0)
        if self.method == "reward" and not is_number(margin):
            raise DataError(
                record.where,
                expected='"margin", a finite number',
                received=brief(margin)[:40],
                advice="omit it for 0",
            )
        return float(margin) if self.method == "reward" else 0.0


def _fragment(text: AnsweredText, start: int) -> Fragment:
    targets = np.where(np.arange(1, len(text.ids)) >= start, text.ids[1:], -100)
    return Fragment(text.ids[:-1], targets.astype(np.int32))
