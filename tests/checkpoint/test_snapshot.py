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
from tests.checkpoint.format_case import FormatCase, small_state
from tests.kit.files import expect_refused, expect_same_state, read_state, varint
from tests.kit.files import snapshot_record as record
from tests.kit.files import snapshot_value as value_of

GOLDEN = bytes.fromhex(
    "7367 0100 0100000000000000 70 1a00000000000000"
    "0802 0802 1000 1800 2210 cdcccc3d cdcc4c3e 9a99993e cdcccc3e"
)
GOLDEN_STATE = {"p": np.array([[0.1, 0.2], [0.3, 0.4]], "f4")}
ONES, NEWER = np.ones(6, "f4"), TensorProto(format_version=9).SerializeToString()
BROKEN = [
    (value_of(ONES[:3], shape=(4,)), "4 numbers for the shape"),
    (value_of(ONES[:3], shape=(2**20, 2**20)), "at most"),
    (value_of(ONES[:3], shape=(2**32 - 1,) * 40), "axes"),
    (value_of(ONES, marks=(1, 1, 1), shape=(2, 3)), "strides"),
    (value_of(ONES, marks=(9, 1), shape=(2, 3)), "strides"),
    (value_of(ONES, marks=(-3, 1), shape=(2, 3)), "strides"),
    (value_of(ONES, marks=(1,), shape=(1, 2, 3)), "strides"),
    (b"\x08\x01\x10\x04" + b"\x22\x04" + bytes(4), "another type than float64"),
    (b"\x08\x01\x22\xff\xff\xff\xff\x0f" + bytes(4), "bytes of data"),
    (b"\x08\x01\x10\x02\x32\x0b" + b"\xff" * 11, "more than ten bytes"),
    (b"\x08\x01\x10\x02\x32\x02\x80\x80", "without an end"),
    (b"\x0b\x01", "wire type 3"),
    (b"\xff" * 12, "more than ten bytes"),
    (b"\x08", "bytes"),
    (b"\xd2\x3e\x02\xff\xfe", "TensorProto"),
]


def of_length(length):
    """A name of that many bytes."""
    return b"sg\1\0" + struct.pack("<Q", length) + b"n" * length + GOLDEN[13:]


class TestSnapshot(FormatCase):
    name = "snapshot"
    suffix = ".bin"
    types = ("f4", "f8", "i4", "f2", "u1", "i1")
    forged = [
        *((record("w", value), rf"model\.bin'.*'w'.*{message}") for value, message in BROKEN),
        (GOLDEN * 2, "each name once; received 'p' twice"),
        *((GOLDEN + mark + GOLDEN[4:], "at byte 47") for mark in (b"sg1\0", b"sg\1\1", b"gs\1\0")),
        *((of_length(n), f"names of 1 to 4096.*{n} characters") for n in (5000, 10 << 20)),
        (b"sg\1\0" + b"\xff" * 8, "18446744073709551615 bytes"),
        (b"sg\1\0" + struct.pack("<Q", 1) + b"p" + b"\xff" * 8, "18446744073709551615 bytes"),
        (record("w", value_of(ONES) + NEWER), "1 to 1.*received format version 9; update singanet",
         VersionError),
    ]  # fmt: skip

    def named(self, path, name):
        path.write_bytes(record(name, value_of(np.ones(2, "f4"))))


def describe(first, arrays):
    """The ``.desc`` file."""
    lines = [first] if first else []
    for name, array in arrays.items():
        shape = " ".join(map(str, array.shape))
        lines.append(f"parameter name: {name}\tdata type: 0\tdim: {array.ndim}\tshape: {shape}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.bin"


@pytest.fixture
def arrays(rng):
    shapes = {"conv_weight": (3, 4), "conv_bias": (3,), "lstm-weight": (70,)}
    return {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


def test_the_golden_record_is_read_and_written(path):
    path.write_bytes(GOLDEN)
    with open_state(path.with_suffix("")) as reader:
        expect_same_state(dict(reader), GOLDEN_STATE)
        assert reader.version == "SINGA of unknown version"
    write_state(path, GOLDEN_STATE, plain=True)
    assert path.read_bytes() == GOLDEN
    assert path.with_suffix(".desc").read_text("utf-8") == (
        "1101\nparameter name: p\tdata type: 0\tdim: 2\tshape: 2 2\n"
    )


@pytest.mark.parametrize(
    ("release", "first", "suffix"),
    [
        ("1.0.0", "", ".model"),  # unpacked numbers and no version anywhere
        ("1.1.0", "1100", ".bin"), ("1.1.1", "1101", ".bin"),
        ("2.0.0", "SINGA VERSION: 1200", ".bin"),  # strides, and a record of the version
    ],
)  # fmt: skip
def test_every_release_of_singa(tmp_path, arrays, release, first, suffix):
    newest = release == "2.0.0"
    version = value_of(np.array([1200], "i4"), marks=(1,))
    data = record("SINGA_VERSION", version) if newest else b""
    for key, array in arrays.items():
        marks = np.array(array.strides) // 4 if newest else (0,)
        data += record(key, value_of(array, marks, packed=release != "1.0.0"))
    (tmp_path / f"m{suffix}").write_bytes(data)
    (tmp_path / "m.desc").write_text(describe(first, arrays))
    for name in ("m", "m.desc", f"m{suffix}"):
        with open_state(tmp_path / name) as reader:
            expect_same_state(dict(reader), arrays)
            assert reader.version == f"SINGA {first[-4:] or 'of unknown version'}"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 0, 2)])
