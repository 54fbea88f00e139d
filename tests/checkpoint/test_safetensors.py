from __future__ import annotations

import json

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import ArgumentError, FileFormatError, VersionError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def read_all(path):
    with open_state(path, "safetensors") as reader:
        return dict(reader)


def file_of(table, data=bytes(8)):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_the_package_reads_what_we_write(path, state):
    package = pytest.importorskip("safetensors.numpy")
    mixed = {**state, "small": np.arange(3, dtype="i1"), "wide": np.arange(3.0)}
    write_state(path, mixed)
    found = package.load_file(path)
    assert found.keys() == mixed.keys()
    for name, array in mixed.items():
        assert found[name].tobytes() == array.tobytes()


def test_we_read_what_the_package_writes(path, state, assert_same):
    package = pytest.importorskip("safetensors.numpy")
    package.save_file(state, path, {"format": "pt"})
    with open_state(path) as reader:
        assert reader.metadata == {"format": "pt"}
        assert_same({name: reader.read(name) for name in state}, state)


def test_data_are_aligned(path, state):
    write_state(path, {"odd": np.ones(3, "u1"), **state})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    for name, found in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            assert (
                found["data_offsets"][0] % {"F32": 4, "F64": 8, "I32": 4, "U8": 1}[found["dtype"]]
                == 0
            )


def test_bfloat16_is_widened(path):
    raw = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], "<u2").tobytes()
    path.write_bytes(file_of({"x": entry("BF16", (4,))}, raw))
    read = read_all(path)["x"]
    assert read.dtype == np.float32
    assert read.tolist() == [1.0, -2.0, np.inf, 2.0**-133]


def test_two_empty_arrays_at_one_place(path):
    table = {
        "a": entry(shape=(0,), offsets=(0, 0)),
        "b": entry(),
        "c": entry(shape=(0,), offsets=(8, 8)),
    }
    path.write_bytes(file_of(table))
    assert {name: array.shape for name, array in read_all(path).items()} == {
        "a": (0,), "b": (2,), "c": (0,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": entry(offsets=(0, 4))}, "offsets 0 to 4"),
        ({"x": entry(shape=(1,), offsets=(4, 8))}, "at byte 0; received byte 4"),
        ({"x": entry(shape=(1,), offsets=(0, 4))}, "4 bytes of data"),
        ({"x": entry(), "y": entry()}, "at byte 8; received byte 0"),
        ({"x": entry(shape=(4,), offsets=(0, 16))}, "needs 16"),
        ({"x": entry(shape=(-2,))}, "shape and offsets of integers"),
        ({"x": entry(shape=(2**61, 2**61))}, "2\\^62"),
        ({"x": entry(shape=(1,) * 40)}, "axes"),
        ({"x": entry(shape=(2.0,))}, "shape and offsets of integers"),
        ({"x": entry(shape=(True, 2))}, "shape and offsets of integers"),
        ({"x": entry(offsets=(8, 0))}, "offsets 8 to 0"),
        ({"x": entry(offsets=(0,))}, "shape and offsets of integers"),
        ({"x": entry("F8_E4M3", (8,))}, "'F8_E4M3'"),
        ({"x": entry(["F32"])}, "a type among"),
        ({"x": 5}, "dtype, shape and data_offsets"),
        ({"x": {"dtype": "F32"}}, "shape and offsets of integers"),
        ({"__metadata__": {"a": 1}}, "metadata from string to string"),
        ({"__metadata__": []}, "metadata from string to string"),
        ({"../x": entry()}, "names of 1 to 4096"),
        ({"x\0": entry()}, "names of 1 to 4096"),
        ({"\ud800": entry()}, "no Unicode text"),
        (b'{"x":{},"x":{}}', "'x' twice"),
        (b" {}", "starts with '{'"),
        (b"{", "a table in JSON"),
        (b'{"x":' + b"[" * 100_000, "a table in JSON"),
        (b'{"\xff":1}', "a table in JSON"),
        (b"[]", "starts with '{'"),
    ],
)
def test_broken_tables(path, table, message):
    path.write_bytes(file_of(table))
    with pytest.raises(FileFormatError, match=rf"m\.safetensors.*{message}"):
        read_all(path)


@pytest.mark.parametrize("length", [10**18, 2**64 - 1, 9])
def test_a_table_beyond_the_file(path, length):
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(FileFormatError, match=f"a table of {length} bytes"):
        read_all(path)


def test_a_table_that_is_too_long(path):
    path.write_bytes(file_of(b"{" + b" " * (9 << 20) + b"}"))
    with pytest.raises(FileFormatError, match="at most 8388608 bytes"):
        read_all(path)


@pytest.mark.parametrize("checksums", [None, "x", "[]", "[" * 100_000])
def test_our_file_without_its_checksums(path, checksums):
    metadata = {"singanet_format": "1"}
    if checksums is not None:
        metadata["checksums"] = checksums
    path.write_bytes(file_of({"__metadata__": metadata, "x": entry()}))
    with pytest.raises(FileFormatError, match="checksum"):
        read_all(path)


def test_a_newer_format(path):
    path.write_bytes(file_of({"__metadata__": {"singanet_format": "12"}}, b""))
    with pytest.raises(VersionError, match="1 to 1.*received format version 12"):
        read_all(path)


def test_a_reserved_name(path):
    with pytest.raises(ArgumentError, match="__metadata__"):
        write_state(path, {"__metadata__": np.ones(1)})
