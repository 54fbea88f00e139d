"""Files of ours that another program has read and written again, our marks copied beside arrays."""

from __future__ import annotations

import pickle
import struct

import h5py
import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import CheckpointError, ChecksumError, FileFormatError
from tests.kit.files import flipped, gguf_file, gguf_tensor, gguf_text

NAMES = ["blk.0.up.weight", "bias", "ones", "zeros"]


@pytest.fixture
def state(rng):
    return {
        "blk.0.up.weight": rng.standard_normal((6, 64)).astype("f4"),
        "bias": rng.standard_normal(32).astype("f4"),
        "ones": np.ones((2, 32), "f4"),
        "zeros": np.zeros(64, "f4"),
    }


def by_safetensors(path, change):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    with safetensors.safe_open(path, "np") as file:
        arrays = {name: change(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(arrays, path, metadata)
    return arrays


def by_pickle(path, change):
    with path.open("rb") as file:
        found = pickle.load(file, encoding="latin1")
    arrays = {k: change(v) if isinstance(v, np.ndarray) else v for k, v in found.items()}
    with path.open("wb") as file:
        pickle.dump(arrays, file, 2)
    return {name: array for name, array in arrays.items() if name in NAMES}


def by_hdf5(path, change):
    """What `h5py` leaves of attributes where a dataset of another type takes the place of one."""
    with h5py.File(path, "r+") as file:
        arrays = {}
        for name in NAMES:
            arrays[name] = change(file[name][...])
            del file[name]
            file[name] = arrays[name]
    return arrays


def skip_value(raw, at, code):
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if code == 8:
        return at + 8 + struct.unpack_from("<Q", raw, at)[0]
    if code != 9:
        return at + sizes[code]
    of, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    for _ in range(count):
        at = skip_value(raw, at, of)
    return at


def by_llama_cpp(path, change):
    """All values copied as they stand, and arrays of any types, as llama-quantize does."""
    raw = path.read_bytes()
    _, values = struct.unpack_from("<QQ", raw, 8)
    at, copied = 24, []
    for _ in range(values):
        (size,) = struct.unpack_from("<Q", raw, at)
        key, code = raw[at + 8 : at + 8 + size], struct.unpack_from("<I", raw, at + 8 + size)[0]
        begin = at + 12 + size
        at = skip_value(raw, begin, code)
        copied.append((key.decode(), code, raw[begin:at]))
    with open_state(path) as reader:
        arrays = {name: change(array) for name, array in reader}
    codes = {"float32": 0, "float16": 1}
    rows, data = [], b""
    for name, array in arrays.items():
        rows.append(gguf_tensor(name, array.shape[::-1], codes[str(array.dtype)], len(data)))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    path.write_bytes(gguf_file(rows, copied, data))
    assert gguf_text("singanet.checksums") in path.read_bytes()
    return arrays


PROGRAMS = {
    "safetensors": by_safetensors, "pickle": by_pickle, "hdf5": by_hdf5, "gguf": by_llama_cpp,
}  # fmt: skip
CHANGES = {
    "types": lambda array: array.astype("f2"),
    "values": lambda array: array * 2 + 1,
    "some": lambda array: array.astype("f2") if array.ndim > 1 else array,
    "nothing": lambda array: array,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", PROGRAMS)
def test_what_another_program_wrote_is_read(format, change, state, tmp_path):
    path = tmp_path / f"m.{format}"
    write_state(path, state, format=format)
    arrays = PROGRAMS[format](path, CHANGES[change])
    with open_state(path, format) as reader:
        found = dict(reader)
        assert not any(entry.checksum for entry in reader.entries.values())
        assert format == "hdf5" or reader.version.endswith(", written again by another program")
        assert not any("checksum" in key or "sealed" in key for key in reader.metadata)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_texts_of_ours_name_no_arrays_and_are_kept(state, tmp_path):
    texts = {"note": "bias", "table": "ones", "a": "bias"}
    path = tmp_path / "m.safetensors"
    write_state(path, state, metadata=texts)
    with open_state(path) as reader:
        assert list(reader.entries) == NAMES
        assert texts.items() <= reader.metadata.items()
        assert all(entry.checksum for entry in reader.entries.values())


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format", ["safetensors", "gguf"])
def test_a_table_that_was_changed_is_damage(format, step, state, tmp_path):
    """Names, types, shapes and places: an error, or what was written."""
    path = tmp_path / f"m.{format}"
    write_state(path, state, format=format)
    whole, wanted = path.read_bytes(), {name: array.tobytes() for name, array in state.items()}
    end = min(whole.index(array.tobytes()) for array in state.values() if array.any())
    refused = 0
    for at in range(0, end, step):
        for bit in (1, 2, 8, 32):
            path.write_bytes(flipped(whole, at, bit))
            try:
                with open_state(path, format) as reader:
                    found = {name: array.tobytes() for name, array in reader}
            except CheckpointError:
                refused += 1
                continue
            assert found == wanted, f"byte {at}"
    assert refused > end // step  # most of what is no text of the metadata


def test_an_array_changed_in_place_is_told_with_the_mark_to_delete(state, tmp_path):
    path = tmp_path / "m.h5"
    write_state(path, state)
    with h5py.File(path, "r+") as file:
        file["bias"][...] = 5
        file["more"] = np.ones(3)
    with open_state(path) as reader, pytest.raises(ChecksumError, match="attribute 'singanet'"):
        dict(reader)
    with h5py.File(path, "r+") as file:
        del file["bias"].attrs["singanet"]
    with open_state(path) as reader:
        assert list(reader.entries)[:2] == [NAMES[0], NAMES[2]]
        assert dict(reader)["bias"].tolist() == [5] * 32
    with h5py.File(path, "r+") as file:
        del file["ones"], file["more"]
    with pytest.raises(FileFormatError, match="delete the attribute 'singanet_format'"):
        open_state(path)
    with h5py.File(path, "r+") as file:
        del file.attrs["singanet_format"]
    with open_state(path) as reader:
        assert set(reader.entries) == {NAMES[0], NAMES[1], NAMES[3]}
