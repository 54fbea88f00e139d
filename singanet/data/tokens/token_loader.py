"""The base of token loaders: order, rows, ranks and the position."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, checked_count
from singanet.base.described import Described
from singanet.base.progress import progress
from singanet.data.loaders import Batch, checked_rank, restored_position
from singanet.data.tokens.text_files import (
    Fragment,
    TextFiles,
    TextRecord,
    TokenRow,
    batch_of,
    packed,
    padded,
    width_of,
)
from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.types import Array

Loader = TypeVar("Loader", bound="TokenLoader")
_INPUTS = ("input_ids", "attention_mask", "segments")


class RowPlace(NamedTuple):
    """The position of a row: its block, in the order of the epoch, and its index there."""

    block: int
    row: int


class TokenLoader(Described):
    """The base class of loaders of batches ``(x, y)`` of tokens, read from disk as they are needed.

    ``x`` is a dict of ``inputs``, (N, T) int32 each, or the array if there is one: "input_ids";
    "segments", which number the texts of a row from 1; "attention_mask", 1 for tokens. Both are 0
    for padding. ``y`` (N, T) int32 are the next tokens, -100 for positions without a target: for
    ``SoftmaxCrossEntropy(ignore_index=-100)``. A token and its target belong to the same text.

    With ``pad_to`` a batch is padded to the least of these lengths, or ``length``, that fits its
    texts. A batch always has ``batch_size`` rows; the last ones of an epoch may be padding.

    Files are read in blocks of ``window`` bytes, one at a time. ``(seed, epoch)`` determine the
    order of blocks in an epoch, and of rows in a block. Rank *r* takes the rows r, r + world_size,
    ... of all ranks: the k-th batches of all ranks are the k-th batch of one process with
    ``batch_size × world_size``. A saved position is valid for another number of ranks if that
    product is the same. An iteration continues from the current position to the end of the epoch.

    Errors: `DataError` with file and line for invalid text.

    Args:
        paths: Path of a file or a folder, or a list of paths.
        tokenizer: The `Tokenizer` of the model.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the most tokens of a row, T.
        pad_to: Lengths up to ``length``; a batch is padded to one of them, and each text then
            has its own row. Empty to pack texts into rows of ``length`` tokens.
        inputs: Names of the arrays of ``x``: "input_ids", "segments" and "attention_mask". None for
            "input_ids" and "segments", with ``pad_to`` for "input_ids" and "attention_mask".
        shuffle: Whether each epoch has an order of its own, of blocks and of rows in a block.
        seed: Int from 0 on, the seed of the orders.
        window: Positive int, the bytes of a file that are read at a time: a block.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        tokenizer: Tokenizer,
        batch_size: int,
        length: int,
        *,
        pad_to: Sequence[int] = (),
        inputs: Sequence[str] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = 1 << 20,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        where = type(self).__name__
        if not isinstance(tokenizer, Tokenizer):
            raise ArgumentError(
                f"{where}, tokenizer",
                expected="a Tokenizer of singanet",
                received=brief(tokenizer)[:80],
                advice="pass singanet.pretrained.tokenizer(folder)",
            )
        self.tokenizer = tokenizer
        self.batch_size = checked_count(where, "batch_size", batch_size, 1)
        self.length = checked_count(where, "length", length, 1)
        lengths = {checked_count(where, "pad_to", each, 1, self.length) for each in pad_to}
        self.pad_to = tuple(sorted(lengths))
        self.inputs = _checked_inputs(where, inputs, bool(lengths))
        self.shuffle = bool(shuffle)
        self.seed = checked_count(where, "seed", seed, 0)
        self.window = checked_count(where, "window", window, 1)
        self.rank, self.world_size = checked_rank(where, rank, world_size)
        self._together = self.batch_size * self.world_size
        self.files = TextFiles(paths, self.window)
        self._widths = tuple(sorted({*lengths, self.length})) if lengths else (self.length,)
        known = (tokenizer.pad_id, tokenizer.eos_id, 0)
        self._padding = next(each for each in known if each is not None)
        self.epoch = self.position = 0
        self._next = RowPlace(0, 0)
        self._batch_count: int | None = None

    @abstractmethod
    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        """Return the tokens of ``record``, in fragments up to ``length``. Errors: `DataError`."""

    @property
    def counted(self) -> tuple[str, int]:
        """The unit of a training's speed: the tokens of a row, including padding."""
        return "tokens", self.longest_row

    @property
    def widths(self) -> tuple[int, ...]:
        """The tokens of a row in a batch, including padding: the possible ones, in order."""
        return self._widths

    @property
    def longest_row(self) -> int:
        """The most tokens of a row, including padding."""
        return self._widths[-1]

    @property
    def _smallest_batch(self) -> int:
        """The rows of the smallest batch of any rank."""
        return max(self._together // self.world_size, 1)

    def __iter__(self) -> Iterator[Batch]:
        epoch, position = self.epoch, self.position
        batches = self._batches(epoch, self._next)
        upcoming = next(batches, None)
        if upcoming is None:
            if self._next == (0, 0):
                raise DataError(
                    type(self).__name__,
                    expected="a text of two tokens or more",
                    received=f"none in {one_of(map(str, self.files.sizes), 3)}",
                    advice="check the files, and whether all texts are longer than length",
                )
            self.set_epoch(epoch + 1)
        while upcoming is not None:
            _, rows = upcoming
            upcoming = next(batches, None)
            position += 1
            # Count before the yield, as `ArrayLoader` does.
            if upcoming is None:
                self._batch_count = position
                self.set_epoch(epoch + 1)
            else:
                self.epoch, self.position, self._next = epoch, position, upcoming[0]
            yield self._batch(rows)

    def count_batches(self) -> int:
        """Count the batches of an epoch; this reads and encodes all texts, a block at a time."""
        blocks = range(len(self.files.blocks))
        rows = sum(len(self._block(0, block)) for block in progress(blocks, "counting batches"))
        self._batch_count = -(-rows // self._together)
        return self._batch_count

    def keep_back(self: Loader, share: float) -> Loader:
        """Split off the last blocks for validation; return a loader of these, in order.

        They are the fewest blocks that have ``share``, a number between 0 and 1, of the bytes. Both
        loaders start at their first batch. Errors: `DataError` if there are too few blocks for
        both.
        """
        other = copy(self)
        self.files, other.files = self.files.parted(share)
        self._batch_count = other._batch_count = None
        other.shuffle = False
        self.set_epoch(0)
        other.set_epoch(0)
        return other

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``, an int from 0 on."""
        self.epoch = checked_count(type(self).__name__, "epoch", epoch, 0)
        self.position, self._next = 0, RowPlace(0, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings that must be equal to restore it, for all ranks."""
        own = {"epoch": self.epoch, "position": self.position}
        return {**own, "block": self._next.block, "row": self._next.row, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state`` of `state_dict`; the following batches are bit-identical.

        Errors: `ArgumentError` if the files, the tokenizer or the settings differ; the position is
        then unchanged.
        """
        where, most = type(self).__name__, 1 << 62
        epoch, position = restored_position(where, state, self._identity(), most)
        last = len(self.files.blocks)
        block = checked_count(f"{where}, state", "block", state.get("block", 0), 0, last)
        row = checked_count(f"{where}, state", "row", state.get("row", 0), 0)
        self.epoch, self.position, self._next = epoch, position, RowPlace(block, row)

    def _identity(self) -> dict[str, int]:
        return {
            "files": self.files._fingerprint,
            "tokenizer": self.tokenizer._fingerprint,
            "batch_size": self._together,
            "length": self.length,
            "pad_to": zlib.crc32(repr(self.pad_to).encode()),
            "shuffle": int(self.shuffle),
            "seed": self.seed,
            "window": self.window,
        }

    def _batches(self, epoch: int, start: RowPlace) -> Iterator[tuple[RowPlace, list[TokenRow]]]:
        """Yield the rows of each batch of all ranks, and the position of the first."""
        rows = self._rows(epoch, start)
        while several := list(islice(rows, self._together)):
            place = several[0][0]
            found = [row for _, row in several]
            yield place, found + [[]] * (self._together - len(found))

    def _rows(self, epoch: int, start: RowPlace) -> Iterator[tuple[RowPlace, TokenRow]]:
        count = len(self.files.blocks)
        order = range(count)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(count).tolist()
        for block in range(start.block, count):
            rows = self._block(epoch, order[block])
            first = start.row if block == start.block else 0
            if first and first >= len(rows):
                raise ArgumentError(
                    f"{type(self).__name__}, state",
                    expected=f"a row below {len(rows)} of block {block}",
                    received=f"{first}",
                    advice="the texts have changed since the position was saved: start again",
                )
            for number in range(first, len(rows)):
                yield RowPlace(block, number), rows[number]
            del rows  # before the next block is read, or memory would contain two

    def _block(self, epoch: int, block: int) -> list[TokenRow]:
        parts = [part for each in self.files.records(block) for part in self.tokens_of(each)]
        rng = np.random.default_rng([self.seed, epoch if self.shuffle else 0, block])
        if self.shuffle:
            parts = [parts[k] for k in rng.permutation(len(parts)).tolist()]
        if self.pad_to:
            return padded(parts, self._widths, self._together, rng)
        rows = packed(parts, self.length)
        return [rows[k] for k in rng.permutation(len(rows)).tolist()] if self.shuffle else rows

    def _batch(self, rows: list[TokenRow]) -> Batch:
        # One width on all ranks, so that their steps take equally long.
        width = width_of(rows, self._widths)
        x, y = batch_of(rows[self.rank :: self.world_size], width, self._padding)
        if len(self.inputs) == 1:
            return x[self.inputs[0]], y
        return {name: x[name] for name in self.inputs}, y


def _checked_inputs(where: str, inputs: Sequence[str] | None, pads: bool) -> tuple[str, ...]:
    if inputs is None:
        return ("input_ids", "attention_mask") if pads else ("input_ids", "segments")
    given = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    if not given or not all(name in _INPUTS for name in given):
        raise ArgumentError(
            f"{where}, inputs",
            expected=f"some of {one_of(_INPUTS)}",
            received=brief(inputs)[:80],
            advice=MESSAGES if are_messages(inputs) else "name the inputs of the net",
        )
    return given


def expect_text(record: TextRecord, name: str, others: str) -> str:
    """Return the text ``name`` of ``record``. Errors: no such string."""
    found = record.entry.get(name)
    if not isinstance(found, str):
        shown = list(record.entry)[:8]
        raise DataError(
            record.where,
            expected=f'an object with "{name}", a string',
            received=f"entries {one_of(shown)}"
            if name not in record.entry
            else type(found).__name__,
            advice=others,
        )
    return found


def encoded(record: TextRecord, tokenizer: Tokenizer, text: str) -> Array:
    """Return the ids of ``text`` without special tokens. Errors: `DataError` with file and line."""
    try:
        return tokenizer.encode(text, special=False)
    except DataError as error:
        raise error.within(record.where) from None
