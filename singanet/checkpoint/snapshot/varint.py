"""Protobuf's variable-length integers, many at a time."""

from __future__ import annotations

import numpy as np

from singanet.types import Array

LONGEST = 10


def encode(value: int) -> bytes:
    """One unsigned ``value``."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encoded_size(values: Array) -> int:
    """How many bytes `encode_all` makes of int32 ``values``."""
    signed = values.astype(np.int64)
    size = signed.size + (LONGEST - 1) * int((signed < 0).sum())
    return size + sum(int((signed >= 1 << 7 * k).sum()) for k in range(1, 5))


def encode_all(values: Array) -> bytes:
    """int32 ``values``; negative ones take ten bytes, as protobuf prescribes."""
    words = values.astype(np.int64).view(np.uint64).reshape(-1, 1)
    groups = words >> np.arange(0, 7 * LONGEST, 7, dtype=np.uint64)
    there = groups != 0
    there[:, 0] = True
    more = np.zeros_like(there)
    more[:, :-1] = there[:, 1:]
    data = (groups & np.uint64(0x7F)).astype(np.uint8) | more.astype(np.uint8) << 7
    return data[there].tobytes()


def decode_all(data: bytes) -> tuple[Array, int]:
    """The whole varints at the start of ``data`` as int32, and how many bytes they took.

    Raises ValueError for one that is longer than ten bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not len(ends):
        if len(raw) >= LONGEST:
            raise ValueError("a number of more than ten bytes")
        return np.zeros(0, np.int32), 0
    raw = raw[: ends[-1] + 1]
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends + 1 - starts
    if lengths.max() > LONGEST:
        raise ValueError("a number of more than ten bytes")
    shifts = 7 * (np.arange(len(raw)) - np.repeat(starts, lengths))
    parts = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    words = np.bitwise_or.reduceat(parts, starts)
    return (words & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32), len(raw)
