"""Peak memory: the largest array and 16 MB, however large the state."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from singanet.checkpoint import Source, open_state, write_state

LARGEST = 8 << 20
ALLOWED = LARGEST + (16 << 20)


@pytest.fixture
def peak():
    """Most bytes that Python and NumPy held above what they held at the last call."""
    tracemalloc.start()
    before = [0]

    def since_last():
        now, highest = tracemalloc.get_traced_memory()
        found = highest - before[0]
        before[0] = now
        tracemalloc.reset_peak()
        return found

    yield since_last
    tracemalloc.stop()


def sources(count, order="C"):
    shape = (1024, LARGEST // 4096)
    make = np.ones if order == "C" else lambda shape, code: np.ones(shape[::-1], code).T
    return [
        Source(f"layer{i}/w", shape, np.dtype("f4"), lambda: make(shape, "f4"))
        for i in range(count)
    ]


@pytest.mark.parametrize("order", ["C", "F"])
def test_writing(path, peak, order):
    """Arrays are made as they are asked for, so even the array in hand counts as extra here."""
    peak()
    write_state(path, sources(12, order))
    assert peak() <= ALLOWED


def test_reading_and_verifying(path, peak):
    write_state(path, sources(12))
    peak()
    with open_state(path) as reader:
        assert peak() <= 4 << 20  # the table alone
        for _, array in reader:
            del array
        assert peak() <= ALLOWED
        reader.verify()
        assert peak() <= ALLOWED


@pytest.mark.parametrize("name", ["zeros.npz", "fortran.npz", "old.pickle"])
def test_reading_what_others_wrote(tmp_path, peak, name):
    """Packed, in Fortran order, and with every byte spelled as an escape."""
    import pickle

    array = np.ones((1024, LARGEST // 4096), "f4", order="F")
    if name == "zeros.npz":
        np.savez_compressed(tmp_path / name, **{f"a{i}": np.zeros_like(array) for i in range(5)})
    elif name == "fortran.npz":
        np.savez(tmp_path / name, **{f"a{i}": array for i in range(5)})
    else:
        state = {f"a{i}": array[:, : 1 << 10].copy() for i in range(5)}
        (tmp_path / name).write_bytes(pickle.dumps(state, 0))
    peak()
    with open_state(tmp_path / name) as reader:
        for _, read in reader:
            del read
    assert peak() <= ALLOWED


def test_reading_gzipped_hdf5(tmp_path, peak):
    import h5py

    with h5py.File(tmp_path / "m.h5", "w") as file:
        for i in range(3):
            file.create_dataset(f"a{i}", data=np.ones((512, 4096), "f4"), compression="gzip")
    peak()
    with open_state(tmp_path / "m.h5") as reader:
        for _, read in reader:
            del read
    assert peak() <= ALLOWED
