from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import ChecksumError, FileFormatError, UnsafeFileError, VersionError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def read_all(path):
    with open_state(path) as reader:
        return dict(reader)


def npy(array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as packed:
        for name, content in members:
            packed.writestr(name, content)


def test_numpy_reads_what_we_write(path, state):
    write_state(path, state)
    with np.load(path) as found:
        assert found.files == list(state)
        for name, array in state.items():
            assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_what_numpy_writes(path, assert_same, save):
    state = {
        "x": np.arange(6, dtype=">f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
        "none": np.zeros((0, 3), "f2"),
        "one": np.array(7, "u8"),
        "flags": np.array([True, False]),
    }
    save(path, **state)
    assert_same(read_all(path), state)


def test_the_same_state_makes_the_same_file(path, tmp_path, state):
    write_state(path, state)
    write_state(tmp_path / "again.npz", state)
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_without_a_bound(path, method):
    archive(path, [("x.npy", npy(np.ones(2)))], method)
    with pytest.raises(UnsafeFileError, match="stored or deflated"):
        read_all(path)


def test_a_zip_bomb(path):
    header = npy(np.zeros(0, "u1")).replace(b"(0,)", b"(1000000000000,)", 1)
    archive(path, [("x.npy", header + bytes(10_000_000))], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 20_000
    with pytest.raises(FileFormatError, match="array 'x'"):
        read_all(path)


def test_the_last_record_of_a_long_archive_lies_where_zipfile_looks(path):
    np.savez(path, a=np.ones(3))
    raw = path.read_bytes()
    at = raw.rfind(b"PK\5\6")
    *_, size, start, _ = struct.unpack("<4s4H2LH", raw[at:])
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, start)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    for place in (at, 0):
        path.write_bytes(raw[:at] + record + struct.pack("<4sLQL", b"PK\6\7", 0, place, 1) + end)
        if place:
            with open_state(path) as reader:
                assert list(reader.entries) == ["a"]
        else:
            with pytest.raises(FileFormatError, match="elsewhere"):
                open_state(path)


def test_a_forged_size(path):
    archive(path, [("x.npy", npy(np.ones(1000)))], zipfile.ZIP_DEFLATED)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\1\2") + 24
    raw[at : at + 4] = struct.pack("<L", 1 << 31)
    path.write_bytes(raw)
    with pytest.raises(UnsafeFileError, match=r"'x\.npy', which claims 2147483648"):
        read_all(path)


def test_members_over_one_another(path):
    """Many names for the same packed bytes: small on disk, large when read."""
    archive(path, [("a.npy", npy(np.zeros(100_000)))], zipfile.ZIP_DEFLATED)
    raw = path.read_bytes()
    start, end = raw.index(b"PK\1\2"), raw.index(b"PK\5\6")
    table = b"".join(raw[start:end].replace(b"a.npy", b"%c.npy" % (97 + i)) for i in range(20))
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 20, 20, len(table), start, 0)
    path.write_bytes(raw[:start] + table + tail)
    with pytest.raises(FileFormatError):
        read_all(path)


@pytest.mark.parametrize(
    "content",
    [
        npy(np.array([object()])),
        npy(np.array(["a"])),
        b"",
        b"text",
        npy(np.ones(3))[:-1],
        npy(np.ones(3)) + b"x",
    ],
    ids=["object", "text", "empty", "no array", "short", "long"],
)
def test_members_that_are_no_arrays(path, content):
    archive(path, [("x.npy", content)])
    with pytest.raises(FileFormatError, match="array 'x'"):
        read_all(path)


@pytest.mark.parametrize(
    "name", ["../x.npy", "/x.npy", "a//b.npy", "a/./b.npy", "\n.npy", "n" * 5000]
)
def test_names_that_are_none(path, name):
    archive(path, [(name, npy(np.ones(1)))])
    with pytest.raises(FileFormatError, match="names of 1 to 4096"):
        read_all(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice(path):
    archive(path, [("x.npy", npy(np.ones(1))), ("x.npy", npy(np.ones(1)))])
    with pytest.raises(FileFormatError, match="'x' twice"):
        read_all(path)


@pytest.mark.parametrize(
    "shape", [b"(-1,)", b"(99999999999999999,)", b"(1, " * 40, b"(2, 4611686018427387904)"]
)
def test_claims_about_shape(path, shape):
    content = npy(np.ones(8, "u1")).replace(b"(8,)", shape, 1)
    archive(path, [("x.npy", content)])
    with pytest.raises(FileFormatError, match="array 'x'"):
        read_all(path)


def test_a_newer_format(path, state):
    write_state(path, state)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"singanet_format=1", b"singanet_format=2"))
    with pytest.raises(VersionError, match="received format version 2"):
        read_all(path)


@pytest.mark.parametrize(
    ("member", "advice"),
    [("model.weights.h5", "load_model"), ("archive/data.pkl", "state_dict")],
)
def test_archives_of_others(path, member, advice):
    """Keras' and PyTorch's are zip files too."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr(member, b"...")
    with pytest.raises(FileFormatError, match=f"an archive of .npy arrays.*{member}.*{advice}"):
        read_all(path)


@pytest.mark.parametrize(("old", "new"), [(b"PK\3\4", b"PK\3\5"), (b"x.npy", b"y.npy")])
def test_a_member_that_is_not_where_the_table_has_it(path, old, new):
    archive(path, [("x.npy", npy(np.ones(3)))])
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(FileFormatError, match="array 'x'.*at its place in the table"):
        read_all(path)


@pytest.mark.parametrize("place", [-1, 30])
def test_stored_members_have_their_checksum(path, place):
    """That of the header counts, too: a space less is still one."""
    array = np.ones(3)
    raw = bytearray(npy(array))
    archive(path, [("x.npy", bytes(raw))])
    whole = bytearray(path.read_bytes())
    start = whole.index(bytes(raw))
    at = start + (len(raw) - 1 if place < 0 else raw.index(b"  \n"))
    whole[at] = whole[at] ^ 1 if place < 0 else ord("\t")
    path.write_bytes(whole)
    with pytest.raises(ChecksumError, match="array 'x'"):
        read_all(path)
