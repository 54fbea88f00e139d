from __future__ import annotations

import json

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.entry import Checksum
from singanet.errors import ArgumentError, ChecksumError, VersionError
from tests.checkpoint.format_case import FormatCase, small_state
from tests.kit.files import expect_same_state, read_state
from tests.kit.files import safetensors_entry as entry
from tests.kit.files import safetensors_file as file_of

TABLES = [
    ({"x": entry(offsets=(0, 4))}, "offsets 0 to 4"),
    ({"x": entry(shape=(1,), offsets=(4, 8))}, "at byte 0; received byte 4"),
    ({"x": entry(shape=(1,), offsets=(0, 4))}, "4 bytes of data"),
    ({"x": entry(), "y": entry()}, "at byte 8; received byte 0"),
    ({"x": entry(shape=(4,), offsets=(0, 16))}, "needs 16"),
    ({"x": entry(shape=(-2,))}, "data_offsets of natural numbers"),
    ({"x": entry(shape=(2**61, 2**61))}, "2\\^62"),
    ({"x": entry(shape=(1,) * 40)}, "axes"),
    ({"x": entry(shape=(2.0,))}, "data_offsets of natural numbers"),
    ({"x": entry(shape=(True, 2))}, "data_offsets of natural numbers"),
    ({"x": entry(offsets=(8, 0))}, "offsets 8 to 0"),
    ({"x": entry(offsets=(0,))}, "data_offsets of natural numbers"),
    ({"x": entry("F8_E4M3", (8,))}, "'F8_E4M3'"),
    ({"x": entry(["F32"])}, "a type among"),
    ({"x": 5}, "data_offsets of natural numbers"),
    ({"x": {"dtype": "F32"}}, "data_offsets of natural numbers"),
    ({"__metadata__": {"a": 1}}, "metadata from string to string"),
    ({"__metadata__": []}, "metadata from string to string"),
    ({"\ud800": entry()}, "no Unicode text"),
    (b'{"x":{},"x":{}}', "'x' twice"),
    (b'{"a:b":{},"a:b":{}}', "'a:b' twice"),
    (b'{"a:b": {}, "a\\u003ab" : {}}', "'a:b' twice"),
    (b'{"x":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', "'shape' twice"),
    (b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"y":{"z":1,"z":2}}}', "'z' twice"),
    (b'{"__metadata__":{"a":":","a":"b"}}', "'a' twice"),
    ({"x": entry(shape="2")}, "data_offsets of natural numbers"),
    ({"x": entry(shape=(2**70, 0), offsets=(0, 0))}, "2\\^62"),
    ({"x": entry(offsets=(-8, 0))}, "at byte 0; received byte -8"),
    (b" {}", "starts with '{'"),
    (b"{", "a table in JSON"),
    (b'{"x":' + b"[" * 100_000, "a table in JSON"),
    (b'{"\xff":1}', "a table in JSON"),
    (b"[]", "starts with '{'"),
    (b"{" + b" " * (9 << 20) + b"}", "at most 8388608 bytes"),
    *(({"__metadata__": {"singanet_format": "1", **sums}, "x": entry()}, "checksum")
      for sums in ({}, *({"checksums": text} for text in ("x", "[]", "[" * 100_000)))),
]  # fmt: skip
NEWER = {"__metadata__": {"singanet_format": "12"}}


