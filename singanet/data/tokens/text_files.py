"""Text files, rows of tokens, and the text of tokens that arrive one by one."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from singanet.base.arguments import Budget, read_json
from singanet.base.files import paths_of
from singanet.data.image_sets import open_data_file
from singanet.errors import DataError, brief
from singanet.types import Array

SUFFIXES = (".txt", ".jsonl")
_OTHER_FORMATS = {
    ".json": "a list becomes .jsonl by jq -c '.[]' OLD.json > NEW.jsonl",
    ".csv": "convert it; a table of texts and classes is for singanet finetune --head",
    ".parquet": "convert it; a table of texts and classes is for singanet finetune --head",
}
MAX_LINE = 1 << 24
"""The most bytes of a line."""


@dataclass(frozen=True)
class TextPart:
    """The lines of the file at ``path``, of ``size`` bytes, that begin in ``[begin, end)``."""

    path: Path
    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class TextRecord:
    """An object of a ``.jsonl`` file, or the lines of a part of a ``.txt`` file, as ``text``.

    ``begins`` and ``ends`` are True if a text in several parts begins or ends here.
    """

    path: Path
    place: int
    entry: Mapping[str, Any]
    begins: bool = True
    ends: bool = True

    @property
    def where(self) -> str:
        """The file and line, for errors."""
        return _where(self.path, self.place)


class TextFiles:
    """The files of ``paths`` (files, folders, or several), cut into blocks of ``window`` bytes.

    In folders the files with `SUFFIXES` count, in the order of their names. A block is several
    small files, or a part of a large one: the lines that begin in it. So every line is in one
    block, and a block can be read without the earlier ones.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path], window: int) -> None:
        given = paths_of(paths, "paths")
        files = [file for path in given for file in _found(path)]
        if not files:
            raise DataError(
                f"text files {[str(path) for path in given][:3]}",
                expected=f"files whose names end in {' or '.join(SUFFIXES)}",
                received="none",
                advice="check the path; convert files of other formats",
            )
        self.sizes = {file: _size(file) for file in files}
        self.blocks = _blocks(self.sizes, window)
        self._part = ""

    def parted(self, share: float) -> tuple[TextFiles, TextFiles]:
        """Split off the last blocks: the fewest that have ``share`` of the bytes.

        Errors: `DataError` if a side would have no block.
        """
        sizes = [sum(part.end - part.begin for part in block) for block in self.blocks]
        cut, validated, wanted = len(sizes), 0, share * sum(sizes)
        while cut and validated < wanted:
            cut -= 1
            validated += sizes[cut]
        # A long line may fill the last blocks, in which no line begins then.
        while cut > 0 and not any(map(self._has_lines, range(cut, len(sizes)))):
            cut -= 1
        if not 0 < cut < len(sizes) or not any(map(self._has_lines, range(cut))):
            raise DataError(
                f"text files {[str(path) for path in self.sizes][:3]}",
                expected="blocks of text on both sides of the split, to train on and to validate",
                received=f"{sum(map(self._has_lines, range(len(sizes))))} in all",
                advice="add texts, read smaller blocks (window), pass a separate file for"
                " validation, or keep none back",
            )
        found = copy(self), copy(self)
        for each, part in zip(found, (slice(cut), slice(cut, None)), strict=True):
            each.blocks = self.blocks[part]
            each._part = f"{self._part}\n{part.start} {part.stop}"
        return found

    def _has_lines(self, block: int) -> bool:
        return any(True for part in self.blocks[block] for _ in _lines(part))

    @property
    def _fingerprint(self) -> int:
        """A checksum of the files' names and sizes, to compare with a saved position's."""
        listing = "\n".join(f"{file.name} {size}" for file, size in self.sizes.items()) + self._part
        return zlib.crc32(listing.encode("utf-8", "surrogateescape"))

    def records(self, block: int) -> Iterator[TextRecord]:
        """Yield the records of a block, in order.

        Errors: `DataError` with file and line for text that is not UTF-8, not a JSON object, or too
        long.
        """
        for part in self.blocks[block]:
            yield from _records(part)


def _found(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"text file {str(path)!r}",
                expected=f"a name that ends in {' or '.join(SUFFIXES)}",
                received=brief(path.suffix),
                advice=_OTHER_FORMATS.get(path.suffix.lower(), "convert it to such a format"),
            )
        return [path]
    return sorted(
        Path(folder) / name
        for folder, _, names in os.walk(path)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
    )


