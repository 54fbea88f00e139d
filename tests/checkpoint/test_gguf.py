"""GGUF against the package of that name, and files made by hand."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import errors
from singanet.checkpoint import FORMATS, Source, convert, diff, inspect, open_state, write_state
from singanet.checkpoint.gguf import halved, interleaved, write_gguf
from singanet.checkpoint.gguf_blocks import BLOCKS, eighths, quarters
from tests.checkpoint.format_case import FormatCase
from tests.checkpoint.ggml_formulas import HALVES, NUMBERS
from tests.kit.files import (
    expect_same_state,
    gguf_file,
    gguf_of_all_types,
    gguf_tensor,
    gguf_text,
    read_state,
)

IN_BLOCKS = [name for name, block in BLOCKS.items() if block.decode is not None]
SMOLLM2 = Path(os.environ.get("SINGANET_GGUF", "") or "none.gguf")
"""A published file, where the variable names one."""
FOUR = np.arange(4, dtype="f4")
PADDED = FOUR.tobytes() + bytes(16)
U4 = struct.pack("<I", 3)
W = [gguf_tensor()]
TENSORS = [
    ([], PADDED[:0], "by the table"),
    ([], PADDED + b"x", "by the table"),
    ([gguf_tensor()], PADDED, "'w' twice"),
    ([gguf_tensor("v")], PADDED, "at a multiple of 32, from 16"),
]
TENSOR = [
    (gguf_tensor(offset=3), "at a multiple of 32"),
    (gguf_tensor(offset=1 << 63), "by the table"),
    (gguf_tensor(axes=(1 << 40,)), "a shape of at most"),
    (gguf_tensor(axes=(1 << 62, 1 << 62)), "2\\^62"),
    (gguf_tensor(axes=(1,) * 5), "at most 4 axes; received 5"),
    (gguf_tensor(code=10), "'F32'.*received Q2_K"),
    (gguf_tensor(code=99), "received type 99"),
    (gguf_tensor(code=8), "rows of blocks of 32"),
    (gguf_tensor(axes=(), code=8), "rows of blocks of 32"),
    (gguf_tensor(""), "names of 1 to"),
]
VALUE = [
    ("a", 13, U4, "a type of value from 0 to 12"),
    ("a", 7, b"\2", "booleans of 0 or 1"),
    ("a", 8, struct.pack("<Q", 1 << 60), "then the end"),
    ("a", 9, struct.pack("<IQ", 4, 1 << 60), "then the end"),
    ("a", 9, struct.pack("<IQ", 9, 1) * 50, "nested levels"),
    ("general.alignment", 4, U4, "a power of two"),
    ("general.alignment", 8, gguf_text("x"), "a power of two"),
    ("split.count", 2, b"\2\0", "a model in one file"),
    ("singanet.format", 4, struct.pack("<I", 1), "a checksum for each"),
]
VERSIONS = [(0, "version 2 or 3"), (1, "version 2 or 3"), (4, "version 2 or 3"), (3 << 24, "high")]


class TestGguf(FormatCase):
    name = "gguf"
    suffix = ".gguf"
    types = ("f4", "f8", "i1", "<i2", "i4", "i8", "f2")
    forged = [
        *((gguf_file([*W, *more], data=data), message) for more, data, message in TENSORS),
        *((gguf_file([one], data=PADDED), message) for one, message in TENSOR),
        *((gguf_file(values=[(key, code, raw)]), message) for key, code, raw, message in VALUE),
        *((gguf_file(version=n), f"{message}", errors.VersionError) for n, message in VERSIONS),
        (gguf_file(count=1 << 40), "names of 1 to"),
        (gguf_file(values=[("a", 4, U4), ("a", 4, U4)]), "'a' twice"),
        (b"GGUF", "then the end"),
    ]

    def named(self, path, name):
        path.write_bytes(gguf_file([gguf_tensor(name)], data=PADDED))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.gguf"


@pytest.fixture
def peer():
    return pytest.importorskip("gguf")


# -- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_as_the_package_reads_them(name, peer):
    """Of random bytes, so of every scale and every integer; NaN and infinity among them."""
    from gguf import quants

    block = BLOCKS[name]
    raw = np.random.default_rng(0).integers(0, 256, (3000, block.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        found = block.decode(raw).reshape(-1)
        kind = getattr(peer.GGMLQuantizationType, name)
        expected = quants.dequantize(raw, kind).reshape(-1)
    assert peer.GGML_QUANT_SIZES[kind] == (block.elements, block.nbytes)
    number = ~(np.isnan(found) & np.isnan(expected))
    np.testing.assert_array_equal(found.view("u4")[number], expected.view("u4")[number])
    assert kind.value == block.code


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_by_their_formulas(name):
    """Of every kind, without a peer: random bytes, whose scales are numbers."""
    rng, block = np.random.default_rng(2), BLOCKS[name]
    raw = rng.integers(0, 256, (20, block.nbytes), np.uint8)
    scales = () if name == "BF16" else HALVES.get(name, (0,))
    for at in scales:
        raw[:, at : at + 2] = rng.standard_normal((20, 1)).astype("<f2").view("u1")
    if not scales:
        raw[:, 1] &= 0xBF  # no infinity and no NaN
    found = block.decode(raw)
    expected = np.array([NUMBERS[name](row.tobytes()) for row in raw])
    assert found.dtype == np.float32
    # A sub-block's minimum is rounded before it is subtracted.
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("make", "kind", "powers"), [(eighths, "Q8_0", (-6, 4)), (quarters, "Q4_1", (-4, 3))]
)
def test_blocks_as_the_package_makes_them(make, kind, powers, peer):
    from gguf import quants

    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 32)).astype("f4") * 10 ** rng.uniform(*powers, (500, 1))
    more = [np.zeros((1, 32)), np.ones((1, 32)), rng.integers(-127, 128, (200, 32)) / 2]
    values = np.concatenate([values, *more]).astype("f4")
    expected = quants.quantize(values, getattr(peer.GGMLQuantizationType, kind))
    np.testing.assert_array_equal(make(values), expected)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-37, 1e-30, 3e-6])
def test_eighths_of_the_smallest(size):
    """Where a scale is no number of float16 the block is zeros: never infinite, nor a warning."""
    x = np.array([[size, -size, *[0.0] * 30]], "f4")
    again = BLOCKS["Q8_0"].decode(eighths(x))
    assert np.abs(again - x).max() <= max(size, 2**-25 * 127)


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=32, max_size=32))
def test_blocks_are_near(values):
    """Half a step, and what scale and minimum are rounded by, of which small ones have less."""
    x = np.array([values], "f4")
    step = np.abs(x).max() / 127
    again = BLOCKS["Q8_0"].decode(eighths(x))
    assert np.abs(again - x).max() <= step / 2 + 127 * (step * 2**-11 + 2**-25) + 1e-12
    step = (x.max() - x.min()) / 15
    again = BLOCKS["Q4_1"].decode(quarters(x))
    rounded = 15 * (step * 2**-11 + 2**-25) + np.abs(x.min()) * 2**-11 + 2**-25
    assert np.abs(again - x).max() <= step / 2 * 1.001 + rounded


def test_blocks_are_given_as_they_lie(path):
    raw = np.random.default_rng(0).integers(0, 256, (3, 2, 20), np.uint8)
    plain = np.ones((2, 32), "f4")
    sources = [
        Source("w", (3, 64), np.dtype("u1"), lambda: raw, lambda: [raw], "Q4_1"),
        Source("x", plain.shape, plain.dtype, lambda: plain),
    ]
    write_gguf(path, sources)
    with open_state(path) as reader:
        assert reader.entries["w"].kind == "Q4_1"
        np.testing.assert_array_equal(reader.blocks("w"), raw)
        assert reader.blocks("x") is None
        with pytest.raises(errors.UnknownNameError):
            reader.blocks("y")
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(raw.tobytes()) + 7] ^= 1
    path.write_bytes(damaged)
    with open_state(path) as reader, pytest.raises(errors.ChecksumError):
        reader.blocks("w")


# -- whole files ----------------------------------------------------------------------------------


def test_what_the_package_wrote(path, peer):
    from gguf import quants

    rng = np.random.default_rng(2)
    writer = peer.GGUFWriter(path, "llama")
    values = {
        "llama.block_count": ("uint32", 2), "llama.rope.freq_base": ("float32", 1e4),
        "yes": ("bool", True), "name": ("string", "ä word"), "tokens": ("array", ["a", "b", ""]),
        "types": ("array", [1, 2, 3]), "long": ("int64", -(2**40)),
    }  # fmt: skip
    for key, (kind, value) in values.items():
        getattr(writer, f"add_{kind}")(key, value)
    expected = {"a.weight": rng.standard_normal((3, 64)).astype("f4")}
    expected["a.half"] = rng.standard_normal(5).astype("f2")
    for name, array in expected.items():
        writer.add_tensor(name, array)
    kind = peer.GGMLQuantizationType.Q4_1
    packed = quants.quantize(rng.standard_normal((4, 2, 64)).astype("f4"), kind)
    writer.add_tensor("blk.0", packed, raw_dtype=kind)
    expected["blk.0"] = quants.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_state(path) as reader:
        assert (reader.format, reader.entries["blk.0"].kind) == ("gguf", "Q4_1")
        expect_same_state(dict(reader), expected)
        found = reader.values
    assert found["general.architecture"] == "llama"
    assert found["llama.block_count"].dtype == np.uint32
    assert found["yes"] is True
    for key, (_, value) in values.items():
        assert same(found[key], value), key


VALUES = {
    "general.architecture": "llama", "n": 7, "negative": -3, "long": 2**40, "deep": -(2**40),
    "x": 0.5, "yes": True, "no": False, "u1": np.uint8(3), "f8": np.float64(0.1),
    "words": ["a", "ü", ""], "ids": [1, -2], "floats": [0.5, 2.0],
    "truths": np.array([True, False]), "types": np.arange(3, dtype="u2"), "none": [],
    "lists": [["a"], ["b", "c"]],
}  # fmt: skip


def write(path, state, **options):
    FORMATS["gguf"].write(path, state, **options)


def test_what_the_package_reads(path, peer):
    from gguf import quants

    rng = np.random.default_rng(3)
    state = {
        "a": rng.standard_normal((4, 96)).astype("f4"), "b": rng.standard_normal(96).astype("f4"),
        "c": rng.standard_normal((3, 40)).astype("f4"), "n": np.arange(6, dtype="i4"),
    }  # fmt: skip
    values = {key: value for key, value in VALUES.items() if key not in ("none", "lists")}
    write(path, state, dtype="q8_0", values=values)
    found = peer.GGUFReader(path)
    assert [t.tensor_type.name for t in found.tensors] == ["Q8_0", "F32", "F32", "I32"]
    read = read_state(path)
    for each in found.tensors:
        expected = quants.dequantize(each.data, each.tensor_type) if each.name != "n" else each.data
        np.testing.assert_array_equal(read[each.name], expected)
    np.testing.assert_array_equal(read["b"], state["b"])
    np.testing.assert_array_equal(read["c"], state["c"])
    for key, value in values.items():
        assert np.array_equal(found.get_field(key).contents(), value), key


def same(one, other):
    """Equal, lists by their members."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


