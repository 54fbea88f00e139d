"""A text as ids of its characters, and a loader of its windows."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.base.files import path_of
from singanet.data.loaders import Batch, checked_rank, restored_position
from singanet.errors import ArgumentError, DataError, UnknownNameError, brief
from singanet.types import Array

_PIECE = 1 << 18
"""The characters that are converted together."""
_PLAYS = Path(__file__).parent / "files" / "plays.txt.gz"


class TextDataset:
    """A text as numbers: ``train`` and ``validation``, int32 ids of its characters in order.

    ``characters`` is the sorted vocabulary; the id of a character is its index in it. Errors:
    `DataError` for a text too short to have both parts.

    Args:
        text: The text, a string.
        name: The name of the text in errors and in its repr.
        validation: Number between 0 and 1, the fraction of the text, at its end, for validation.

    Examples:
        >>> text = singanet.data.TextDataset("banana" * 5)
        >>> text.characters, text.encode("nab").tolist(), text.decode([1, 0])
        ('abn', [2, 0, 1], 'ba')
    """

    def __init__(self, text: str, name: str = "text", validation: float = 0.1) -> None:
        if not isinstance(text, str):
            raise DataError(
                f"text {name!r}",
                expected="a str",
                received=type(text).__name__,
                advice="decode bytes first, or use TextDataset.from_file",
            )
        if not 0 < validation < 1:
            raise ArgumentError(
                f"text {name!r}, validation",
                expected="a fraction between 0 and 1",
                received=brief(validation),
                advice="0.1 validates on the last tenth",
            )
        self.name = name
        self._points = known = _known_points(text)
        self.characters = "".join(map(chr, known.tolist()))
        places = np.zeros(int(known.max(initial=0)) + 1, np.int32)
        places[known] = np.arange(len(known))
        ids = np.empty(len(text), np.int32)
        for start, points in _pieces(text):
            ids[start : start + len(points)] = places[points]
        cut = len(ids) - int(len(ids) * validation)
        self.train, self.validation = ids[:cut], ids[cut:]
        if min(len(self.train), len(self.validation)) < 2:
            raise DataError(
                f"text {name!r}",
                expected="at least two characters in each part",
                received=f"{len(self.train)} to train on, {len(self.validation)} for validation",
                advice="give a longer text",
            )

    @classmethod
    def from_file(
        cls, path: str | Path, encoding: str = "utf-8", validation: float = 0.1
    ) -> TextDataset:
        """Read the text of a file; line ends become newlines.

        Errors: `DataError` for a missing file, or naming the byte that is not ``encoding``.

        Args:
            path: Path of the file.
            encoding: Name of the text's encoding, as in `open`.
            validation: Number between 0 and 1, the fraction for validation.
        """
        where = f"text file {str(path)!r}"
        file = path_of(path)
        try:
            text = file.read_bytes().decode(encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                where,
                expected=f"text in {encoding}",
                received=f"byte 0x{error.object[error.start]:02x} at {error.start}",
                advice="pass the encoding of the file",
            ) from error
        except LookupError as error:
            raise UnknownNameError(
                where,
                expected="an encoding known to Python",
                received=brief(encoding),
                advice="most text is 'utf-8'",
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                where, expected="a readable file", received=str(error), advice="check the path"
            ) from error
        return cls(text.replace("\r\n", "\n").replace("\r", "\n"), str(path), validation)

    @property
    def vocabulary_size(self) -> int:
        """The number of different characters."""
        return len(self.characters)

    def encode(self, text: str) -> Array:
        """Return the int32 ids of ``text``. Errors: `UnknownNameError` for an unknown character."""
        points = _code_points(text)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        strange = np.flatnonzero(self._points[places] != points)
        if strange.size:
            raise UnknownNameError(
                f"text {self.name!r}",
                expected=f"the characters {self.characters!r}",
                received=f"{text[int(strange[0])]!r} at index {int(strange[0])}",
                advice="remove or replace it",
            )
        return places.astype(np.int32)

    def decode(self, ids: Array) -> str:
        """Return the text of ``ids``, an integer array of any shape, read in order."""
        flat = np.asarray(ids).reshape(-1)
        if flat.size and (flat.dtype.kind not in "iu" or not self._in_range(flat)):
            raise DataError(
                f"text {self.name!r}",
                expected=f"integer ids from 0 to {self.vocabulary_size - 1}",
                received=f"{flat.dtype} from {flat.min()} to {flat.max()}",
                advice="take the argmax or a sample of the scores first",
            )
        return "".join(self.characters[place] for place in flat.tolist())

    def _in_range(self, ids: Array) -> bool:
        return bool(ids.min() >= 0 and ids.max() < self.vocabulary_size)

    def __repr__(self) -> str:
        return (
            f"TextDataset({self.name!r}, {len(self.train)} characters to train on, "
            f"{len(self.validation)} for validation, {self.vocabulary_size} different)"
        )


def plays() -> TextDataset:
    """Return Hamlet, King Lear, Romeo and Juliet: 464,385 characters in the public domain.

    The last tenth, for validation, is the end of Romeo and Juliet. The source is in
    ``files/NOTICE.md``.
    """
    return TextDataset(gzip.decompress(_PLAYS.read_bytes()).decode("ascii"), "plays")


def _known_points(text: str) -> Array:
    """Return the different characters of ``text`` as ascending numbers."""
    known = np.zeros(sys.maxunicode + 1, bool)
    for _, points in _pieces(text):
        known[points] = True
    return np.flatnonzero(known).astype("<u4")


def _pieces(text: str) -> Iterator[tuple[int, Array]]:
    """Yield the characters of ``text`` as numbers, in pieces, each with its start.

    The whole text would take four bytes a character, several times over.
    """
    for start in range(0, len(text), _PIECE):
        yield start, _code_points(text[start : start + _PIECE])


def _code_points(text: str) -> Array:
    # surrogatepass, since a str may contain lone surrogates, which are characters like others.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


class TextLoader(Described):
    """A loader of batches ``(x, y)`` of ids (batch_size, length); ``y`` is ``x`` shifted by one.

    The ids are cut into ``batch_size × world_size`` rows of equal length; rank *r* has the
    batch_size rows from ``r × batch_size``. Row *i* of a batch continues in row *i* of the next, so
    a recurrent net may keep its state through an epoch; at the start of one (``position == 0``) it
    must reset it. Less than one id a row at the end of the ids is unused. An iteration continues
    from the current position, as in `ArrayLoader`, also with another number of ranks that have as
    many rows together.

    Args:
        ids: Array of integers (N,), such as ``TextDataset.train``.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the ids of a row of a batch.
        drop_last: Whether to drop the last batch of an epoch if it is shorter than ``length``.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> loader = singanet.data.TextLoader(np.arange(7), batch_size=1, length=3)
        >>> [(x.tolist(), y.tolist()) for x, y in loader]
        [([[0, 1, 2]], [[1, 2, 3]]), ([[3, 4, 5]], [[4, 5, 6]])]
    """

    def __init__(
        self,
        ids: Array,
        batch_size: int,
        length: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        where = "TextLoader"
        ids = np.asarray(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(
                where,
                expected="ids of shape (N,), integers",
                received=f"shape {ids.shape}, {ids.dtype}",
                advice="give TextDataset.train or .validation",
            )
        self.samples = len(ids)
        self.batch_size = checked_count(where, "batch_size", batch_size, 1)
        self.length = checked_count(where, "length", length, 1)
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = checked_rank(where, rank, world_size)
        count = self.batch_size * self.world_size
        self._columns = (len(ids) - 1) // count
        if len(self) < 1:
            raise DataError(
                where,
                expected=f"ids for {count} rows of {self.length if drop_last else 1} and one more",
                received=f"{len(ids)} ids",
                advice="use a smaller batch_size or length, or a longer text",
            )
        first = self.rank * self.batch_size
        rows = slice(first, first + self.batch_size)
        self._x = ids[: count * self._columns].reshape(count, self._columns)[rows]
        self._y = ids[1 : count * self._columns + 1].reshape(count, self._columns)[rows]
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """Return the batches in an epoch."""
        if self.drop_last:
            return max(self._columns, 0) // self.length
        return -(-max(self._columns, 0) // self.length)

    def __iter__(self) -> Iterator[Batch]:
        epoch, count = self.epoch, len(self)
        for k in range(self.position, count):
            self.epoch, self.position = (epoch, k + 1) if k + 1 < count else (epoch + 1, 0)
            columns = slice(k * self.length, (k + 1) * self.length)
            yield self._x[:, columns].copy(), self._y[:, columns].copy()

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings that must be equal to restore it."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state``. Errors: `ArgumentError` if text or settings differ."""
        where = "TextLoader"
        self.epoch, self.position = restored_position(where, state, self._identity(), len(self))

    def _identity(self) -> dict[str, int]:
        return {
            "samples": self.samples,
            "batch_size": self.batch_size * self.world_size,
            "length": self.length,
            "drop_last": int(self.drop_last),
        }