def _size(path: Path) -> int:
    with open_data_file(path) as stream:
        return os.fstat(stream.fileno()).st_size


def _blocks(sizes: Mapping[Path, int], window: int) -> list[tuple[TextPart, ...]]:
    blocks: list[tuple[TextPart, ...]] = []
    small: list[TextPart] = []
    filled = 0
    for path, size in sizes.items():
        if size > window:
            starts = range(0, size, window)
            blocks += [(TextPart(path, at, min(at + window, size), size),) for at in starts]
            continue
        if filled + size > window:
            blocks.append(tuple(small))
            small, filled = [], 0
        small.append(TextPart(path, 0, size, size))
        filled += size
    return [*blocks, tuple(small)] if small else blocks


def _records(part: TextPart) -> Iterator[TextRecord]:
    lines = _lines(part)
    if part.path.suffix.lower() == ".jsonl":
        for place, line in lines:
            text = decoded(part.path, place, line)
            if text.strip():
                yield TextRecord(part.path, place, _entry(part.path, place, line))
        return
    read = list(lines)
    if read:
        place, end = read[0][0], read[-1][0] + len(read[-1][1])
        text = decoded(part.path, place, b"".join(line for _, line in read))
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        yield TextRecord(part.path, place, {"text": text}, place == 0, end == part.size)


