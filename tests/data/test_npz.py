import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import read_npz
from singanet.errors import DataError


def npy(array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def archive(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return path


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.npz"
    np.savez(path, a=np.arange(6, dtype=np.int16).reshape(2, 3), b=np.array([1.5, -2.0]))
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=">f4").reshape(2, 3, 4),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(7, np.uint64),
        np.zeros((3, 0), np.float16),
        np.array([True, False]),
        np.random.default_rng(0).random((700, 500)),
    ],
    ids=["big-endian", "fortran", "0-d", "empty", "bool", "2.8 MB"],
)
def test_reads_what_numpy_wrote(tmp_path, save, array):
    path = tmp_path / "a.npz"
    save(path, x=array)
    read = read_npz(path, ["x"])["x"]
    np.testing.assert_array_equal(read, array, strict=True)
    assert read.flags.writeable


def test_reads_only_what_is_asked_for(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones(2), evil=np.array([object()]))
    assert list(read_npz(str(path), ["x"])) == ["x"]


def test_missing_arrays_are_named_with_those_that_are_there(small):
    with pytest.raises(DataError) as caught:
        read_npz(small, ["a", "x_train", "y_train"])
    assert caught.value.received == "'a', 'b', without 'x_train', 'y_train'"
    assert str(small) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "an empty file"),
        (npy(np.ones(2)), "a single .npy array"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG image"),
        (b"x_train,y_train\n1,2\n", "text that begins 'x_train,y_train"),
        (bytes(range(128, 160)), "a Python pickle"),
        (b"\x01\x02\x03\x04", "a file that begins with the bytes 01 02 03 04"),
    ],
)
def test_file_that_is_not_what_its_name_says(tmp_path, content, named):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_npz(path, ["x"])
    assert named in caught.value.received


def test_missing_file_folder_and_impossible_name(tmp_path):
    for path, word in [
        (tmp_path / "none.npz", "no such file"),
        (tmp_path, "a folder"),
        ("a\0b.npz", ""),
        (tmp_path / ("n" * 300), ""),
    ]:
        with pytest.raises(DataError, match="check the path") as caught:
            read_npz(path, ["x"])
        assert word in caught.value.received


class Bomb:
    def __reduce__(self):
        return (Path("/nowhere/touched").touch, ())


def test_object_arrays_are_refused_unread(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([Bomb()], dtype=object))
    with pytest.raises(DataError, match="array 'x'.*Python objects"):
        read_npz(path, ["x"])


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([1 + 2j]), np.array([(1, 2.0)], "i4,f4"), np.array(["2020"], "M8")],
    ids=["text", "complex", "record", "date"],
)
def test_other_types_are_refused(tmp_path, array):
    path = tmp_path / "a.npz"
    np.savez(path, x=array)
    with pytest.raises(DataError, match="array 'x'"):
        read_npz(path, ["x"])


def header(text, version=1):
    body = text.encode()
    count = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(body).to_bytes(count, "little") + body


@pytest.mark.parametrize(
    "content",
    [
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,), }\n")
        + bytes(8),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n") + bytes(8),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }\n") + bytes(8),
        header("{'descr': '<f0', 'fortran_order': False, 'shape': (2,), }\n") + bytes(8),
        header("{'descr': '<f3', 'fortran_order': False, 'shape': (2,), }\n") + bytes(8),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", 3) + bytes(8),
        header("{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }\n") + bytes(8),
        header("__import__('os').abort()") + bytes(8),
        header("{" * 5000),
        b"\x93NUMPY",
    ],
)
def test_forged_headers_are_refused(tmp_path, content):
    path = archive(tmp_path / "a.npz", [("x.npy", content)])
    with pytest.raises(DataError):
        read_npz(path, ["x"])


def test_version_two_of_the_array_format(tmp_path):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    path = archive(tmp_path / "a.npz", [("x.npy", header(text, 2) + np.ones(2, "f4").tobytes())])
    assert read_npz(path, ["x"])["x"].tolist() == [1, 1]


def test_size_is_bounded_before_it_is_allocated(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1 << 20,), np.uint8))
    # As float32 the array is four times as large, and that is what counts.
    with pytest.raises(DataError, match="at most 4194303 bytes as float32.*4194304 bytes"):
        read_npz(path, ["x"], max_bytes=(4 << 20) - 1)
    assert read_npz(path, ["x"], max_bytes=4 << 20)["x"].size == 1 << 20


def test_a_name_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        path = archive(tmp_path / "a.npz", [("x.npy", npy(np.ones(1)))] * 2)
    with pytest.raises(DataError, match="'x' more than once"):
        read_npz(path, ["x"])


def test_truncated_anywhere_is_an_error(small, tmp_path):
    whole = small.read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            read_npz(path, ["a", "b"])


@given(st.data())
def test_a_changed_byte_is_an_error_or_changes_nothing_silently(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mutated")
    path = folder / "a.npz"
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.array([1.5, -2.0])}
    np.savez_compressed(path, **arrays)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read = read_npz(path, ["a", "b"])
    except DataError:
        return
    # Each member has a checksum, so what is read at all is what was written.
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, strict=True)
