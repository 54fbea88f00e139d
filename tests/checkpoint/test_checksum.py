from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.checkpoint.checksum import Checksum


def by_hand(data):
    padded = data + b"\0" * (-len(data) % 8)
    words = 0
    for start in range(0, len(padded), 8):
        words ^= int.from_bytes(padded[start : start + 8], "little")
    return zlib.crc32(data).to_bytes(4, "big") + words.to_bytes(8, "big")


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_pieces_of_any_length(pieces):
    checksum = Checksum()
    for piece in pieces:
        checksum.update(memoryview(piece))
    assert checksum.digest() == by_hand(b"".join(pieces))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, (1 << 20) - 1, 1 << 20, (1 << 21) + 3])
def test_python_and_zlib_ng_agree(size):
    """Files written with either are read with the other."""
    fast = pytest.importorskip("zlib_ng.zlib_ng")
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert fast.crc32(data) == zlib.crc32(data)
    assert fast.crc32(data, 12345) == zlib.crc32(data, 12345)
    assert Checksum().update(data).digest() == by_hand(data)


@settings(max_examples=200)
@given(
    st.binary(min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, 299), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_up_to_three_changed_bytes_are_found(data, changes):
    other = bytearray(data)
    for place, mask in changes:
        other[place % len(data)] ^= mask
    same = bytes(other) == data
    assert (Checksum().update(other).digest() == Checksum().update(data).digest()) == same