def _lines(part: TextPart) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each line, and its bytes."""
    with open_data_file(part.path) as stream:
        if os.fstat(stream.fileno()).st_size != part.size:
            raise DataError(
                f"text file {str(part.path)!r}",
                expected=f"{part.size} bytes, as when the loader was made",
                received=f"{os.fstat(stream.fileno()).st_size}",
                advice="make a new loader; a file must not change while it is read",
            )
        at = part.begin
        if at:
            # Skip the rest of the previous line, starting at the last byte before the part.
            at -= 1
            stream.seek(at)
            ended = False
            while not ended and at < part.end:
                piece = stream.readline(1 << 16)
                at += len(piece)
                ended = not piece or piece.endswith(b"\n")
        while at < part.end:
            line = stream.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise DataError(
                    _where(part.path, at),
                    expected=f"a line of at most {MAX_LINE} bytes",
                    received="a longer line",
                    advice="break the text into lines",
                )
            yield at, line
            at += len(line)


def decoded(path: Path, place: int, raw: bytes) -> str:
    """Decode ``raw``, which begins at ``place`` of the file. Errors: invalid bytes, by line."""
    try:
        return raw.decode("utf-8-sig" if place == 0 else "utf-8")
    except UnicodeDecodeError as error:
        # Positions count from after a byte order mark.
        at = place + error.start + (3 if len(error.object) < len(raw) else 0)
        raise DataError(
            _where(path, at),
            expected="text in UTF-8",
            received=f"the byte 0x{error.object[error.start]:02x}",
            advice="convert the file to UTF-8",
        ) from None


def _entry(path: Path, place: int, line: bytes) -> Mapping[str, Any]:
    def refuse(expected: str, received: str) -> DataError:
        return DataError(
            _where(path, place), expected=expected, received=received, advice="correct the line"
        )

    raw = line.removeprefix(b"\xef\xbb\xbf") if place == 0 else line
    found = read_json(raw, Budget(len(raw), refuse), "a line")
    if not isinstance(found, dict):
        raise refuse("a JSON object", type(found).__name__)
    return found


def _where(path: Path, place: int) -> str:
    """Return file and line; only errors call it, so it counts the lines here."""
    number, left = 1, place
    with open_data_file(path) as stream:
        while left > 0 and (piece := stream.read(min(left, 1 << 20))):
            number += piece.count(b"\n")
            left -= len(piece)
    return f"text file {str(path)!r}, line {number}"


IGNORED = -100
"""The target of ignored tokens, as in PyTorch and transformers."""


class Fragment(NamedTuple):
    """Consecutive tokens of one text in a row, and the token after each."""

    ids: Array
    targets: Array


TokenRow: TypeAlias = list[Fragment]
"""The fragments in one row of a batch; none in a padding row."""


def fragments(ids: Array, answers: Array | None, length: int) -> list[Fragment]:
    """Cut ``ids`` (T,) into fragments of at most ``length``; each pair of neighbours is in one.

    If ``answers`` (T,) are given, only they are targets; the others are `IGNORED`.
    """
    targets = ids[1:] if answers is None else np.where(answers[1:], ids[1:], IGNORED)
    targets = targets.astype(np.int32, copy=False)
    starts = range(0, len(ids) - 1, length)
    return [Fragment(ids[:-1][at : at + length], targets[at : at + length]) for at in starts]


def packed(parts: Sequence[Fragment], length: int) -> list[TokenRow]:
    """Pack fragments into rows of at most ``length`` tokens.

    The longest fragment goes first, each into the fullest row that has room for it (best fit
    decreasing: Johnson 1973).
    """
    rows: list[TokenRow] = []
    # The rows with each number of tokens left, first ones first, and these numbers.
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for part in sorted(parts, key=lambda part: -len(part.ids)):
        size = len(part.ids)
        place = bisect_left(rooms, size)
        if place == len(rooms):
            left, row = length, len(rows)
            rows.append([])
        else:
            left = rooms[place]
            row = heappop(by_room[left])
            if not by_room[left]:
                del by_room[rooms.pop(place)]
        rows[row].append(part)
        left -= size
        if left not in by_room:
            by_room[left] = []
            insort(rooms, left)
        heappush(by_room[left], row)
    return rows


def padded(
    parts: Sequence[Fragment], widths: Sequence[int], together: int, rng: np.random.Generator
) -> list[TokenRow]:
    """Return a row for each fragment; ``together`` consecutive rows, a batch, have similar lengths.

    Empty rows fill the last batch. ``rng`` draws the order of the batches.
    """
    order = sorted(range(len(parts)), key=lambda k: bisect_left(widths, len(parts[k].ids)))
    rows: list[TokenRow] = [[parts[k]] for k in order]
    rows += [[] for _ in range(-len(rows) % together)]
    starts = rng.permutation(len(rows) // together) * together
    return [row for start in starts.tolist() for row in rows[start : start + together]]


def width_of(rows: Sequence[TokenRow], widths: Sequence[int]) -> int:
    """Return the least of ``widths`` into which each of ``rows`` fits."""
    longest = max(sum(len(part.ids) for part in row) for row in rows)
    return widths[bisect_left(widths, longest)]


def batch_of(rows: Sequence[TokenRow], width: int, padding: int) -> tuple[dict[str, Array], Array]:
    """Return ``input_ids``, ``attention_mask``, ``segments``, and targets: (rows, width), int32.

    Segments number the texts of a row from 1; padding is 0.
    """
    shape = len(rows), width
    ids, segments = np.full(shape, padding, np.int32), np.zeros(shape, np.int32)
    targets = np.full(shape, IGNORED, np.int32)
    for r, row in enumerate(rows):
        at = 0
        for segment, part in enumerate(row, 1):
            here = slice(at, at + len(part.ids))
            ids[r, here], targets[r, here], segments[r, here] = part.ids, part.targets, segment
            at += len(part.ids)
    mask = (segments > 0).astype(np.int32)
    return {"input_ids": ids, "attention_mask": mask, "segments": segments}, targets


_LONG, _BEFORE = 48, 8
"""The most tokens that are decoded together, and the fewest that stay as context."""


class TextStream:
    """The text of tokens that arrive one by one; `Tokenizer.stream` makes it.

    `push` returns new and final text; it holds back an incomplete character. All returned texts
    together, with `close`'s, are `Tokenizer.decode` of all tokens.

    Args:
        decode: Function that returns the text of a list of ids.

    Examples:
        >>> stream = singanet.data.TextStream(lambda ids: bytes(ids).decode("utf-8", "replace"))
        >>> [stream.push(byte) for byte in "né".encode()]
        ['n', '', 'é']
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._returned = 0

    def push(self, *ids: int) -> str:
        """Return the text that the tokens ``ids`` complete, "" while a character is incomplete."""
        self._ids += map(int, ids)
        text = self._decode(self._ids)
        # An incomplete character is decoded as the replacement character.
        whole = len(text.rstrip("\ufffd"))
        new = text[self._returned : whole]
        self._returned = max(self._returned, whole)
        if whole == len(text) and len(self._ids) > _LONG:
            self._shorten(text)
        return new

    def close(self) -> str:
        """Return the incomplete rest as text, and reset the stream."""
        rest = self._decode(self._ids)[self._returned :]
        self._ids, self._returned = [], 0
        return rest

    def _shorten(self, text: str) -> None:
        """Drop old tokens if the following text does not depend on them."""
        for kept in range(_BEFORE, _LONG):
            part = self._decode(self._ids[-kept:])
            if part and text.endswith(part):
                self._ids, self._returned = self._ids[-kept:], len(part)
                return
