"""Data from files: idx, npz and what a set is made of; sets by name or path."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import Dataset, digits, load, read_idx, read_npz
from singanet.errors import DataError, UnknownNameError
from tests.kit.files import npy, zip_file


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.npz"
    np.savez(path, a=np.arange(6, dtype=np.int16).reshape(2, 3), b=np.array([1.5, -2.0]))
    return path


def archive(path, members):
    path.write_bytes(zip_file(*members, method=zipfile.ZIP_DEFLATED))
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("array", [
    np.arange(24, dtype=">f4").reshape(2, 3, 4), np.asfortranarray(np.ones((2, 3))),
    np.array(7, np.uint64), np.zeros((3, 0), np.float16), np.array([True, False]),
    np.random.default_rng(0).random((700, 500)),
], ids=["big-endian", "fortran", "0-d", "empty", "bool", "2.8 MB"])  # fmt: skip
def test_reads_what_numpy_wrote(tmp_path, save, array):
    path = tmp_path / "a.npz"
    save(path, x=array)
    read = read_npz(path, ["x"])["x"]
    np.testing.assert_array_equal(read, array, strict=True)
    assert read.flags.writeable


def test_reads_only_what_is_asked_for(tmp_path, small):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones(2), evil=np.array([object()]))
    assert list(read_npz(str(path), ["x"])) == ["x"]
    with pytest.raises(DataError) as caught:
        read_npz(small, ["a", "x_train", "y_train"])
    assert caught.value.received == "'a', 'b', without 'x_train', 'y_train'"
    assert str(small) in str(caught.value)
    with pytest.warns(UserWarning, match="Duplicate"):
        path = archive(tmp_path / "a.npz", [("x.npy", npy(np.ones(1)))] * 2)
    with pytest.raises(DataError, match="'x' more than once"):
        read_npz(path, ["x"])


class Bomb:
    def __reduce__(self):
        return (Path("/nowhere/touched").touch, ())


@pytest.mark.parametrize(
    ("array", "told"),
    [(np.array([Bomb()], dtype=object), ".*Python objects"), (np.array(["a"]), ""),
     (np.array([1 + 2j]), ""), (np.array([(1, 2.0)], "i4,f4"), ""), (np.array(["2020"], "M8"), "")],
    ids=["objects", "text", "complex", "record", "date"],
)  # fmt: skip
def test_other_types_are_refused_unread(tmp_path, array, told):
    path = tmp_path / "a.npz"
    np.savez(path, x=array)
    with pytest.raises(DataError, match=f"array 'x'{told}"):
        read_npz(path, ["x"])


@pytest.mark.parametrize(("content", "named"), [
    (b"", "an empty file"), (npy(np.ones(2)), "a single .npy array"),
    (b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG image"),
    (b"x_train,y_train\n1,2\n", "text that begins 'x_train,y_train"),
    (bytes(range(128, 160)), "a Python pickle"),
    (b"\x01\x02\x03\x04", "a file that begins with the bytes 01 02 03 04"),
])  # fmt: skip
def test_file_that_is_not_what_its_name_says(tmp_path, content, named):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_npz(path, ["x"])
    assert named in caught.value.received


def test_missing_file_folder_and_impossible_name(tmp_path):
    none = tmp_path / "none.npz"
    for path, word in ((none, "no such file"), (tmp_path, "a folder"), ("a\0b.npz", ""),
                       (tmp_path / ("n" * 300), "")):  # fmt: skip
        with pytest.raises(DataError, match="check the path") as caught:
            read_npz(path, ["x"])
        assert word in caught.value.received
    for call in (lambda: read_idx(none), lambda: load(none)):
        with pytest.raises(DataError, match=r"none\.npz.*no such file"):
            call()
    for name in ("n" * 300, ""):
        with pytest.raises((UnknownNameError, DataError)):
            load(name)
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(DataError, match="none of them.*FolderLoader"):
        load(tmp_path)


def header(text, version=1):
    body = text.encode()
    count = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(body).to_bytes(count, "little") + body


def floats(shape, descr="<f4", order=False, version=1):
    told = {"descr": descr, "fortran_order": order, "shape": shape}
    return header(f"{told}\n", version) + np.ones(2, "f4").tobytes()


@pytest.mark.parametrize("content", [
    floats((9999999999999,)), floats((1,)), floats((-2,)), floats((2,), "<f0"),
    floats((2,), "<f3"), floats((2,), version=3), floats((2,), order=1),
    header("__import__('os').abort()") + bytes(8), header("{" * 5000), b"\x93NUMPY",
])  # fmt: skip
def test_forged_headers_are_refused(tmp_path, content):
    path = archive(tmp_path / "a.npz", [("x.npy", content)])
    with pytest.raises(DataError):
        read_npz(path, ["x"])
    path = archive(tmp_path / "b.npz", [("x.npy", floats((2,), version=2))])
    assert read_npz(path, ["x"])["x"].tolist() == [1, 1]


def test_size_is_bounded_before_it_is_allocated(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1 << 20,), np.uint8))
    # As float32 the array is four times as large, and that is what counts.
    with pytest.raises(DataError, match="at most 4194303 bytes as float32.*4194304 bytes"):
        read_npz(path, ["x"], max_bytes=(4 << 20) - 1)
    assert read_npz(path, ["x"], max_bytes=4 << 20)["x"].size == 1 << 20


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
    path.write_bytes(SMALL + b"\0")
    with pytest.raises(DataError, match=r"byte 18: .*the end, after sizes \(2, 3\)"):
        read_idx(path)


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


@pytest.mark.parametrize(("content", "word"), [
    (b"", "an empty file"), (b"\x89PNG....", "a PNG image"),
    (bytes([0, 0, 7, 1, 0, 0, 0, 0]), "begins with the bytes 00 00 07 01"),
    (bytes([0, 0, 8, 0]), "begins with the bytes 00 00 08 00"),
    (bytes([0, 1, 8, 1, 0, 0, 0, 0]), "begins with the bytes 00 01 08 01"),
])  # fmt: skip
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


def saved_set(path, **changes):
    made = {name: array for name, array in arrays(**changes).items() if array is not None}
    np.savez(path, **made)
    return path


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_sets_by_name_and_path(tmp_path, form, monkeypatch):
    path = saved_set(tmp_path / "mine.npz")
    data = load(form(path))
    assert (data.name, data.x_train.shape, data.num_classes) == (str(path), (4, 1, 2, 3), 3)
    assert data.y_test.tolist() == [0, 1]
    assert load("digits").name == "digits"
    path.rename(tmp_path / "mine")  # without a suffix
    monkeypatch.chdir(tmp_path)
    assert load("mine").num_classes == 3


@pytest.mark.parametrize(("changes", "more", "words"), [
    ({"y_test": None}, {}, r"mine\.npz.*without 'y_test'"),
    ({"x_train": np.full((4, 2, 3), np.nan)}, {}, r"mine\.npz.*'x_train'.*24 NaN"),
    ({}, {"max_bytes": 40}, "at most 40 bytes"),
])  # fmt: skip
def test_errors_of_a_set_name_its_file(tmp_path, changes, more, words):
    with pytest.raises(DataError, match=words):
        load(saved_set(tmp_path / "mine.npz", **changes), **more)


Y = np.array([0, 1, 2, 1])


def arrays(**changes):
    made = {
        "x_train": np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3), "y_train": Y,
        "x_test": np.full((2, 2, 3), 255, np.uint8), "y_test": Y[:2],
    }  # fmt: skip
    return {**made, **changes}


def set_of(**changes):
    return Dataset._from_arrays("d", **arrays(**changes))


def test_pixels_become_float32_channels_first_in_0_to_1():
    given_arrays = arrays()
    data = Dataset._from_arrays("d", **given_arrays)
    np.testing.assert_allclose(data.x_train[1, 0, 1], np.array([9, 10, 11]) / 255, rtol=1e-6)
    assert (data.x_train.shape, data.x_train.dtype) == ((4, 1, 2, 3), np.float32)
    assert (data.x_test == 1).all()
    assert (given_arrays["x_test"] == 255).all()
    assert (data.y_train.dtype, data.y_train.tolist()) == (np.int32, [0, 1, 2, 1])
    assert (data.sample_shape, data.num_classes) == ((1, 2, 3), 3)
    told = "Dataset('d', 4 to train on, 2 to test on, sample shape (1, 2, 3), 3 classes)"
    assert repr(data) == told
    assert len(repr(digits())) <= 100
    with pytest.raises(AttributeError):
        data.num_classes = 5
    assert data != set_of()


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 7)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_kept(shape, dtype, rng):
    x = rng.standard_normal(shape).astype(dtype)
    data = set_of(x_train=x, x_test=x[:2])
    np.testing.assert_array_equal(data.x_train, x.astype(np.float32), strict=True)


def test_pixels_may_have_labels():
    y = np.arange(24).reshape(4, 2, 3) % 5
    data = set_of(y_train=y, y_test=y[:2])
    np.testing.assert_array_equal(data.y_train, y)
    assert (data.y_train.dtype, data.num_classes) == (np.int32, 5)


def with_value(value, at, dtype=np.float32):
    x = np.zeros((4, 2, 3), dtype)
    x[at] = value
    return x


BAD = {
    "NaN": ({"x_train": with_value(np.nan, (2, 1, 0))}, r"'x_train'.*1 NaN .*\(2, 1, 0\)"),
    "infinity": ({"x_test": with_value(np.inf, 1)[:2]}, r"'x_test'.*6 NaN .*\(1, 0, 0\)"),
    "too large": ({"x_train": with_value(1e300, (3, 0, 2), float)}, r"float32.*1 NaN .*\(3, 0, 2"),
    "int pixels": ({"x_train": np.zeros((4, 2, 3), int)}, r"'x_train'.*uint8.*int64"),
    "complex": ({"x_train": np.zeros((4, 2, 3), complex)}, "'x_train'.*complex128"),
    "rank 1": ({"x_train": np.zeros(4)}, r"'x_train'.*\(N, D\).*shape \(4,\)"),
    "rank 5": ({"x_train": np.zeros((4, 1, 1, 1, 1))}, r"shape \(4, 1, 1, 1, 1\)"),
    "none": ({"x_train": np.zeros((0, 2, 3)), "y_train": Y[:0]}, "'x_train'.*at least one"),
    "no pixels": ({"x_train": np.zeros((4, 0, 3))}, "'x_train'.*no empty axis"),
    "no test": ({"x_test": np.zeros((0, 2, 3)), "y_test": Y[:0]}, "'x_test'.*at least one"),
    "lengths": ({"y_train": Y[:3]}, "'y_train'.*4 labels.*3"),
    "test lengths": ({"y_test": Y}, "'y_test'.*2 labels.*4"),
    "shapes": ({"x_test": np.zeros((2, 3, 2))}, r"'x_test'.*\(2, 3\).*\(3, 2\)"),
    "float labels": ({"y_train": Y.astype(float)}, "'y_train'.*integer labels.*float64"),
    "bool labels": ({"y_train": Y > 0}, "'y_train'.*integer labels.*bool"),
    "one-hot": ({"y_train": np.eye(4, dtype=int)}, r"'y_train'.*\(N,\).*\(4, 4\).*argmax"),
    "column": ({"y_test": Y[:2, None]}, r"'y_test'.*\(2, 1\).*reshape"),
    "pixels": ({"y_train": np.zeros((4, 3, 2), int)}, r"a pixel, shape \(N, H, W\);.*\(4, 3, 2\)"),
    "a negative pixel": ({"y_train": with_value(-1, (1, 0, 2), int)}, r"-1 at index \(1, 0, 2\)"),
    "mixed": ({"y_train": np.arange(24).reshape(4, 2, 3) % 2}, r"'y_test'.*of 3 axes.*\(2,\)"),
    "negative": ({"y_train": np.array([0, 1, -1, -2])}, "'y_train'.*-1 at index 2"),
    "unseen": ({"y_test": np.array([1, 7])}, "'y_test'.*0 to 2.*7 at index 1"),
    "next": ({"y_test": np.array([1, 3])}, "'y_test'.*0 to 2.*3 at index 1"),
    "gaps": ({"y_train": np.array([0, 10**9, 2, 1])}, "'y_train'.*1000000000 at index 1"),
    "huge": ({"y_train": np.array([0, 2**64 - 1, 2, 1], np.uint64)}, "'y_train'.*at index 1"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_bad_data_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        Dataset._from_arrays("d", **arrays(**changes))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_with_channels_last_are_refused_and_the_advice_works(channels, dtype):
    x, y = np.zeros((6, 8, 9, channels), dtype), np.arange(6) % 2
    with pytest.raises(DataError, match="channels last") as caught:
        Dataset._from_arrays("it", x, y, x, y)
    assert "x.transpose(0, 3, 1, 2)" in caught.value.advice
    transposed = x.transpose(0, 3, 1, 2)
    assert Dataset._from_arrays("it", transposed, y, transposed, y).sample_shape == (channels, 8, 9)


@pytest.mark.parametrize("shape",
    [(3, 8, 3), (16, 3, 3), (16, 1, 1), (8, 8, 8), (32, 4, 4), (8, 16, 4)])  # fmt: skip
def test_maps_that_may_be_channels_first_are_taken(shape):
    x, y = np.zeros((4, *shape), np.float32), np.arange(4) % 2
    assert Dataset._from_arrays("it", x, y, x, y).sample_shape == shape