def test_values_come_back(path):
    write(path, {"w": FOUR}, values=VALUES)
    with open_state(path) as reader:
        found = reader.values
    assert list(found) == list(VALUES)
    write(path, {"w": FOUR}, values=found)
    with open_state(path) as reader:
        for key, value in reader.values.items():
            assert same(found[key], VALUES[key]), key
            assert type(value) is type(found[key])
            assert same(value, found[key]), key


def test_texts_that_are_no_text_come_back(path):
    """As tokens of single bytes are, in some files."""
    path.write_bytes(gguf_file(values=[("a", 8, gguf_text(b"\xff\xfe"))]))
    with open_state(path) as reader:
        values = reader.values
        assert reader.metadata["a"] == "??"
    write(path, {}, values=values)
    assert gguf_text(b"\xff\xfe") in path.read_bytes()


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", "float16"), ("bfloat16", "BF16"), ("q8_0", "Q8_0")]
)
def test_arrays_of_one_axis_stay_wide(path, dtype, kind):
    state = {"w": np.ones((2, 32), "f4"), "b": np.full(32, 1 / 3, "f4")}
    write(path, state, dtype=dtype)
    with open_state(path) as reader:
        assert reader.read("b").tobytes() == state["b"].tobytes()
        assert (reader.entries["w"].kind or str(reader.entries["w"].dtype)) == kind
        np.testing.assert_allclose(reader.read("w"), state["w"], rtol=1e-3)


