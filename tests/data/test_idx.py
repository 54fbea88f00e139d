import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import read_idx
from singanet.errors import DataError

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array):
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim])
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


SMALL = idx(np.arange(6, dtype="u1").reshape(2, 3))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_type_is_read(tmp_path, dtype, packed):
    array = (np.arange(24) - 7).astype(dtype).reshape(2, 3, 4)
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    np.testing.assert_array_equal(read_idx(path), array, strict=True)


def test_an_image_file_as_published(tmp_path):
    path = tmp_path / "a"
    # Magic 2051, 1 image, 2 rows, 2 columns.
    path.write_bytes(bytes.fromhex("00000803 00000001 00000002 00000002 00 7f 80 ff"))
    assert read_idx(str(path)).tolist() == [[[0, 127], [128, 255]]]


@pytest.mark.parametrize("packed", [False, True])
def test_cut_anywhere_names_file_and_byte(tmp_path, packed):
    path = tmp_path / "short-idx"
    whole = gzip.compress(SMALL) if packed else SMALL
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="short-idx") as caught:
            read_idx(path)
        if not packed and length >= 4:
            assert f"byte {length}:" in str(caught.value)


def test_trailing_bytes_are_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(SMALL + b"\0")
    with pytest.raises(DataError, match=r"byte 18: .*the end, after sizes \(2, 3\)"):
        read_idx(path)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "an empty file"),
        (b"\x89PNG....", "a PNG image"),
        (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "begins with the bytes 00 00 07 01"),
        (bytes([0, 0, 8, 0]), "begins with the bytes 00 00 08 00"),
        (bytes([0, 1, 8, 1, 0, 0, 0, 0]), "begins with the bytes 00 01 08 01"),
    ],
)
def test_what_is_no_idx_file(tmp_path, content, word):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"byte 0: .*{word}"):
        read_idx(path)
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=word):
        read_idx(path)


def test_outsize_claims_are_refused_before_memory_is_given(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes([0, 0, 8, 255]) + b"\xff\xff\xff\xff" * 255)
    with pytest.raises(DataError, match="up to 32 axes"):
        read_idx(path)
    path.write_bytes(bytes([0, 0, 8, 1]) + b"\xff\xff\xff\xff")
    with pytest.raises(DataError, match="at most 1073741824 bytes"):
        read_idx(path)
    path.write_bytes(gzip.compress(idx(np.zeros(100, "u1"))))
    with pytest.raises(DataError, match="at most 99 bytes"):
        read_idx(path, max_bytes=99)
    assert read_idx(path, max_bytes=100).shape == (100,)


@given(st.data(), st.booleans())
def test_mutated_files_are_read_or_refused(tmp_path_factory, data, packed):
    content = bytearray(gzip.compress(SMALL) if packed else SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("mutated") / "a-idx"
    path.write_bytes(content)
    try:
        found = read_idx(path, max_bytes=1 << 20)
    except DataError as error:
        found = error
    assert "a-idx" in str(found) if isinstance(found, DataError) else found.nbytes <= 6


def test_a_packed_file_is_taken_for_what_it_may_hold(tmp_path):
    zeros = np.zeros((60, 1 << 20), "u1")
    (tmp_path / "a").write_bytes(gzip.compress(idx(zeros), 1))
    with pytest.raises(DataError, match="max_bytes"):
        read_idx(tmp_path / "a")
    assert read_idx(tmp_path / "a", max_bytes=zeros.nbytes).shape == zeros.shape


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_idx(tmp_path / "none")
