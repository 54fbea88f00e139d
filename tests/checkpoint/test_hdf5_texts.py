"""Texts of variable length, read beside libhdf5: what h5py writes, and what no one should."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest

from singanet.checkpoint.hdf5_guard import Texts, hdf5_errors
from singanet.errors import FileFormatError
from tests.kit.files import flipped


def read(path, group="/", key="names"):
    with hdf5_errors("here"), h5py.File(path) as file, path.open("rb") as stream:
        count = int(np.prod(file[group].attrs.get_id(key).shape))
        return Texts(file, stream, path.stat().st_size).read(file[group], key, count)


def write(path, names, libver="earliest", **options):
    with h5py.File(path, "w", libver=libver, **options) as file:
        file.attrs["before"] = np.arange(5)
        file.attrs["names"] = np.array(names, h5py.string_dtype())
        file.attrs["after"] = "text"


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    "names",
    [["a"], ["kernel", "", "größe", "x" * 1000], [f"layer{i}/weight" for i in range(3000)]],
)
def test_what_h5py_writes(tmp_path, libver, names):
    write(tmp_path / "m.h5", names, libver)
    assert read(tmp_path / "m.h5") == names


def test_one_text_without_an_axis(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.attrs["names"] = "one"
    assert read(tmp_path / "m.h5") == ["one"]


def test_a_user_block_and_a_group_with_many_attributes(tmp_path):
    """So many that the header goes on elsewhere, twice."""
    with h5py.File(tmp_path / "m.h5", "w", userblock_size=1024) as file:
        group = file.create_group("a/b")
        for index in range(60):
            group.attrs[f"k{index}"] = np.array([f"v{index}", "w" * index], h5py.string_dtype())
    for index in (0, 7, 59):
        expected = [f"v{index}", "w" * index]
        assert read(tmp_path / "m.h5", "a/b", f"k{index}") == expected


def test_attributes_outside_the_header(tmp_path):
    """More than eight in a new file stand in a heap of another kind: refused, not misread."""
    with h5py.File(tmp_path / "m.h5", "w", libver="latest") as file:
        for index in range(20):
            file.attrs[f"k{index}"] = np.array(["v"], h5py.string_dtype())
    with pytest.raises(FileFormatError, match="'k3' is not in its object's header"):
        read(tmp_path / "m.h5", key="k3")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.full
def test_every_byte_changed_gives_memory_to_no_claim(tmp_path, libver):
    """Lengths among them: libhdf5 allots what one claims, up to 4 GB."""
    path = tmp_path / "m.h5"
    write(path, ["kernel", "bias"], libver)
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")
    changed = [i for i in range(len(whole)) if i < 1024 or abs(i - heap) < 64]
    outcomes = set()
    for at in changed:
        path.write_bytes(flipped(whole, at, 0xC8))
        try:
            outcomes.add(max(map(len, read(path))) < 4096)
        except FileFormatError:
            outcomes.add("refused")
    assert outcomes == {True, "refused"}


@pytest.mark.parametrize("claim", [2**64 - 16, 2**63, 4097, 15, 0])
def test_a_heap_of_another_size(tmp_path, claim):
    path = tmp_path / "m.h5"
    write(path, ["kernel", "bias"])
    raw = bytearray(path.read_bytes())
    at = raw.index(b"GCOL") + 8
    raw[at : at + 8] = claim.to_bytes(8, "little")
    path.write_bytes(raw)
    if claim == 4097 and len(raw) >= raw.index(b"GCOL") + 4097:
        assert read(path) == ["kernel", "bias"]
    else:
        with pytest.raises(FileFormatError, match="heap of strings"):
            read(path)


def test_many_names_for_the_same_bytes(tmp_path):
    """4,000 references to one long text would be many times the file."""
    path = tmp_path / "m.h5"
    write(path, ["x" * 3000] + [""] * 3999)
    raw = path.read_bytes()
    at = raw.index(struct.pack("<LQL", 3000, raw.rindex(b"GCOL"), 1))
    first = raw[at : at + 16]
    path.write_bytes(raw[:at] + first * 4000 + raw[at + 16 * 4000 :])
    with pytest.raises(FileFormatError, match="a string of 3000 bytes in"):
        read(path)
