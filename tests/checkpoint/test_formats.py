"""Which format opens and writes which file; checksums, bfloat16, SINGA's schema, and memory."""

from __future__ import annotations

import os
import pickle
import zlib
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, layers
from singanet.base import files as flushing
from singanet.checkpoint import core_pb2, entry, open_state, write_state
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.checkpoint.entry import Checksum, ChecksumThread
from singanet.checkpoint.halves import narrow, widen
from singanet.errors import (
    ArgumentError,
    FileAccessError,
    FileFormatError,
    StateMismatchError,
    UnknownNameError,
)
from singanet.onnx import onnx_pb2
from singanet.saving import net_pb2
from tests.checkpoint.format_case import ALLOWED, BESIDE, LARGEST
from tests.kit.files import checksum_by_hand, names_in, read_state
from tests.mutation.watching import Peak

# -- files ----------------------------------------------------------------------------------------


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path, folder = tmp_path / "x.bin", tmp_path / "m.npz"
    for start in (b"", b"sg", b"sgx", b"\x89HDF\r\n\x1a\n", b"PK\3\4", b"\x80\2", b"text"):
        path.write_bytes(start)
        with pytest.raises(FileFormatError, match="x.bin"):
            read_state(path)
    folder.mkdir()
    for call, told in (
        (lambda: open_state(tmp_path / "m"), "No such file"),
        (lambda: write_state(folder, {"x": np.ones(2)}), r"m\.npz"),
        (lambda: open_state(folder), "received a folder"),
    ):
        with pytest.raises(FileAccessError, match=told):
            call()
    with pytest.raises(UnknownNameError, match="'hdf6'.*did you mean 'hdf5'"):
        write_state(tmp_path / "m", {}, format="hdf6")
    with pytest.raises(UnknownNameError, match="argument format"):
        open_state(tmp_path / "m", format="zip")


@pytest.mark.parametrize("path", ["", ".", "..", "a/", "a/..", "a\0b", b"bytes", None, 3, ["m"]])
def test_paths_of_no_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (lambda: write_state(path, {"x": np.ones(1)}), lambda: open_state(path)):
        with pytest.raises(ArgumentError, match="argument f: expected (a path|the path of a file)"):
            call()
    assert names_in(tmp_path) == []


def test_an_error_of_the_writer_comes_before_one_of_its_flushes(tmp_path):
    if not hasattr(os, "fdatasync"):
        pytest.skip("this system has no fdatasync")
    with pytest.raises(KeyError, match="mine"), flushing.flushed_meanwhile(tmp_path / "gone"):
        raise KeyError("mine")


# -- checksums ------------------------------------------------------------------------------------


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


# -- bfloat16 -------------------------------------------------------------------------------------


def test_every_word_of_bfloat16_comes_back():
    """NaN's payloads as well: what came as bfloat16 goes out with its bits."""
    words = np.arange(1 << 16, dtype="u2").reshape(256, 256)
    np.testing.assert_array_equal(narrow(widen(words)), words)


def test_rounding_as_pytorch_does():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype="u4")
    ties = (rng.integers(0, 1 << 16, 1000, dtype="u4") << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view("f4")
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    number = ~np.isnan(values)
    np.testing.assert_array_equal(narrow(values)[number], expected[number])
    assert np.isnan(widen(narrow(values)[~number])).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_nearest(value):
    """No other word is nearer, and of two as near the even one is taken."""
    x = np.float32(value)
    (word,) = narrow(np.array([x]))
    near = np.array([max(int(word) - 1, 0), word, min(int(word) + 1, 0xFFFF)], "u2")
    gaps = [abs(float(y) - float(x)) for y in widen(near) if np.isfinite(y)]
    gap = abs(float(widen(near)[1]) - float(x))
    if np.isfinite(gap):
        assert gap == min(gaps)
        assert gaps.count(gap) == 1 or word % 2 == 0 or near[0] == near[1] or near[1] == near[2]


# -- schemas --------------------------------------------------------------------------------------

SCHEMAS = [("checkpoint/core", core_pb2), ("saving/net", net_pb2), ("onnx/onnx", onnx_pb2)]


@pytest.mark.parametrize(("schema", "generated"), SCHEMAS)
def test_the_generated_code_is_that_of_the_schema(schema, generated, tmp_path):
    why = "generates from the schema: pip install grpcio-tools"
    protoc = pytest.importorskip("grpc_tools.protoc", reason=why)
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    root, out = Path(singanet.__file__).parent.parent, tmp_path / "schema.desc"
    source = root / f"singanet/{schema}.proto"
    assert protoc.main(["protoc", f"-I{root}", f"--descriptor_set_out={out}", str(source)]) == 0
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    ours = descriptor_pb2.FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb)
    # json_name is filled in by one way of compiling only.
    messages = list(compiled.message_type)
    for message in messages:
        messages += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    assert ours == compiled


