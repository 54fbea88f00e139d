from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.checkpoint import entry
from singanet.checkpoint.entry import Checksum, ChecksumThread
from tests.kit.files import checksum_by_hand


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_pieces_of_any_length(pieces):
    checksum = Checksum()
    for piece in pieces:
        checksum.update(memoryview(piece))
    assert checksum.digest() == checksum_by_hand(b"".join(pieces))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, (1 << 20) - 1, 1 << 20, (1 << 21) + 3])
def test_python_and_zlib_ng_agree(size):
    """Files written with either are read with the other."""
    fast = pytest.importorskip("zlib_ng.zlib_ng")
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert fast.crc32(data) == zlib.crc32(data)
    assert fast.crc32(data, 12345) == zlib.crc32(data, 12345)
    assert Checksum().update(data).digest() == checksum_by_hand(data)


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


def test_pieces_beside_keep_their_order(monkeypatch):
    monkeypatch.setattr(entry, "_AT_ONCE", 100)
    data = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    total, at = Checksum(), 0
    with ChecksumThread() as hasher:
        for size in (99, 1000, 7, 101, 3, 3790):
            hasher.update(total, memoryview(data)[at : at + size])
            at += size
        hasher.wait()
    assert at == len(data)
    assert total.digest() == checksum_by_hand(data)
