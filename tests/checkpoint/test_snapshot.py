"""SINGA's snapshots, written here byte by byte from the layout its releases had."""

from __future__ import annotations

import contextlib
import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.checkpoint.snapshot_records import parse_record
from singanet.errors import ArgumentError, FileFormatError, VersionError

GOLDEN = bytes.fromhex(
    "7367 0100 0100000000000000 70 1a00000000000000"
    "0802 0802 1000 1800 2210 cdcccc3d cdcc4c3e 9a99993e cdcccc3e"
)
GOLDEN_STATE = {"p": np.array([[0.1, 0.2], [0.3, 0.4]], "f4")}


def varint(value):
    value = int(value) & (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def value_of(array, marks=(0,), packed=True, number=None, shape=None):
    """A TensorProto of ``array`` in storage order; ``marks`` are the values of field 3."""
    kinds = {"f4": (0, 4, 5), "f8": (4, 5, 1), "i4": (2, 6, 0)}
    number, field, wire = kinds[array.dtype.str[1:]]
    out = b"".join(b"\x08" + varint(axis) for axis in (array.shape if shape is None else shape))
    out += b"\x10" + varint(number)
    out += b"".join(b"\x18" + varint(mark) for mark in marks)
    if wire == 0:
        numbers = [varint(int(one)) for one in array.reshape(-1)]
    else:
        numbers = [one.tobytes() for one in array.reshape(-1)]
    if packed and numbers:
        data = b"".join(numbers)
        return out + varint(field << 3 | 2) + varint(len(data)) + data
    return out + b"".join(varint(field << 3 | wire) + one for one in numbers)


def record(key, value):
    raw = key.encode()
    return b"sg\1\0" + struct.pack("<Q", len(raw)) + raw + struct.pack("<Q", len(value)) + value


def describe(first, arrays):
    lines = [first] if first else []
    for name, array in arrays.items():
        shape = " ".join(map(str, array.shape))
        lines.append(f"parameter name: {name}\tdata type: 0\tdim: {array.ndim}\tshape: {shape}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def arrays(rng):
    return {
        "conv_weight": rng.standard_normal((3, 4)).astype("f4"),
        "conv_bias": rng.standard_normal(3).astype("f4"),
        "lstm-weight": rng.standard_normal(70).astype("f4"),
    }


def read_all(path):
    with open_state(path) as reader:
        return dict(reader), reader.version


def test_the_golden_record_is_read(tmp_path, assert_same):
    (tmp_path / "m.bin").write_bytes(GOLDEN)
    read, version = read_all(tmp_path / "m")
    assert_same(read, GOLDEN_STATE)
    assert version == "SINGA of unknown version"


def test_the_golden_record_is_written(tmp_path):
    write_state(tmp_path / "m.bin", GOLDEN_STATE, plain=True)
    assert (tmp_path / "m.bin").read_bytes() == GOLDEN
    assert (tmp_path / "m.desc").read_text("utf-8") == (
        "1101\nparameter name: p\tdata type: 0\tdim: 2\tshape: 2 2\n"
    )


@pytest.mark.parametrize("stem", ["m", "m.desc", "m.model"])
def test_1_0_0(tmp_path, arrays, assert_same, stem):
    """Unpacked numbers, no version anywhere, a file called .model."""
    data = b"".join(record(key, value_of(a, packed=False)) for key, a in arrays.items())
    (tmp_path / "m.model").write_bytes(data)
    (tmp_path / "m.desc").write_text(describe("", arrays))
    read, version = read_all(tmp_path / stem)
    assert_same(read, arrays)
    assert version == "SINGA of unknown version"


@pytest.mark.parametrize("number", ["1100", "1101"])
def test_1_1_0_and_1_1_1(tmp_path, arrays, assert_same, number):
    data = b"".join(record(key, value_of(array)) for key, array in arrays.items())
    (tmp_path / "m.bin").write_bytes(data)
    (tmp_path / "m.desc").write_text(describe(number, arrays))
    read, version = read_all(tmp_path / "m")
    assert_same(read, arrays)
    assert version == f"SINGA {number}"


def test_1_1_transposed(tmp_path):
    """The flag says that the data stand in the order of the transposed shape."""
    array = np.arange(6, dtype="f4").reshape(2, 3)
    value = value_of(np.ascontiguousarray(array.T), marks=(1,), shape=(2, 3))
    (tmp_path / "m.bin").write_bytes(record("fc/weight", value))
    read, _ = read_all(tmp_path / "m")
    np.testing.assert_array_equal(read["fc/weight"], array)
    assert read["fc/weight"].flags.c_contiguous


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 0, 2)])
def test_1_2_0_strides(tmp_path, rng, order):
    array = rng.standard_normal((2, 3, 4))
    storage = np.ascontiguousarray(array.transpose(order))
    strides = storage.transpose(np.argsort(order)).strides
    value = value_of(storage, marks=[s // 8 for s in strides], shape=array.shape)
    (tmp_path / "m.bin").write_bytes(record("a/b", value))
    np.testing.assert_array_equal(read_all(tmp_path / "m")[0]["a/b"], array)


def test_2_0_0_has_a_version_record(tmp_path, arrays, assert_same):
    data = record("SINGA_VERSION", value_of(np.array([1200], "i4"), marks=(1,)))
    data += b"".join(
        record(key, value_of(a, marks=np.array(a.strides) // 4)) for key, a in arrays.items()
    )
    (tmp_path / "m.bin").write_bytes(data)
    (tmp_path / "m.desc").write_text(describe("SINGA VERSION: 1200", arrays))
    read, version = read_all(tmp_path / "m.bin")
    assert_same(read, arrays)
    assert version == "SINGA 1200"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("code", ["f4", "f8", "i4"])
def test_numbers_of_every_kind(tmp_path, assert_same, code, packed):
    array = np.array([0, 1, -1, 127, 128, -128, 2**31 - 1, -(2**31)] * 8000, code)
    (tmp_path / "m.bin").write_bytes(record("x", value_of(array, packed=packed)))
    assert_same(read_all(tmp_path / "m")[0], {"x": array})


def test_numbers_packed_in_several_pieces(tmp_path, assert_same):
    value = value_of(np.array([1, 2], "f4"), shape=(4,)) + b"\x22\x08" + struct.pack("<2f", 3, 4)
    (tmp_path / "m.bin").write_bytes(record("x", value))
    assert_same(read_all(tmp_path / "m")[0], {"x": np.array([1, 2, 3, 4], "f4")})


def test_records_without_keys(tmp_path):
    value = value_of(np.array([1], "f4"))
    (tmp_path / "m.bin").write_bytes(2 * (b"sg\0\0" + struct.pack("<Q", len(value)) + value))
    assert list(read_all(tmp_path / "m")[0]) == ["record0", "record1"]


def test_what_we_write_is_a_file_of_singas(tmp_path, rng):
    """An independent walk over the records, with a parser of SINGA's own fields only."""
    state = {
        "conv/weight": rng.standard_normal((2, 5)).astype("f4"),
        "net/block_1/bias": np.arange(3, dtype="f8"),
        "count": np.array([-5, 300], "i4"),
    }
    write_state(tmp_path / "m", state)
    raw = (tmp_path / "m.bin").read_bytes()
    found = {}
    while raw:
        assert raw[:4] == b"sg\1\0"
        (size,) = struct.unpack_from("<Q", raw, 4)
        key = raw[12 : 12 + size].decode()
        (length,) = struct.unpack_from("<Q", raw, 12 + size)
        found[key] = TensorProto.FromString(raw[20 + size : 20 + size + length])
        raw = raw[20 + size + length :]
    assert list(found) == ["conv_weight", "net/block_1_bias", "count"]
    # Neither the flag of 1.1 nor the strides of 2.0: absent, both read row-major.
    assert all(list(proto.stride) == [] for proto in found.values())
    assert list(found["conv_weight"].shape) == [2, 5]
    np.testing.assert_array_equal(
        np.array(found["conv_weight"].float_data, "f4"), state["conv/weight"].reshape(-1)
    )
    assert list(found["net/block_1_bias"].double_data) == [0, 1, 2]
    assert list(found["count"].int_data) == [-5, 300]


def test_names_that_singas_spelling_would_merge_keep_their_slash(tmp_path, assert_same):
    state = {name: np.array([i], "f4") for i, name in enumerate(["a/b_c", "a_b/c", "a_b_c", "d/e"])}
    write_state(tmp_path / "m", state)
    assert_same(read_all(tmp_path / "m")[0], state)
    raw = (tmp_path / "m.bin").read_bytes()
    assert b"a/b_c\x18" not in raw
    assert b"d_e" in raw


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (value_of(np.ones(3, "f4"), shape=(4,)), "4 numbers for the shape"),
        (value_of(np.ones(3, "f4"), shape=(2**20, 2**20)), "at most"),
        (value_of(np.ones(3, "f4"), shape=(2**32 - 1,) * 40), "axes"),
        (value_of(np.ones(6, "f4"), marks=(1, 1, 1), shape=(2, 3)), "strides"),
        (value_of(np.ones(6, "f4"), marks=(9, 1), shape=(2, 3)), "strides"),
        (value_of(np.ones(6, "f4"), marks=(-3, 1), shape=(2, 3)), "strides"),
        (value_of(np.ones(6, "f4"), marks=(1,), shape=(1, 2, 3)), "strides"),
        (b"\x08\x01\x10\x04" + b"\x22\x04" + bytes(4), "another type than float64"),
        (b"\x08\x01\x22\xff\xff\xff\xff\x0f" + bytes(4), "bytes of data"),
        (b"\x08\x01\x10\x02\x32\x0b" + b"\xff" * 11, "more than ten bytes"),
        (b"\x08\x01\x10\x02\x32\x02\x80\x80", "without an end"),
        (b"\x0b\x01", "wire type 3"),
        (b"\xff" * 12, "more than ten bytes"),
        (b"\x08", "bytes"),
        (b"\xd2\x3e\x02\xff\xfe", "TensorProto"),
    ],
)
def test_broken_records(tmp_path, value, message):
    (tmp_path / "m.bin").write_bytes(record("w", value))
    with pytest.raises(FileFormatError, match=rf"m\.bin'.*'w'.*{message}"):
        read_all(tmp_path / "m")


def test_a_duplicate_key(tmp_path):
    (tmp_path / "m.bin").write_bytes(GOLDEN * 2)
    with pytest.raises(FileFormatError, match="each name once; received 'p' twice"):
        read_all(tmp_path / "m")


@pytest.mark.parametrize("mark", [b"sg\x31\x00", b"sg\1\1", b"gs\1\0"])
def test_a_wrong_start_of_a_later_record(tmp_path, mark):
    (tmp_path / "m.bin").write_bytes(GOLDEN + mark + GOLDEN[4:])
    with pytest.raises(FileFormatError, match="at byte 47"):
        read_all(tmp_path / "m")


@pytest.mark.parametrize("length", [5000, 10 << 20])
def test_a_name_of_many_bytes(tmp_path, length):
    raw = b"sg\1\0" + struct.pack("<Q", length) + b"n" * length + GOLDEN[13:]
    (tmp_path / "m.bin").write_bytes(raw)
    with pytest.raises(FileFormatError, match=f"names of 1 to 4096.*{length} characters"):
        read_all(tmp_path / "m")


def test_lengths_beyond_the_file(tmp_path):
    for raw in (b"sg\1\0" + b"\xff" * 8, b"sg\1\0" + struct.pack("<Q", 1) + b"p" + b"\xff" * 8):
        (tmp_path / "m.bin").write_bytes(raw)
        with pytest.raises(FileFormatError, match="18446744073709551615 bytes"):
            read_all(tmp_path / "m")


def test_records_lost_between_two_records(tmp_path, arrays):
    """SINGA's own files cannot tell, but for the .desc beside them."""
    whole = [record(key, value_of(array)) for key, array in arrays.items()]
    (tmp_path / "m.bin").write_bytes(b"".join(whole[:-1]))
    assert len(read_all(tmp_path / "m")[0]) == 2
    (tmp_path / "m.desc").write_text(describe("1101", arrays))
    with pytest.raises(FileFormatError, match=r"'lstm-weight', which the \.desc file lists"):
        read_all(tmp_path / "m")


def test_a_stale_desc_does_not_matter_to_our_files(tmp_path, state, assert_same):
    write_state(tmp_path / "m", state)
    (tmp_path / "m.desc").write_text(describe("1101", {"gone/weight": np.ones(2)}))
    assert_same(read_all(tmp_path / "m")[0], state)


def test_a_newer_format_is_refused_with_both_versions(tmp_path):
    tail = TensorProto(format_version=7).SerializeToString()
    (tmp_path / "m.bin").write_bytes(record("w", value_of(np.ones(1, "f4")) + tail))
    with pytest.raises(VersionError, match="1 to 1.*received format version 7; update singanet"):
        read_all(tmp_path / "m")


def test_an_array_above_what_protobuf_holds(tmp_path):
    huge = np.broadcast_to(np.float32(0), (1 << 29,))
    with pytest.raises(ArgumentError, match="array 'x': expected less than 2 GiB"):
        write_state(tmp_path / "m", {"x": huge})
    assert list(tmp_path.iterdir()) == []


def test_a_record_larger_than_singas_buffer(tmp_path, assert_same):
    """SINGA's default buffer holds 10 MB; ours has no such limit."""
    state = {"x": np.arange(4 << 20, dtype="f4")}
    write_state(tmp_path / "m", state)
    assert_same(read_all(tmp_path / "m")[0], state)


NUMBERS = st.integers(0, 2**32 - 1)
FIELDS = st.one_of(
    st.builds(lambda n: b"\x08" + varint(n), NUMBERS),
    st.builds(lambda n: b"\x18" + varint(n), st.integers(-(2**31), 2**31 - 1)),
    st.builds(lambda n: varint(1001 << 3) + varint(n), NUMBERS),
    st.builds(lambda n: varint(1003 << 3) + varint(n), NUMBERS),
    st.builds(lambda n: varint(77 << 3 | 5) + n, st.binary(min_size=4, max_size=4)),
    st.builds(lambda n: varint(1004 << 3 | 2) + varint(len(n)) + n, st.binary(max_size=700)),
    st.builds(lambda n: b"\x22" + varint(4 * n) + b"\x08" * 4 * n, st.integers(0, 300)),
)


@given(st.lists(FIELDS, max_size=12))
def test_heads_are_those_of_protobuf(fields):
    """Whatever stands in them, in whatever order, across the windows in which they are read."""
    value = b"".join(fields)
    record = parse_record(io.BytesIO(b"???" + value), 3, len(value), "here")
    whole = TensorProto.FromString(value)
    data = b"".join(value[run.offset - 3 : run.offset - 3 + run.size] for run in record.segments)
    assert data == np.array(whole.float_data, "f4").tobytes()
    whole.ClearField("float_data")
    assert record.head == whole


@given(st.binary(max_size=40))
def test_heads_of_any_bytes(value):
    with contextlib.suppress(FileFormatError):
        parse_record(io.BytesIO(value), 0, len(value), "here")