def test_the_fields_are_singas():
    """What we add is far from what SINGA may add."""
    fields = TensorProto.DESCRIPTOR.fields
    singas = {f.name: (f.number, f.GetOptions().packed) for f in fields if f.number <= 7}
    assert singas == {
        "shape": (1, False), "data_type": (2, False), "stride": (3, False),
        "float_data": (4, True), "double_data": (5, True), "int_data": (6, True),
        "bytes_data": (7, False),
    }  # fmt: skip
    assert min(field.number for field in fields if field.number > 7) > 1000
    kinds = ["kFloat32", "kFloat16", "kInt", "kChar", "kDouble", "kUChar"]
    assert dict(core_pb2.DataType.items()) == {kind: k for k, kind in enumerate(kinds)}


# -- memory, of files that others wrote, and of whole nets ----------------------------------------


PACKED = ["zeros.npz", "fortran.npz", "swapped.npz", "old.pickle"]


@pytest.mark.parametrize(
    "name", ["gzip.h5", *(pytest.param(name, marks=pytest.mark.full) for name in PACKED)]
)
def test_reading_what_others_wrote(tmp_path, peak, name):
    """Packed, in another order, and with every byte spelled as an escape."""
    array, path = np.ones((1024, LARGEST // 4096), "f4", order="F"), tmp_path / name
    several = {f"a{i}": array for i in range(3)}
    if name == "gzip.h5":
        with h5py.File(path, "w") as file:
            for key, each in several.items():
                file.create_dataset(key, data=each[:512], compression="gzip")
    elif name == "zeros.npz":
        np.savez_compressed(path, **{key: np.zeros_like(each) for key, each in several.items()})
    elif name.endswith(".npz"):
        kind = ">f4" if name == "swapped.npz" else "f4"
        np.savez(path, **{key: each.astype(kind) for key, each in several.items()})
    else:
        state = {f"a{i}": array[:, : 1 << 9].copy() for i in range(5)}
        path.write_bytes(pickle.dumps(state, 0))
    del several
    peak()
    with open_state(path) as reader:
        for _, read in reader:
            del read
    assert peak() <= ALLOWED


def system_peak(task):
    """What the system gave ``task`` beyond what was there, libhdf5's memory included."""
    peak = Peak()
    peak.start()
    task()
    return peak.bytes()


FILES = ["m", "m.pickle", "m.h5", "m.npz", "m.safetensors", "m.weights.h5", "legacy"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.full
def test_a_net(tmp_path, name):
    """Its parameters are there before and after; what else there is of 100 MB is extra."""
    format, sizes = "keras-legacy" if name == "legacy" else None, (1024, LARGEST // 4096, 1024) * 3
    net = FeedForwardNet([layers.Dense(f"d{k}", w, use_bias=False) for k, w in enumerate(sizes)])
    net.build((1024,))
    net.save(tmp_path / f"warm{name}", format=format)
    assert system_peak(lambda: net.save(tmp_path / name, format=format)) <= BESIDE
    assert system_peak(lambda: net.load(tmp_path / name)) <= ALLOWED


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["m.npz", "m.h5"])
def test_what_a_net_has_not_is_not_unpacked(tmp_path, peak, name, strict):
    """An array of another name, and one of another shape in the place of a weight."""
    net = FeedForwardNet([layers.Dense("a", 3, input_sample_shape=(4,))], seed=0)
    zeros = np.zeros(LARGEST // 4, "f4")
    state = {"a/weight": zeros, "other/weight": zeros}
    if name == "m.npz":
        np.savez_compressed(tmp_path / name, **state)
    else:
        with h5py.File(tmp_path / name, "w") as file:
            for key, array in state.items():
                file.create_dataset(key, data=array, compression="gzip", chunks=(1 << 18,))
    peak()
    with pytest.raises(StateMismatchError) if strict else nullcontext():
        net.load(tmp_path / name, strict=strict)
    assert peak() < LARGEST
