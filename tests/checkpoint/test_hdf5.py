"""HDF5 files: what h5py and Keras write, texts of variable length, and what is refused."""

from __future__ import annotations

import contextlib
import io
import struct
import time

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.hdf5 import walk
from singanet.checkpoint.hdf5_guard import Texts, hdf5_errors
from singanet.errors import FileFormatError, UnsafeFileError, VersionError
from tests.checkpoint.format_case import FormatCase, small_state
from tests.kit.files import expect_same_state, flipped, read_state


class TestHdf5(FormatCase):
    name = "hdf5"
    suffix = ".h5"
    step = 31  # its tables take kilobytes
    after = True  # it says where it ends
    nests = False

    def named(self, path, name):
        with h5py.File(path, "w") as file:
            group, leaf = file.id, name.encode()
            if b"\0" in leaf:
                return False  # libhdf5 ends a name there, writing and reading
            *above, leaf = leaf.split(b"/")
            if leaf in (b"", b".") or b"" in above or b"." in above:
                return False  # libhdf5 takes these for the group itself
            for part in above:
                group = h5py.h5g.create(group, part)
            h5py.h5d.create(group, leaf, h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((2,)))
        return True


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.h5"


def test_h5py_reads_what_we_write(path):
    write_state(path, small_state())
    with h5py.File(path) as file:
        assert file.attrs["singanet_format"] == 1
        for name, array in small_state().items():
            dataset = file[name]
            assert dataset[()].tobytes() == array.tobytes()
            assert (dataset.chunks, dataset.compression) == (None, None)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"},
        {"chunks": (7, 11)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", ["f4", ">f4", "f8", "i2", "?", "f2"])
def test_we_read_what_h5py_writes(path, rng, options, code):
    array = rng.integers(0, 2, (60, 50)).astype(code)
    with h5py.File(path, "w") as file:
        file.create_dataset("group/inner/x", data=array, **options)
        file["scalar"] = np.array(3, code)
        file.create_dataset("group/inner/none", shape=(0, 4), dtype=code)
    read = read_state(path)
    assert sorted(read) == ["group/inner/none", "group/inner/x", "scalar"]
    expect_same_state({"x": read["group/inner/x"]}, {"x": array})


def test_a_user_block_before_the_file(path):
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = np.arange(5.0)
    with open_state(path, "hdf5") as reader:
        expect_same_state(dict(reader), {"x": np.arange(5.0)})


def test_compact_and_bfloat16(path):
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_FLOAT, space, plist)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 3], "f4"))
        half = np.array([0x3F80, 0xC000], "<u2").view("V2")
        file.create_dataset("half", data=half).attrs["dtype"] = "bfloat16"
    read = read_state(path)
    assert read["compact"].tolist() == [1, 2, 3]
    assert read["half"].tolist() == [1.0, -2.0]
    assert read["half"].dtype == np.float32


def with_virtual(file):
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "y", (2,))
    file.create_virtual_dataset("x", layout)


def with_strange_filter(file):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (0, 2))
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, plist)


LARGE, ONES = (1 << 34,), np.ones(2)
NEVER_NEEDED = [
    (lambda f: f.create_dataset("x", (2,), "f4", external=[("m.secret", 0, 8)]),
     "data in another file"),
    (with_virtual, "virtual dataset"),
    (lambda f: f.update({"y": ONES, "x": h5py.SoftLink("/y")}), "a soft link called 'x'"),
    (lambda f: f.update(x=h5py.ExternalLink("other.h5", "/y")), "an external link called 'x'"),
    (lambda f: f.create_group("a/b").update(up=f["a"]), "a second link"),
    (lambda f: (f.update(x=ONES), f.update(y=f["x"])), "a second link"),
    (lambda f: f.create_dataset("x", LARGE, "f4", chunks=(1 << 20,), compression="gzip"),
     "68719476736 bytes claimed by 0"),
    (lambda f: f.create_dataset("x", LARGE, "f4"), "68719476736 bytes claimed by 0"),
    (with_strange_filter, "the filter 6"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), NEVER_NEEDED)
def test_what_reading_weights_never_needs(path, make, message):
    path.with_suffix(".secret").write_bytes(b"12345678")
    with h5py.File(path, "w") as file:
        make(file)
    with pytest.raises(UnsafeFileError, match=rf"m\.h5.*{message}"):
        read_state(path)


NOT_NUMBERS = ["text", np.array([b"abc"]), np.array([(1, 2)], "i4,f4"), np.array([1j]),
               h5py.Empty("f4")]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f: f.create_group("/".join("g" * 300)), FileFormatError, "at most 200 nested leve"),
        *((lambda f, value=value: f.update(x=value), FileFormatError, "array 'x'")
          for value in NOT_NUMBERS),
        *((lambda f, version=version: f.attrs.update(singanet_format=version), VersionError,
           "format version 1 to 1.*received format version")
          for version in (2, np.bytes_("x"), -1)),
        (lambda f: f.pop("conv/bias") is None, FileFormatError,
         "expected 4 arrays, the number written; received 3"),
    ],
)  # fmt: skip
def test_a_file_of_ours_that_was_changed(path, change, error, message):
    write_state(path, small_state())
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(error, match=message):
        read_state(path)


