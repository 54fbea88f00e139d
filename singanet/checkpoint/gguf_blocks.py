"""Quantized blocks and metadata values of GGUF files.

The layouts are ggml's, little-endian. A decoder converts blocks as bytes, (n, bytes), to float32
(n, elements). It applies ggml's operations in the same order, so that results agree bit for bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import Budget
from singanet.checkpoint.entry import truncated
from singanet.checkpoint.halves import BFLOAT, widen
from singanet.errors import ArgumentError
from singanet.types import Array, Shape

_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class BlockType:
    """A block type: ``nbytes`` bytes encode ``elements`` of a row; ``dtype`` is the decoded type.

    ``decode`` is None if the bytes are numbers of ``dtype``.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    dtype: np.dtype[Any] = _FLOAT
    decode: Callable[[Array], Array] | None = None

    def stored(self, shape: Shape) -> int:
        """Return the bytes of an array of ``shape``, whose rows are whole blocks."""
        return math.prod(shape) // self.elements * self.nbytes


def _plain(name: str, code: int, dtype: str) -> BlockType:
    return BlockType(name, code, 1, np.dtype(dtype).itemsize, np.dtype(dtype))


def _halves(blocks: Array, start: int, count: int = 1) -> Array:
    """Return ``count`` float16 numbers of each block as float32, (n, count)."""
    return blocks[:, start : start + 2 * count].copy().view("<f2").astype(np.float32)


def _nibbles(packed: Array, run: int) -> Array:
    """Unpack runs of ``run`` bytes, all low nibbles before all high ones: (n, runs, 2, run)."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return (runs >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & 0x0F


def _q4_0(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 2:], 16).reshape(-1, 32).view(np.int8) - np.int8(8)
    return _halves(blocks, 0) * values.astype(np.float32)


def _q4_1(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 4:], 16).reshape(-1, 32).astype(np.float32)
    values *= _halves(blocks, 0)
    values += _halves(blocks, 2)
    return values


def _fifth_bits(packed: Array) -> Array:
    """Return bit k of four bytes as element k, (n, 32), shifted to the fifth bit."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q5_0(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 6:], 16).reshape(-1, 32) | _fifth_bits(blocks[:, 2:6])
    return _halves(blocks, 0) * (values.view(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 8:], 16).reshape(-1, 32) | _fifth_bits(blocks[:, 4:8])
    return _halves(blocks, 0) * values.astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: Array) -> Array:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scales(packed: Array) -> tuple[Array, Array]:
    """Return scales and minima of eight sub-blocks, 6 bits each in twelve bytes: (n, 8, 1)."""
    first, second, mixed = (packed[:, k : k + 4] for k in (0, 4, 8))
    scales = [first & 0x3F, (mixed & 0x0F) | (first >> 6 << 4)]
    minima = [second & 0x3F, (mixed >> 4) | (second >> 6 << 4)]
    scale, least = (np.concatenate(each, axis=1).astype(np.float32) for each in (scales, minima))
    return scale[:, :, None], least[:, :, None]


def _of_scales(blocks: Array, values: Array) -> Array:
    """Return d · scale · value − d_min · minimum of eight sub-blocks of 32."""
    scale, least = _scales(blocks[:, 4:16])
    made = values.reshape(-1, 8, 32).astype(np.float32)
    made *= _halves(blocks, 0)[:, :, None] * scale
    made -= _halves(blocks, 2)[:, :, None] * least
    return made.reshape(-1, 256)


def _q4_k(blocks: Array) -> Array:
    return _of_scales(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Array) -> Array:
    # Bit k of the 32 bytes belongs to sub-block k.
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    low = _nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32)
    return _of_scales(blocks, low | (bits << np.uint8(4)))


def _q6_k(blocks: Array) -> Array:
    low = _nibbles(blocks[:, :128], 64)  # (n, 2, 2, 64): two halves of four runs of 32
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 0x03
    values = (low.reshape(-1, 16, 16) | (high << np.uint8(4)).reshape(-1, 16, 16)).view(np.int8)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32) * _halves(blocks, 208)
    return (scale[:, :, None] * (values - np.int8(32)).astype(np.float32)).reshape(-1, 256)


def _bf16(blocks: Array) -> Array:
    return widen(blocks.view("<u2"))


BLOCKS = {
    block.name: block
    for block in (
        _plain("F32", 0, "<f4"),
        _plain("F16", 1, "<f2"),
        BlockType("Q4_0", 2, 32, 18, decode=_q4_0),
        BlockType("Q4_1", 3, 32, 20, decode=_q4_1),
        BlockType("Q5_0", 6, 32, 22, decode=_q5_0),
        BlockType("Q5_1", 7, 32, 24, decode=_q5_1),
        BlockType("Q8_0", 8, 32, 34, decode=_q8_0),
        BlockType("Q4_K", 12, 256, 144, decode=_q4_k),
        BlockType("Q5_K", 13, 256, 176, decode=_q5_k),
        BlockType("Q6_K", 14, 256, 210, decode=_q6_k),
        _plain("I8", 24, "<i1"),
        _plain("I16", 25, "<i2"),
        _plain("I32", 26, "<i4"),
        _plain("I64", 27, "<i8"),
        _plain("F64", 28, "<f8"),
        BlockType(BFLOAT, 30, 1, 2, decode=_bf16),
    )
}
"""The supported types, by ggml's names."""

