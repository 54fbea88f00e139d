"""Peak memory of files that others wrote, and of whole nets."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from singanet import layers
from singanet.checkpoint import open_state
from singanet.errors import StateMismatchError
from singanet.net import FeedForwardNet
from tests.checkpoint.format_case import ALLOWED, BESIDE, LARGEST
from tests.mutation.watching import Peak


@pytest.mark.parametrize("name", ["zeros.npz", "fortran.npz", "big-endian.npz", "old.pickle"])
@pytest.mark.full
def test_reading_what_others_wrote(tmp_path, peak, name):
    """Packed, in another order, and with every byte spelled as an escape."""
    import pickle

    array = np.ones((1024, LARGEST // 4096), "f4", order="F")
    if name == "zeros.npz":
        np.savez_compressed(tmp_path / name, **{f"a{i}": np.zeros_like(array) for i in range(3)})
    elif name == "fortran.npz":
        np.savez(tmp_path / name, **{f"a{i}": array for i in range(3)})
    elif name == "big-endian.npz":
        np.savez(tmp_path / name, **{f"a{i}": array.astype(">f4") for i in range(3)})
    else:
        state = {f"a{i}": array[:, : 1 << 9].copy() for i in range(5)}
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
            file.create_dataset(
                f"a{i}", data=np.ones((512, LARGEST // 2048), "f4"), compression="gzip"
            )
    peak()
    with open_state(tmp_path / "m.h5") as reader:
        for _, read in reader:
            del read
    assert peak() <= ALLOWED


def wide_net():
    net = FeedForwardNet()
    for name in ("a", "b", "c"):
        net.add(layers.Dense(name, 1024, use_bias=False, input_sample_shape=(1024,)))
        net.add(layers.Dense(name + "wide", LARGEST // 4096, use_bias=False))
        net.add(layers.Dense(name + "narrow", 1024, use_bias=False))
    return net


def system_peak(task):
    """What the system gave ``task`` beyond what was there, libhdf5's memory included."""
    peak = Peak()
    peak.start()
    task()
    return peak.bytes()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
@pytest.mark.parametrize(
    "name", ["m", "m.pickle", "m.h5", "m.npz", "m.safetensors", "m.weights.h5", "legacy"]
)
@pytest.mark.full
def test_a_net(tmp_path, name):
    """Its parameters are there before and after; what else there is of 100 MB is extra."""
    net, format = wide_net(), "keras-legacy" if name == "legacy" else None
    net.save(tmp_path / f"warm{name}", format=format)
    assert system_peak(lambda: net.save(tmp_path / name, format=format)) <= BESIDE
    assert system_peak(lambda: net.load(tmp_path / name)) <= ALLOWED


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["m.npz", "m.h5"])
def test_what_a_net_has_not_is_not_unpacked(tmp_path, peak, name, strict):
    """An array of another name, and one of another shape in the place of a weight."""
    import h5py

    net = FeedForwardNet([layers.Dense("a", 3, input_sample_shape=(4,))], seed=0)
    zeros = np.zeros(LARGEST // 4, "f4")
    state = {"a/weight": zeros, "other/weight": zeros}
    if name == "m.npz":
        np.savez_compressed(tmp_path / name, **state)
    else:
        with h5py.File(tmp_path / name, "w") as file:
            for key, array in state.items():
                file.create_dataset(key, data=array, compression="gzip", chunks=(1 << 18,))
    peak()
    with pytest.raises(StateMismatchError) if strict else nullcontext():
        net.load(tmp_path / name, strict=strict)
    assert peak() < LARGEST