def test_what_came_in_blocks_goes_out_with_the_same_bits(path, tmp_path):
    """Eighths of eighths: the largest of each is 127 steps, so the scale comes out again."""
    w = np.random.default_rng(5).standard_normal((8, 64)).astype("f4")
    write(path, {"w": w}, dtype="q8_0")
    write(tmp_path / "again.gguf", {"w": read_state(path)["w"]}, dtype="q8_0")
    with open_state(path) as one, open_state(tmp_path / "again.gguf") as other:
        assert one.entries == other.entries


def test_tools(path, tmp_path):
    state = {"w": np.ones((2, 32), "f4"), "n": np.arange(3, dtype="i4")}
    write(path, state, dtype="q8_0", values={"general.name": "mine", "tokens": ["a", "b"]})
    shown = inspect(path)
    assert "general.name: mine" in shown
    assert "tokens: 2 of texts" in shown
    convert(path, tmp_path / "m.safetensors")
    assert diff(path, tmp_path / "m.safetensors").equal
    convert(tmp_path / "m.safetensors", tmp_path / "n.gguf")
    assert diff(tmp_path / "n.gguf", path).equal


BOUND = r"numbers below 8,319,008.*"
VALUELESS = [None, {}, 2**70, [1, "a"], [2**70], b"x", np.array([1j]), 1j]


