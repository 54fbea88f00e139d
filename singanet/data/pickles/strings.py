"""How pickles spell strings, and their bytes a piece at a time."""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

from singanet.data.pickles.tokens import StoredText

RAW = "bytes as they are"
ESCAPED = "Python 2 repr"
UTF8 = "utf-8"
UNICODE = "raw-unicode-escape"
LATIN = "bytes as characters in utf-8"

_PIECE = 1 << 20


def decoded(data: bytes, coding: str) -> Any:
    """A short string that is not `RAW`. Raises ValueError for escapes or characters of none."""
    if coding == ESCAPED:
        return _unescape(data)
    return data.decode("utf-8" if coding == UTF8 else UNICODE)


def pieces(stream: BinaryIO, text: StoredText) -> Iterator[bytes]:
    """The bytes ``text`` stands for. Raises ValueError as `decoded` does."""
    stream.seek(text.offset)
    left, rest = text.size, b""
    while left:
        data = stream.read(min(_PIECE, left))
        if not data:
            raise ValueError("the file ends inside a string")
        left -= len(data)
        data = rest + data
        cut = len(data) if not left else _whole(data, text.coding)
        rest = data[cut:]
        yield _bytes(data[:cut], text.coding)


def _bytes(data: bytes, coding: str) -> bytes:
    if coding == RAW:
        return data
    if coding == ESCAPED:
        return _unescape(data)
    return data.decode("utf-8" if coding == LATIN else UNICODE).encode("latin-1")


def _whole(data: bytes, coding: str) -> int:
    """Where to cut ``data`` so that no character or escape is torn."""
    end = len(data)
    if coding == LATIN:
        # Only the two-byte characters C2 and C3 begin occur; a lead byte must not come last.
        return end - 1 if data[-1] >= 0xC0 else end
    if coding not in (ESCAPED, UNICODE):
        return end
    longest = 4 if coding == ESCAPED else 10
    at = data.rfind(b"\\", max(0, end - longest + 1))
    if at < 0:
        return end
    run = len(data[: at + 1]) - len(data[: at + 1].rstrip(b"\\"))
    if run % 2 == 0:
        return end  # pairs: the last backslash is itself escaped
    return at


def _unescape(data: bytes) -> bytes:
    if b"\\" not in data:
        return data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            raw: bytes = codecs.escape_decode(data)[0]
        except DeprecationWarning as error:
            raise ValueError(str(error)) from None
    return raw
