"""Files cut short or changed: an error of ours, never other numbers."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import CheckpointError, ChecksumError, FileFormatError


@pytest.fixture
def written(tmp_path, format, state, path):
    write_state(path, state)
    (tmp_path / "model.desc").unlink(missing_ok=True)
    return path, path.read_bytes()


def read(path, format):
    with open_state(path, format) as reader:
        return {name: array.tobytes() for name, array in reader}


def steps(format, every):
    """HDF5's tables take kilobytes: a sample of them here, all of them with -m slow."""
    return 31 if format == "hdf5" and not every else 1


EVERY = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.full
def test_cut_at_every_byte(written, format, every):
    path, whole = written
    for size in range(0, len(whole), steps(format, every)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match="model"):
            read(path, format)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.full
def test_every_byte_changed_is_found_or_harmless(written, format, state, every):
    path, whole = written
    expected = {name: array.tobytes() for name, array in state.items()}
    for at in range(0, len(whole), steps(format, every)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            found = read(path, format)
        except CheckpointError:
            continue
        # Names and shapes may change unseen; the numbers under a name of ours may not.
        for name in found.keys() & expected.keys():
            assert found[name] == expected[name], f"byte {at}"


def test_a_wrong_number_is_named(format, path, holder):
    array = np.full(1000, 1.0, "f4")
    write_state(path, {"first/weight": array, "second/weight": array + 1})
    file = holder(path)
    whole = file.read_bytes()
    at = whole.index((array + 1).tobytes()) + 1234
    file.write_bytes(whole[:at] + b"\x55" + whole[at + 1 :])
    with open_state(path) as reader:
        reader.read("first/weight")
        error = FileFormatError if format == "npz" else ChecksumError
        with pytest.raises(error, match="second/weight"):
            reader.read("second/weight")
        with pytest.raises(error, match="second/weight"):
            reader._verify_array("second/weight")


@pytest.mark.parametrize(
    "start", [b"", b"sg", b"sgx", b"\x89HDF\r\n\x1a\n", b"PK\3\4", b"\x80\2", b"text"]
)
def test_not_a_checkpoint(tmp_path, start):
    path = tmp_path / "x.bin"
    path.write_bytes(start)
    with pytest.raises(FileFormatError, match="x.bin"):
        read(path, None)


def test_a_file_of_another_format(tmp_path, format, state):
    other = "npz" if format == "pickle" else "pickle"
    other_path = tmp_path / f"model.{other}"
    write_state(other_path, state)
    with pytest.raises(FileFormatError):
        read(other_path, format)


def test_bytes_after_the_end(written, format):
    path, whole = written
    path.write_bytes(whole + b"more")
    if format in ("hdf5", "pickle"):
        # Both say where they end; what follows is not theirs.
        read(path, format)
    else:
        with pytest.raises(FileFormatError):
            read(path, format)