@pytest.mark.parametrize(
    ("state", "more", "message"),
    [
        ({"w": np.ones((1,) * 5, "f4")}, {}, "up to 4 axes"),
        ({"w": np.ones(2, bool)}, {}, "a type among"),
        ({"w" * 64: FOUR}, {}, "at most 63 bytes; received 64"),
        ({"w": np.full((1, 32), np.nan, "f4")}, {"dtype": "q8_0"}, f"{BOUND}nan"),
        ({"w": np.full((1, 32), 1e7, "f4")}, {"dtype": "q8_0"}, f"{BOUND}10000000"),
        *(({"w": FOUR}, {"dtype": kind}, "'bfloat16', 'q8_0', or a dict.*received '[qQ]")
          for kind in ("q4_0", {"w": "Q8_0"})),
        *(({}, {"values": {"a": value}}, "value 'a'") for value in VALUELESS),
    ],
)  # fmt: skip
def test_what_cannot_be_written(path, state, more, message):
    with pytest.raises(errors.ArgumentError, match=message):
        write(path, state, **more)
    assert not path.exists()


def test_read_a_piece_at_a_time(path):
    """Of more than one run, and two arrays in turns."""
    rng = np.random.default_rng(6)
    state = {name: rng.standard_normal((3000, 1024)).astype("f4") for name in "ab"}
    write(path, state, dtype="q8_0")
    with open_state(path) as reader:
        runs = list(zip(reader.pieces("a"), reader.pieces("b"), strict=True))
        assert len(runs) > 2
        for name, parts in zip("ab", zip(*runs, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), reader.read(name))
            out = np.empty((1024, 3000), "f4").T
            reader.read_into(name, out)
            np.testing.assert_array_equal(out, reader.read(name))


@pytest.mark.full
@pytest.mark.skipif(not SMOLLM2.exists(), reason="no published file here: set SINGANET_GGUF")
def test_a_published_model(peer):
    from gguf import quants

    with open_state(SMOLLM2) as reader:
        for each in peer.GGUFReader(SMOLLM2).tensors:
            expected = quants.dequantize(each.data, each.tensor_type)
            np.testing.assert_array_equal(reader.read(each.name), expected)


def test_every_type_in_one_file(path):
    path.write_bytes(gguf_of_all_types())
    with open_state(path) as reader:
        assert [name[2:] for name in reader.entries] == list(BLOCKS)
        assert all(array.shape == (3, 2 * BLOCKS[name[2:]].elements) for name, array in reader)
        assert reader.values["words"] == ["a", "", "ü"]


# -- rows of queries and keys ---------------------------------------------------------------------


def test_rows_in_pairs():
    rows = np.arange(16).reshape(8, 2)
    np.testing.assert_array_equal(interleaved(rows, 2)[:, 0] // 2, [0, 2, 1, 3, 4, 6, 5, 7])
    np.testing.assert_array_equal(halved(interleaved(rows, 2), 2), rows)
    np.testing.assert_array_equal(interleaved(np.arange(6), 1), [0, 3, 1, 4, 2, 5])
    for heads in (0, 3, 8):
        with pytest.raises(errors.ShapeError, match="heads of an even number of rows"):
            interleaved(rows, heads)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_versions_that_are_read_and_an_alignment_of_its_own(path, version):
    for data in (FOUR.tobytes(), PADDED):
        path.write_bytes(gguf_file(W, data=data, version=version))
        np.testing.assert_array_equal(read_state(path)["w"], FOUR)
    values = [("general.alignment", 4, struct.pack("<I", 8))]
    tensors = [*W, gguf_tensor("v", (2,), offset=16)]
    data = FOUR.tobytes() + FOUR[:2].tobytes()
    path.write_bytes(gguf_file(tensors, values, data, version, align=8))
    np.testing.assert_array_equal(read_state(path)["v"], FOUR[:2])


def test_many_values(path):
    """Lists of small texts cost their memory before they are made."""
    count = 3_000_000
    path.write_bytes(gguf_file(values=[("a", 9, struct.pack("<IQ", 8, count) + bytes(8 * count))]))
    with pytest.raises(errors.FileFormatError, match="bytes of memory|parts"):
        open_state(path)


def test_a_type_that_was_changed(path):
    """Blocks of as many bytes would be other numbers."""
    write_state(path, {"w": np.ones(8, "f2")})
    raw = path.read_bytes()
    at = raw.index(gguf_text("w") + struct.pack("<IQ", 1, 8)) + 9 + 12
    assert raw[at] == 1
    path.write_bytes(raw[:at] + bytes([30]) + raw[at + 1 :])
    with pytest.raises(errors.FileFormatError, match="a table with the stored checksum"):
        open_state(path)
