from __future__ import annotations

import contextlib
import io
import time

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.hdf5 import walk
from singanet.checkpoint.hdf5_guard import hdf5_errors
from singanet.errors import FileFormatError, UnsafeFileError, VersionError
from tests.checkpoint.format_case import FormatCase, small_state
from tests.kit.files import expect_same_state, read_state


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
            assert dataset.chunks is None
            assert dataset.compression is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"chunks": (7, 11)},
    ],
)
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


def with_external(file, folder):
    (folder / "secret").write_bytes(b"12345678")
    file.create_dataset("x", (2,), "f4", external=[(str(folder / "secret"), 0, 8)])


def with_virtual(file, folder):
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "y", (2,))
    file.create_virtual_dataset("x", layout)


def with_soft(file, folder):
    file["y"] = np.ones(2)
    file["x"] = h5py.SoftLink("/y")


def with_external_link(file, folder):
    file["x"] = h5py.ExternalLink(str(folder / "other.h5"), "/y")


def with_cycle(file, folder):
    inner = file.create_group("a/b")
    inner["up"] = file["a"]


def with_two_names(file, folder):
    file["x"] = np.ones(2)
    file["y"] = file["x"]


def with_bomb(file, folder):
    file.create_dataset("x", (1 << 34,), "f4", chunks=(1 << 20,), compression="gzip")


def with_late_bomb(file, folder):
    file.create_dataset("x", (1 << 34,), "f4")


def with_strange_filter(file, folder):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (0, 2))
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, plist)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_external, "data in another file"),
        (with_virtual, "virtual dataset"),
        (with_soft, "a soft link called 'x'"),
        (with_external_link, "an external link called 'x'"),
        (with_cycle, "a second link"),
        (with_two_names, "a second link"),
        (with_bomb, "68719476736 bytes claimed by 0"),
        (with_late_bomb, "68719476736 bytes claimed by 0"),
        (with_strange_filter, "the filter 6"),
    ],
)
def test_what_reading_weights_never_needs(path, tmp_path, make, message):
    with h5py.File(path, "w") as file:
        make(file, tmp_path)
    with pytest.raises(UnsafeFileError, match=rf"m\.h5.*{message}"):
        read_state(path)


def test_groups_without_end(path):
    with h5py.File(path, "w") as file:
        file.create_group("/".join("g" * 300))
    with pytest.raises(FileFormatError, match="at most 200 nested levels"):
        read_state(path)


@pytest.mark.parametrize(
    "value",
    ["text", np.array([b"abc"]), np.array([(1, 2)], "i4,f4"), np.array([1j]), h5py.Empty("f4")],
)
def test_other_things_than_numbers(path, value):
    with h5py.File(path, "w") as file:
        file["x"] = value
    with pytest.raises(FileFormatError, match="array 'x'"):
        read_state(path)


@pytest.mark.parametrize("version", [2, np.bytes_("x"), -1])
def test_versions_we_do_not_know(path, version):
    write_state(path, small_state())
    with h5py.File(path, "r+") as file:
        file.attrs["singanet_format"] = version
    with pytest.raises(VersionError, match="format version 1 to 1.*received format version"):
        read_state(path)


def test_a_lost_array_of_ours(path):
    write_state(path, small_state())
    with h5py.File(path, "r+") as file:
        del file["conv/bias"]
    with pytest.raises(FileFormatError, match="expected 4 arrays, the number written; received 3"):
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
