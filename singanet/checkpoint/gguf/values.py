"""The typed values of a GGUF file: numbers, texts, and arrays of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from singanet.base.budget import Budget
from singanet.checkpoint.streaming import truncated
from singanet.errors import ArgumentError

NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
BOOL, TEXT, ARRAY = 7, 8, 9
_CODES = {np.dtype(name): code for code, name in NUMBERS.items()}
_PER_TEXT = 72
"""Bytes of an empty text in a list."""
_PER_ARRAY = 128
_PARTS_OF_ARRAY = 40
"""Nobody needs many lists in lists, which take long."""
_DEEPEST = 8


class Cursor:
    """A reader of ``stream`` from its beginning, of at most ``size`` bytes, off a budget."""

    def __init__(self, stream: BinaryIO, size: int, budget: Budget, where: str) -> None:
        self.at = 0
        self._stream, self._size, self._where = stream, size, where
        self.budget = budget

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes. Errors: the file ends before."""
        if count > self._size - self.at:
            raise truncated(self._where, f"{count} bytes", f"{self._size - self.at}")
        self.budget.spend(count)
        self.at += count
        found = self._stream.read(count)
        if len(found) < count:
            raise truncated(self._where, f"{count} bytes", f"{len(found)}")
        return found

    def natural(self, nbytes: int) -> int:
        """The next unsigned number of ``nbytes``."""
        return int.from_bytes(self.take(nbytes), "little")

    def text(self) -> str:
        """The next text; what is no UTF-8 becomes surrogates, which are written as it was."""
        self.budget.spend(_PER_TEXT)
        return self.take(self.natural(8)).decode("utf-8", "surrogateescape")

    def value(self) -> Any:
        """The next value behind its type: a bool, a NumPy number, a text, an array or a list."""
        return self._of(self.natural(4))

    def _of(self, code: int) -> Any:
        if code in NUMBERS:
            dtype = np.dtype(NUMBERS[code])
            return np.frombuffer(self.take(dtype.itemsize), dtype)[0]
        if code == BOOL:
            return self._bools(1)[0].item()
        if code == TEXT:
            return self.text()
        if code == ARRAY:
            return self._array()
        raise self.budget.refuse("a type of value from 0 to 12", str(code))

    def _array(self) -> Any:
        self.budget.spend(_PER_ARRAY, _PARTS_OF_ARRAY)
        code, count = self.natural(4), self.natural(8)
        if code in NUMBERS:
            dtype = np.dtype(NUMBERS[code])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).copy()
        if code == BOOL:
            return self._bools(count)
        if code == TEXT:
            return self._texts(count)
        with self.budget.deeper(_DEEPEST):
            return [self._of(code) for _ in range(count)]

    def _texts(self, count: int) -> list[str]:
        """`text` so many times, in a loop without calls of ours: a tokenizer has 300,000."""
        left = self._size - self.at - 8 * count
        if left < 0:
            raise truncated(self._where, f"{count} texts", f"{self._size - self.at} bytes")
        self.budget.spend(count * _PER_TEXT, count)
        read, found, start = self._stream.read, [], left
        for _ in range(count):
            length = int.from_bytes(read(8), "little")
            left -= length
            if left < 0:
                raise truncated(self._where, f"a text of {length} bytes", "fewer")
            found.append(read(length).decode("utf-8", "surrogateescape"))
        self.at += 8 * count + start - left
        return found

    def _bools(self, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found = np.frombuffer(self.take(count), np.uint8)
        if (found > 1).any():
            raise self.budget.refuse("truth values of 0 or 1", str(found.max()))
        return found.astype(np.bool_)


def packed_text(text: str) -> bytes:
    """``text`` behind its length."""
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def packed_values(values: Mapping[str, Any], where: str) -> bytes:
    """``values`` by their keys. Errors: `ArgumentError` for what the format has no type for."""
    return b"".join(
        packed_text(key) + struct.pack("<I", code) + raw
        for key, value in values.items()
        for code, raw in [_packed(value, f"{where}, value {key!r}")]
    )


def _packed(value: Any, where: str) -> tuple[int, bytes]:
    """The code of a type, and ``value`` in it: ints go into the first that has them of 32 bits."""
    if isinstance(value, (bool, np.bool_)):
        return BOOL, bytes([bool(value)])
    if isinstance(value, str):
        return TEXT, packed_text(value)
    if isinstance(value, (np.ndarray, list, tuple)):
        return ARRAY, _packed_array(value, where)
    if isinstance(value, int):
        fitting = [code for code in (4, 5, 10, 11) if _has(NUMBERS[code], value)]
        if fitting:
            return fitting[0], np.array(value, NUMBERS[fitting[0]]).tobytes()
    if isinstance(value, float) and not isinstance(value, np.floating):
        return 6, struct.pack("<f", value)
    if isinstance(value, np.generic) and value.dtype.newbyteorder("<") in _CODES:
        dtype = value.dtype.newbyteorder("<")
        return _CODES[dtype], value.astype(dtype).tobytes()
    raise ArgumentError(
        where,
        expected="a number, a truth value, a text, or a list of such",
        received=f"{str(value)[:60]!r}, a {type(value).__name__}",
        advice="leave it out",
    )


def _packed_array(value: Any, where: str) -> bytes:
    if not isinstance(value, np.ndarray):
        value = _numbers(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        code, raw = BOOL, value.tobytes()
    elif isinstance(value, np.ndarray) and value.dtype.newbyteorder("<") in _CODES:
        dtype = value.dtype.newbyteorder("<")
        code, raw = _CODES[dtype], value.astype(dtype).tobytes()
    else:
        parts = [_packed(each, where) for each in value]
        codes = {code for code, _ in parts} or {TEXT}
        if len(codes) > 1:
            raise ArgumentError(
                where,
                expected="a list of values of one type",
                received=f"{str(value)[:60]}",
                advice="convert them",
            )
        code, raw = codes.pop(), b"".join(part for _, part in parts)
    return struct.pack("<IQ", code, len(value)) + raw


def _numbers(values: Any) -> Any:
    """A list of ints as int32, or int64 where it has to be, one of floats as float32."""
    if values and all(type(each) is int for each in values):
        for name in ("<i4", "<i8"):
            if _has(name, min(values)) and _has(name, max(values)):
                return np.array(values, name)
    if values and all(type(each) is float for each in values):
        return np.array(values, "<f4")
    return values


def _has(name: str, value: int) -> bool:
    info = np.iinfo(name)
    return bool(info.min <= value <= info.max)