def test_strides_of_1_2_0_and_the_flag_of_1_1(path, rng, order):
    """The flag says that the data are in the order of the transposed shape."""
    array = rng.standard_normal((2, 3, 4))
    storage = np.ascontiguousarray(array.transpose(order))
    strides = storage.transpose(np.argsort(order)).strides
    value = value_of(storage, marks=[s // 8 for s in strides], shape=array.shape)
    path.write_bytes(record("a/b", value))
    np.testing.assert_array_equal(read_state(path)["a/b"], array)
    array = np.arange(6, dtype="f4").reshape(2, 3)
    value = value_of(np.ascontiguousarray(array.T), marks=(1,), shape=(2, 3))
    path.write_bytes(record("fc/weight", value))
    expect_same_state(read_state(path), {"fc/weight": array})


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("code", ["f4", "f8", "i4"])
def test_numbers_of_every_kind(path, code, packed):
    array = np.array([0, 1, -1, 127, 128, -128, 2**31 - 1, -(2**31)] * 8000, code)
    path.write_bytes(record("x", value_of(array, packed=packed)))
    expect_same_state(read_state(path), {"x": array})


def test_numbers_packed_in_several_pieces_and_records_without_keys(path):
    value = value_of(np.array([1, 2], "f4"), shape=(4,)) + b"\x22\x08" + struct.pack("<2f", 3, 4)
    path.write_bytes(record("x", value))
    expect_same_state(read_state(path), {"x": np.array([1, 2, 3, 4], "f4")})
    value = value_of(np.array([1], "f4"))
    path.write_bytes(2 * (b"sg\0\0" + struct.pack("<Q", len(value)) + value))
    assert list(read_state(path)) == ["record0", "record1"]


def test_what_we_write_is_a_file_of_singas(path, rng):
    """An independent walk over the records, with a parser of SINGA's own fields only."""
    state = {
        "conv/weight": rng.standard_normal((2, 5)).astype("f4"),
        "net/block_1/bias": np.arange(3, dtype="f8"), "count": np.array([-5, 300], "i4"),
    }  # fmt: skip
    write_state(path, state)
    raw, found = path.read_bytes(), {}
    while raw:
        assert raw[:4] == b"sg\1\0"
        (size,) = struct.unpack_from("<Q", raw, 4)
        (length,) = struct.unpack_from("<Q", raw, 12 + size)
        key, value = raw[12 : 12 + size], raw[20 + size : 20 + size + length]
        found[key.decode()] = TensorProto.FromString(value)
        raw = raw[20 + size + length :]
    weight, bias, count = found.values()
    assert list(found) == ["conv_weight", "net/block_1_bias", "count"]
    # Neither the flag of 1.1 nor the strides of 2.0: absent, both read row-major.
    assert all(list(proto.stride) == [] for proto in found.values())
    assert list(weight.shape) == [2, 5]
    flat = state["conv/weight"].reshape(-1)
    np.testing.assert_array_equal(np.array(weight.float_data, "f4"), flat)
    assert (list(bias.double_data), list(count.int_data)) == ([0, 1, 2], [-5, 300])


def test_names_that_singas_spelling_would_merge_keep_their_slash(path):
    state = {name: np.array([i], "f4") for i, name in enumerate(["a/b_c", "a_b/c", "a_b_c", "d/e"])}
    write_state(path, state)
    expect_same_state(read_state(path), state)
    raw = path.read_bytes()
    assert b"a/b_c\x18" not in raw
    assert b"d_e" in raw


def test_records_lost_between_two_records(path, arrays):
    """SINGA's own files cannot tell, but for the .desc beside them; ours need none."""
    whole = [record(key, value_of(array)) for key, array in arrays.items()]
    path.write_bytes(b"".join(whole[:-1]))
    assert len(read_state(path)) == 2
    path.with_suffix(".desc").write_text(describe("1101", arrays))
    expect_refused(lambda: read_state(path), r"'lstm-weight', which the \.desc file lists")
    write_state(path, small_state())
    path.with_suffix(".desc").write_text(describe("1101", {"gone/weight": np.ones(2)}))
    expect_same_state(read_state(path), small_state())


def test_large_arrays(tmp_path, path):
    """SINGA's default buffer holds 10 MB, and ours has no such limit; protobuf holds 2 GB."""
    state = {"x": np.arange(4 << 20, dtype="f4")}
    write_state(path, state)
    expect_same_state(read_state(path), state)
    huge = np.broadcast_to(np.float32(0), (1 << 29,))
    with pytest.raises(ArgumentError, match="array 'x': expected less than 2 GiB"):
        write_state(tmp_path / "huge", {"x": huge})
    assert not list(tmp_path.glob("huge*"))


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
