from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from singanet.checkpoint import FORMATS, Source, open_state, write_state
from singanet.errors import ArgumentError, UnknownNameError

# What a record of SINGA can hold, and what ggml has; the other formats hold every type.
SOME_TYPES = {
    "snapshot": ("f4", "f8", "i4", "f2", "u1", "i1"),
    "gguf": ("f4", "f8", "i1", "<i2", "i4", "i8", "f2"),
}
ALL_TYPES = ("?", "u1", "i1", "<u2", "<i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")


def read_all(path, format=None):
    with open_state(path, format) as reader:
        return dict(reader)


def test_what_was_written_is_read(format, state, path, assert_same):
    write_state(path, state)
    assert_same(read_all(path), state)
    assert_same(read_all(path, format), state)


@pytest.mark.parametrize("code", ALL_TYPES)
def test_every_type_keeps_its_bits(tmp_path, format, code, path, assert_same):
    raw = np.random.default_rng(3).integers(0, 2, 64).astype(code)
    state = {"a/b": raw.reshape(4, 16), "none": raw[:0].reshape(0, 3), "one": raw[0].reshape(())}
    if code not in SOME_TYPES.get(format, ALL_TYPES):
        with pytest.raises(ArgumentError, match=r"array 'a/b'.*safetensors, hdf5 or npz"):
            write_state(path, state)
        assert list(tmp_path.iterdir()) == []
        return
    write_state(path, state)
    assert_same(read_all(path), state)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="f4").reshape(4, 6)[::2, ::3],
        np.asfortranarray(np.arange(24, dtype="f4").reshape(4, 6)),
        np.arange(24, dtype=">f4").reshape(4, 6),
        np.broadcast_to(np.float32(2.0), (3, 4)),
        [1.5, 2.5],
    ],
    ids=["strided", "fortran", "big-endian", "broadcast", "list"],
)
def test_layout_in_memory_does_not_matter(format, array, path):
    write_state(path, {"x": array})
    read = read_all(path)["x"]
    np.testing.assert_array_equal(read, array)
    assert read.flags.c_contiguous


def test_a_state_without_arrays(format, path):
    write_state(path, {})
    with open_state(path) as reader:
        assert dict(reader) == {}
        assert reader.version == "singanet format 1"


def test_sources_are_fetched_one_at_a_time(format, path):
    alive = []

    def fetch(index):
        assert not alive, "the array before is still held"
        alive.append(index)
        array = np.full(100, index, "f4")

        class Counted(np.ndarray):
            def __del__(self):
                alive.clear()

        return array.view(Counted)

    sources = [Source(f"a{i}", (100,), np.dtype("f4"), lambda i=i: fetch(i)) for i in range(5)]
    write_state(path, sources)
    read = read_all(path)
    assert [int(array[99]) for array in read.values()] == list(range(5))


def test_the_table_comes_before_the_arrays(format, state, path):
    write_state(path, state)
    with open_state(path) as reader:
        entry = reader.entries["conv/weight"]
        assert (entry.shape, entry.dtype, entry.nbytes) == ((4, 9), np.dtype("f4"), 144)
        assert entry.checksum
        with pytest.raises(UnknownNameError, match="conv/weigh'.*did you mean 'conv/weight'"):
            reader.read("conv/weigh")


def test_arrays_are_read_in_any_order(format, state, path):
    write_state(path, state)
    with open_state(path) as reader:
        for name in [*reversed(list(state)), *state]:
            assert reader.read(name).tobytes() == state[name].tobytes()


def test_content_decides_whatever_the_suffix(tmp_path, format, state, path, assert_same):
    write_state(path, state)
    other = path.rename(tmp_path / "renamed.txt")
    assert_same(read_all(other), state)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.few(2)
def test_any_state(format, data, path, assert_same):
    codes = SOME_TYPES.get(format, ALL_TYPES)
    part = st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"),
        min_size=1,
        max_size=7,
    ).filter(lambda text: text not in (".", ".."))
    # One depth for all names: in HDF5 no array can be the folder of another.
    names = st.lists(part, min_size=2, max_size=2).map("/".join)
    array = st.sampled_from(codes).flatmap(
        lambda code: hnp.arrays(code, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
    )
    state = data.draw(st.dictionaries(names, array, max_size=5))
    write_state(path, state)
    assert_same(read_all(path), state)


@pytest.mark.parametrize(
    "suffix", [s for f in FORMATS.values() for s in f.suffixes if not f.name.startswith("keras")]
)
def test_the_suffix_chooses_the_format(tmp_path, suffix, state):
    write_state(tmp_path / f"m{suffix}", state)
    with open_state(tmp_path / f"m{suffix}") as reader:
        assert suffix in FORMATS[reader.format].suffixes


def test_unknown_formats_are_named(tmp_path, state):
    with pytest.raises(UnknownNameError, match="'hdf6'.*did you mean 'hdf5'"):
        write_state(tmp_path / "m", state, format="hdf6")
    with pytest.raises(UnknownNameError, match="argument format"):
        open_state(tmp_path / "m", format="zip")


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.array([1j])])
def test_only_numbers_are_written(tmp_path, format, value, path):
    with pytest.raises(ArgumentError, match="array 'x': expected booleans, integers or floats"):
        write_state(path, {"x": value})
    assert list(tmp_path.iterdir()) == []
