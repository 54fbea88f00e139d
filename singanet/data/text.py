"""Text for models that predict the next character."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from singanet.base.files import path_of
from singanet.errors import ArgumentError, DataError, UnknownNameError
from singanet.types import Array

_PIECE = 1 << 18
"""Characters that are looked at together."""
_PLAYS = Path(__file__).parent / "files" / "plays.txt.gz"


class TextDataset:
    """A text as numbers: ``train`` and ``validation``, int32 ids of its characters in order.

    ``characters`` is the vocabulary, sorted; the id of a character is its place in it. The
    last ``validation`` of the text (a fraction) is for validation. Errors: `DataError` for a
    text too short to have both parts.
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
                received=f"{validation!r}",
                advice="0.1 keeps the last tenth for validation",
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
        """The text of a file; line ends become newlines.

        Errors: `DataError` where there is no such file, or naming the byte that is not
        ``encoding``.
        """
        where = f"text file {str(path)!r}"
        try:
            text = path_of(path).read_bytes().decode(encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                where,
                expected=f"text in {encoding}",
                received=f"byte 0x{error.object[error.start]:02x} at {error.start}",
                advice="pass the encoding the file was written in",
            ) from error
        except LookupError as error:
            raise UnknownNameError(
                where,
                expected="an encoding that Python knows",
                received=f"{encoding!r}",
                advice="most text is 'utf-8'",
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                where, expected="a readable file", received=str(error), advice="check the path"
            ) from error
        return cls(text.replace("\r\n", "\n").replace("\r", "\n"), str(path), validation)

    @property
    def vocabulary_size(self) -> int:
        """How many different characters there are."""
        return len(self.characters)

    def encode(self, text: str) -> Array:
        """The ids of ``text``, int32. Errors: `UnknownNameError` naming the strange character."""
        points = _code_points(text)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        strange = np.flatnonzero(self._points[places] != points)
        if strange.size:
            raise UnknownNameError(
                f"text {self.name!r}",
                expected=f"the characters {self.characters!r}",
                received=f"{text[int(strange[0])]!r} at index {int(strange[0])}",
                advice="leave it out or put another in its place",
            )
        return places.astype(np.int32)

    def decode(self, ids: Array) -> str:
        """The text of ``ids``, an integer array of any shape, read in order."""
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
    """Hamlet, King Lear, Romeo and Juliet: 464,385 characters in the public domain.

    The last tenth, for validation, is the end of Romeo and Juliet. The source stands in
    ``files/NOTICE.md``.
    """
    return TextDataset(gzip.decompress(_PLAYS.read_bytes()).decode("ascii"), "plays")


def _known_points(text: str) -> Array:
    """The different characters of ``text`` as numbers, rising."""
    known = np.zeros(sys.maxunicode + 1, bool)
    for _, points in _pieces(text):
        known[points] = True
    return np.flatnonzero(known).astype("<u4")


def _pieces(text: str) -> Iterator[tuple[int, Array]]:
    """The characters of ``text`` as numbers, piece by piece, each with the place of its first.

    As a whole they would take four bytes each, several times over.
    """
    for start in range(0, len(text), _PIECE):
        yield start, _code_points(text[start : start + _PIECE])


def _code_points(text: str) -> Array:
    # surrogatepass, since a str may hold halves of pairs and they are characters like others.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
