"""Names that no array may carry, in files that others wrote: every format refuses them."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile

import h5py
import numpy as np
import pytest

from singanet.checkpoint import open_state
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.errors import FileFormatError

ARRAY = np.ones(2, "f4")
HOSTILE = {
    "up": "../w",
    "up later": "a/../w",
    "up at the end": "a/..",
    "root": "/w",
    "here": "./w",
    "nul": "a\0b",
    "line": "a\nb",
    "4097": "n" * 4097,
    "10 MB": "n" * (10 << 20),
}


def snapshot(path, name):
    value = TensorProto(shape=[2], data_type=0, float_data=[1, 1]).SerializeToString()
    raw = name.encode()
    start = b"sg\1\0" + struct.pack("<Q", len(raw)) + raw
    path.write_bytes(start + struct.pack("<Q", len(value)) + value)


def pickled(path, name):
    path.write_bytes(pickle.dumps({name: ARRAY}, 2))


def safetensors(path, name):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    table = json.dumps({name: entry}).encode()
    path.write_bytes(struct.pack("<Q", len(table)) + table + ARRAY.tobytes())


def npz(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        if "\0" in name:
            pytest.skip("zipfile ends a name there, writing and reading")
        try:
            with archive.open(name + ".npy", "w") as member:
                np.save(member, ARRAY)
        except struct.error:
            pytest.skip("a zip's names have at most 65,535 bytes")


def hdf5(path, name):
    with h5py.File(path, "w") as file:
        group, leaf = file.id, name.encode()
        if b"\0" in leaf:
            pytest.skip("libhdf5 ends a name there, writing and reading")
        *above, leaf = leaf.split(b"/")
        if leaf in (b"", b".") or b"" in above or b"." in above:
            pytest.skip("libhdf5 takes these for the group itself")
        for part in above:
            group = h5py.h5g.create(group, part)
        h5py.h5d.create(group, leaf, h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((2,)))


@pytest.mark.parametrize("write", [snapshot, pickled, safetensors, npz, hdf5])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names(tmp_path, write, kind):
    path = tmp_path / "m.x"
    write(path, HOSTILE[kind])
    with pytest.raises(FileFormatError, match=r"m\.x") as caught, open_state(path) as reader:
        list(reader)
    assert len(str(caught.value)) < 500  # the name itself is not repeated at length
    assert [each.name for each in tmp_path.iterdir()] == ["m.x"]


@pytest.mark.parametrize("write", [snapshot, pickled, safetensors, npz, hdf5])
@pytest.mark.parametrize("name", ["w", "größe/重み", "a b/c.d", "n" * 4000])
def test_names_that_are_fine(tmp_path, write, name):
    path = tmp_path / "m.x"
    write(path, name)
    with open_state(path) as reader:
        assert list(reader.entries) == [name]