class TestSafetensors(FormatCase):
    name = "safetensors"
    suffix = ".safetensors"
    forged = [
        *((file_of(table), rf"model\.safetensors.*{message}") for table, message in TABLES),
        *((length.to_bytes(8, "little") + b"{}", f"a table of {length} bytes")
          for length in (10**18, 2**64 - 1, 9)),
        (file_of(NEWER, b""), "1 to 1.*received format version 12", VersionError),
    ]  # fmt: skip

    def named(self, path, name):
        path.write_bytes(file_of({name: entry()}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def test_the_package_reads_what_we_write_and_writes_what_we_read(path):
    package = pytest.importorskip("safetensors.numpy")
    mixed = {**small_state(), "small": np.arange(3, dtype="i1"), "wide": np.arange(3.0)}
    write_state(path, mixed)
    found = package.load_file(path)
    assert found.keys() == mixed.keys()
    for name, array in mixed.items():
        assert found[name].tobytes() == array.tobytes()
    package.save_file(small_state(), path, {"format": "pt"})
    with open_state(path) as reader:
        assert reader.metadata == {"format": "pt"}
        expect_same_state({name: reader.read(name) for name in small_state()}, small_state())


def test_names_with_signs_of_json_are_written_as_json_has_them(path):
    names = ['a"b', "a\\b", "a: b", "{a}", "[a,b]", "\u00e4:\u2028", "\U0001f600", "\\u003a"]
    state = {name: np.full((1, k), k, "i2") for k, name in enumerate(names)}
    write_state(path, state)
    expect_same_state(read_state(path), state)
    raw = path.read_bytes()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode()
    again = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    assert text.rstrip() == again


def test_data_are_aligned(path):
    write_state(path, {"odd": np.ones(3, "u1"), **small_state()})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    sizes = {"F32": 4, "F64": 8, "I32": 4, "U8": 1}
    for name, found in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            assert found["data_offsets"][0] % sizes[found["dtype"]] == 0


@pytest.mark.parametrize("count", [3, 40])
def test_small_arrays_are_read_and_written_together(path, count):
    """Beside large ones, of lengths that are whole words or not, and in files without checksums."""
    rng = np.random.default_rng(count)
    sizes = [*rng.integers(0, 3000, count), 1 << 17, *rng.integers(1, 50, count)]
    for unit, dtype in ((2, "f4"), (1, "u1")):
        state = {f"a{k}": rng.integers(0, 9, unit * n).astype(dtype) for k, n in enumerate(sizes)}
        write_state(path, state)
        with open_state(path) as reader:
            for name, checked in reader.entries.items():
                by_hand = Checksum().update(state[name].tobytes()).text()
                assert checked.checksum == by_hand
            together = dict(reader)
            expect_same_state(together, state)
            assert all(array.flags.writeable for array in together.values())
            for array in together.values():
                array[...] = 7
            expect_same_state({name: reader.read(name) for name in state}, state)


def test_damage_of_a_small_array_names_it(path):
    state = {f"a{k}": np.full(100, k, "f4") for k in range(5)}
    write_state(path, state)
    raw = bytearray(path.read_bytes())
    raw[-500] ^= 1
    path.write_bytes(raw)
    with open_state(path) as reader, pytest.raises(ChecksumError, match="'a3'"):
        dict(reader)


def test_small_arrays_at_odd_places_are_read_together(path):
    raw = bytes(1) + np.arange(2, dtype="<f4").tobytes()
    rows = {"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (2,), (1, 9))}
    path.write_bytes(file_of(rows, raw))
    read = read_state(path)
    assert read["b"].flags.aligned
    assert read["b"].tolist() == [0.0, 1.0]


def test_bfloat16_is_widened(path):
    raw = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], "<u2").tobytes()
    path.write_bytes(file_of({"x": entry("BF16", (4,))}, raw))
    read = read_state(path)["x"]
    assert read.dtype == np.float32
    assert read.tolist() == [1.0, -2.0, np.inf, 2.0**-133]


def test_two_empty_arrays_at_one_place_and_a_reserved_name(path):
    empty = [entry(shape=(0,), offsets=(at, at)) for at in (0, 8)]
    path.write_bytes(file_of({"a": empty[0], "b": entry(), "c": empty[1]}))
    shapes = {name: array.shape for name, array in read_state(path).items()}
    assert shapes == {"a": (0,), "b": (2,), "c": (0,)}
    with pytest.raises(ArgumentError, match="__metadata__"):
        write_state(path, {"__metadata__": np.ones(1)})