OTHERS = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""The names of unsupported types, for errors."""


def eighths(values: Array) -> Array:
    """Encode float32 ``values``, (n, 32), as n blocks Q8_0: bytes (n, 34).

    The scale of a block is max |x| / 127. The integers are x / scale, rounded half away from zero.
    The scale is rounded to float16 after the division, as in ggml.
    """
    scale = np.abs(values).max(axis=1, keepdims=True, initial=0.0) / np.float32(127)
    # The inverse of a smaller scale, which is 0 in float16 anyway, would be infinite.
    some = scale >= np.finfo(np.float32).tiny
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=some)
    size = np.abs(values * inverse)
    whole = np.floor(size)
    whole += size - whole >= 0.5
    blocks = np.empty((len(values), 34), np.uint8)
    with np.errstate(over="ignore", under="ignore"):
        blocks[:, :2] = scale.astype("<f2").view(np.uint8)
    blocks[:, 2:] = np.copysign(whole, values).astype(np.int8).view(np.uint8)
    return blocks


def quarters(values: Array) -> Array:
    """Encode float32 ``values``, (n, 32), as n blocks Q4_1: bytes (n, 20).

    The minimum of a block is subtracted. The scale is a fifteenth of the remaining maximum, as in
    ggml.
    """
    least = values.min(axis=1, keepdims=True, initial=np.inf)
    scale = (values.max(axis=1, keepdims=True, initial=-np.inf) - least) / np.float32(15)
    some = scale >= np.finfo(np.float32).tiny
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=some)
    whole = np.minimum((values - least) * inverse + np.float32(0.5), 15).astype(np.uint8)
    blocks = np.empty((len(values), 20), np.uint8)
    with np.errstate(over="ignore", under="ignore"):
        blocks[:, :2] = scale.astype("<f2").view(np.uint8)
        blocks[:, 2:4] = least.astype("<f2").view(np.uint8)
    blocks[:, 4:] = whole[:, :16] | whole[:, 16:] << 4
    return blocks


ENCODERS = {"Q8_0": eighths, "Q4_1": quarters}
"""The encoders of float32 (n, 32) as blocks, by block type."""


NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
BOOL, TEXT, ARRAY = 7, 8, 9
_CODES = {np.dtype(name): code for code, name in NUMBERS.items()}
_PER_TEXT = 72
"""The bytes in memory of an empty string in a list."""
_PER_ARRAY = 128
_PARTS_OF_ARRAY = 40
"""The cost of a list in parts: many nested lists take long, and no model needs them."""
_DEEPEST = 8


class Cursor:
    """A reader of at most ``size`` bytes of ``stream``, within a budget."""

    def __init__(self, stream: BinaryIO, size: int, budget: Budget, where: str) -> None:
        self.at = 0
        self._stream, self._size, self._where = stream, size, where
        self.budget = budget

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Errors: `FileFormatError` if the file ends early."""
        if count > self._size - self.at:
            raise truncated(self._where, f"{count} bytes", f"{self._size - self.at}")
        self.budget.spend(count)
        self.at += count
        found = self._stream.read(count)
        if len(found) < count:
            raise truncated(self._where, f"{count} bytes", f"{len(found)}")
        return found

    def natural(self, nbytes: int) -> int:
        """Return the next unsigned integer of ``nbytes`` bytes."""
        return int.from_bytes(self.take(nbytes), "little")

    def text(self) -> str:
        """Return the next string; invalid UTF-8 becomes surrogates, which are written unchanged."""
        self.budget.spend(_PER_TEXT)
        return self.take(self.natural(8)).decode("utf-8", "surrogateescape")

    def value(self) -> Any:
        """Return the next typed value: a bool, NumPy scalar, string, array or list."""
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
        """Return ``count`` strings, in a loop without function calls: a tokenizer has 300,000."""
        left = self._size - self.at - 8 * count
        if left < 0:
            raise truncated(self._where, f"{count} strings", f"{self._size - self.at} bytes")
        self.budget.spend(count * _PER_TEXT, count)
        read, found, start = self._stream.read, [], left
        for _ in range(count):
            length = int.from_bytes(read(8), "little")
            left -= length
            if left < 0:
                raise truncated(self._where, f"a string of {length} bytes", "fewer")
            found.append(read(length).decode("utf-8", "surrogateescape"))
        self.at += 8 * count + start - left
        return found

    def _bools(self, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        found = np.frombuffer(self.take(count), np.uint8)
        if (found > 1).any():
            raise self.budget.refuse("booleans of 0 or 1", str(found.max()))
        return found.astype(np.bool_)


def packed_text(text: str) -> bytes:
    """Return ``text`` after its length."""
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def packed_values(values: Mapping[str, Any], where: str) -> bytes:
    """Return ``values`` by key. Errors: `ArgumentError` if the format has no type for a value."""
    return b"".join(
        packed_text(key) + struct.pack("<I", code) + raw
        for key, value in values.items()
        for code, raw in [_packed(value, f"{where}, value {key!r}")]
    )


def _packed(value: Any, where: str) -> tuple[int, bytes]:
    """Return the type code and the bytes of ``value``; ints use 32 bits if they fit."""
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
        expected="a number, a bool, a string, or a list of these",
        received=f"{str(value)[:60]!r}, a {type(value).__name__}",
        advice="remove it",
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
    """Convert a list of ints to int32, or int64 if needed, and of floats to float32."""
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
