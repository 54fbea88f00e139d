from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import ChecksumError, UnsafeFileError, VersionError
from tests.checkpoint.format_case import FormatCase, small_state
from tests.kit.files import expect_refused, expect_same_state, npy, read_state, zip_file

THREE = zip_file(("x.npy", npy(np.ones(3))))
PACKED = zip_file(("x.npy", npy(np.ones(1000))), method=zipfile.ZIP_DEFLATED)
NO_ARRAYS = [
    npy(np.array([object()])), npy(np.array(["a"])), b"", b"text",
    npy(np.ones(3))[:-1], npy(np.ones(3)) + b"x",
]  # fmt: skip
NO_NAMES = ["../x.npy", "/x.npy", "a//b.npy", "a/./b.npy", "\n.npy", "n" * 5000]
SHAPES = [b"(-1,)", b"(99999999999999999,)", b"(1, " * 40, b"(2, 4611686018427387904)"]
EIGHT = npy(np.ones(8, "u1"))


def forged_size():
    """A member of 1,000 numbers that claims 2 GB."""
    at = PACKED.index(b"PK\1\2") + 24
    return PACKED[:at] + struct.pack("<L", 1 << 31) + PACKED[at + 4 :]


def bomb():
    """Zeros that claim a terabyte and pack to kilobytes."""
    header = npy(np.zeros(0, "u1")).replace(b"(0,)", b"(1000000000000,)", 1)
    raw = zip_file(("x.npy", header + bytes(10_000_000)), method=zipfile.ZIP_DEFLATED)
    assert len(raw) < 20_000
    return raw


def overlapping():
    """Many names for the same packed bytes: small on disk, large when read."""
    raw = zip_file(("a.npy", npy(np.zeros(100_000))), method=zipfile.ZIP_DEFLATED)
    start, end = raw.index(b"PK\1\2"), raw.index(b"PK\5\6")
    table = b"".join(raw[start:end].replace(b"a.npy", b"%c.npy" % (97 + i)) for i in range(20))
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 20, 20, len(table), start, 0)
    return raw[:start] + table + tail


def twice():
    """An archive with one name for two members."""
    return zip_file(("x.npy", npy(np.ones(1))), ("y.npy", npy(np.ones(1)))).replace(b"y.n", b"x.n")


class TestNpz(FormatCase):
    name = "npz"
    suffix = ".npz"
    forged = [
        *((zip_file(("x.npy", EIGHT), method=method), "stored or deflated", UnsafeFileError)
          for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
        (bomb(), "array 'x'"),
        (forged_size(), r"'x\.npy', which claims 2147483648", UnsafeFileError),
        (overlapping(), ""),
        *((zip_file(("x.npy", content)), "array 'x'") for content in NO_ARRAYS),
        *((zip_file(("x.npy", EIGHT.replace(b"(8,)", shape, 1))), "array 'x'") for shape in SHAPES),
        *((zip_file((name, EIGHT)), "names of 1 to 4096") for name in NO_NAMES),
        (twice(), "'x' twice"),
        *((THREE.replace(old, new, 1), "array 'x'.*at its place in the table")
          for old, new in ((b"PK\3\4", b"PK\3\5"), (b"x.npy", b"y.npy"))),
        # Keras' and PyTorch's are zip files too.
        *((zip_file(("config.json", b"{}"), (member, b"...")),
           f"an archive of .npy arrays.*{member}.*{advice}")
          for member, advice in (("model.weights.h5", "load_model"),
                                 ("archive/data.pkl", "state_dict"))),
    ]  # fmt: skip

    def named(self, path, name):
        if "\0" in name or len(name) > 65_000:
            return False  # zipfile ends a name at zero, and none has over 65,535 bytes
        path.write_bytes(zip_file((name + ".npy", npy(np.ones(2, "f4")))))
        return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def test_numpy_reads_what_we_write(path, tmp_path):
    write_state(path, small_state())
    with np.load(path) as found:
        assert found.files == list(small_state())
        for name, array in small_state().items():
            assert found[name].tobytes() == array.tobytes()
    write_state(tmp_path / "again.npz", small_state())
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_what_numpy_writes(path, save):
    state = {
        "x": np.arange(6, dtype=">f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
        "none": np.zeros((0, 3), "f2"),
        "one": np.array(7, "u8"),
        "flags": np.array([True, False]),
    }
    save(path, **state)
    expect_same_state(read_state(path), state)


def test_the_last_record_of_a_long_archive_lies_where_zipfile_looks(path):
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    raw = stream.getvalue()
    at = raw.rfind(b"PK\5\6")
    *_, size, start, _ = struct.unpack("<4s4H2LH", raw[at:])
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, start)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    for place in (at, 0):
        path.write_bytes(raw[:at] + record + struct.pack("<4sLQL", b"PK\6\7", 0, place, 1) + end)
        if place:
            assert list(read_state(path)) == ["a"]
        else:
            expect_refused(lambda: open_state(path), "elsewhere")


def test_a_newer_format(path):
    write_state(path, small_state())
    path.write_bytes(path.read_bytes().replace(b"singanet_format=1", b"singanet_format=2"))
    expect_refused(lambda: read_state(path), "received format version 2", VersionError)


@pytest.mark.parametrize("place", [-1, 30])
def test_stored_members_have_their_checksum(path, place):
    """That of the header counts, too: a space less is still one."""
    raw = npy(np.ones(3))
    whole = bytearray(THREE)
    start = whole.index(raw)
    at = start + (len(raw) - 1 if place < 0 else raw.index(b"  \n"))
    whole[at] = whole[at] ^ 1 if place < 0 else ord("\t")
    path.write_bytes(whole)
    with pytest.raises(ChecksumError, match="array 'x'"):
        read_state(path)