def test_packing_our_file_again_keeps_its_checksums(path, tmp_path):
    write_state(path, small_state())
    packed = tmp_path / "packed.h5"
    with h5py.File(path) as file, h5py.File(packed, "w") as copy:
        copy.attrs.update(file.attrs)
        for name in small_state():
            new = copy.create_dataset(name, data=file[name][()], compression="gzip")
            new.attrs.update(file[name].attrs)
        copy["bn/mean"][0] = 5.0
    with open_state(packed) as reader:
        expect_same_state({"x": reader.read("conv/weight")}, {"x": small_state()["conv/weight"]})
        with pytest.raises(FileFormatError, match="bn/mean.*checksum"):
            reader.read("bn/mean")


def test_groups_that_hold_nothing(path):
    """libhdf5 takes as long for each as for an array; a few stand in Keras' files."""
    with h5py.File(path, "w", libver="latest") as file:
        for k in range(5100):
            file.create_group(f"g{k}")
    start = time.process_time()
    with pytest.raises(FileFormatError, match="at most 5000 parts"):
        read_state(path)
    assert time.process_time() - start < 2
    with h5py.File(path, "w", libver="latest") as file:
        for k in range(300):
            file.create_group(f"empty{k}")
            file[f"a{k}/b/c/w"] = k
    assert len(read_state(path)) == 300


@given(st.lists(st.text("ab/", min_size=1, max_size=9), max_size=8))
def test_the_walk_finds_what_h5py_visits(names):
    """In the same order, whatever is a group and whatever holds nothing."""
    stream, there = io.BytesIO(), []
    with h5py.File(stream, "w") as file:
        for k, name in enumerate(names):
            with contextlib.suppress(ValueError, TypeError):  # a group, or below an array
                file.create_group(name) if k % 3 == 2 else file.create_dataset(name, data=k)
        file.visititems(lambda name, item: there.append((name, isinstance(item, h5py.Dataset))))
        found = []
        walk(file.id, lambda name, dataset: found.append((name, dataset.shape)), "here")
    assert found == [(name, ()) for name, array in there if array]


def test_ctrl_c_in_a_lock_of_h5py_stays_ctrl_c():
    with pytest.raises(KeyboardInterrupt), hdf5_errors("a file"):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
    with pytest.raises(SystemError), hdf5_errors("a file"):
        raise SystemError("of its own")


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
    "names", [["a"], ["kernel", "", "größe", "x" * 1000], [f"layer{i}/weight" for i in range(3000)]]
)
def test_what_h5py_writes(path, libver, names):
    write(path, names, libver)
    assert read(path) == names


def test_other_places_of_texts(path):
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.attrs["names"] = "one"
        group = file.create_group("a/b")
        for index in range(60):  # so many that the header goes on elsewhere, twice
            group.attrs[f"k{index}"] = np.array([f"v{index}", "w" * index], h5py.string_dtype())
    assert read(path) == ["one"]
    for index in (0, 7, 59):
        assert read(path, "a/b", f"k{index}") == [f"v{index}", "w" * index]
    # More than eight in a new file stand in a heap of another kind: refused, not misread.
    with h5py.File(path, "w", libver="latest") as file:
        for index in range(20):
            file.attrs[f"k{index}"] = np.array(["v"], h5py.string_dtype())
    with pytest.raises(FileFormatError, match="'k3' is not in its object's header"):
        read(path, key="k3")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.full
def test_every_byte_changed_gives_memory_to_no_claim(path, libver):
    """Lengths among them: libhdf5 allots what one claims, up to 4 GB."""
    write(path, ["kernel", "bias"], libver)
    whole, outcomes = path.read_bytes(), set()
    heap = whole.index(b"GCOL")
    for at in (i for i in range(len(whole)) if i < 1024 or abs(i - heap) < 64):
        path.write_bytes(flipped(whole, at, 0xC8))
        try:
            outcomes.add(max(map(len, read(path))) < 4096)
        except FileFormatError:
            outcomes.add("refused")
    assert outcomes == {True, "refused"}


@pytest.mark.parametrize("claim", [2**64 - 16, 2**63, 4097, 15, 0])
def test_a_heap_of_another_size(path, claim):
    write(path, ["kernel", "bias"])
    raw = path.read_bytes()
    heap = raw.index(b"GCOL")
    path.write_bytes(raw[: heap + 8] + claim.to_bytes(8, "little") + raw[heap + 16 :])
    if claim == 4097 and len(raw) >= heap + 4097:
        assert read(path) == ["kernel", "bias"]
    else:
        with pytest.raises(FileFormatError, match="heap of strings"):
            read(path)


def test_many_names_for_the_same_bytes(path):
    """4,000 references to one long text would be many times the file."""
    write(path, ["x" * 3000] + [""] * 3999)
    raw = path.read_bytes()
    at = raw.index(struct.pack("<LQL", 3000, raw.rindex(b"GCOL"), 1))
    path.write_bytes(raw[:at] + raw[at : at + 16] * 4000 + raw[at + 16 * 4000 :])
    with pytest.raises(FileFormatError, match="a string of 3000 bytes in"):
        read(path)
