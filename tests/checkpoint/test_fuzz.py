"""Mutated files; see fuzzing/fuzz.py, which also runs as a program."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

# Found by that name here and in the worker processes, which inherit the path.
sys.path.append(str(Path(__file__).parent / "fuzzing"))
import fuzz

from tests import watching


def test_every_seed_is_whole(tmp_path):
    """Otherwise the mutations would test one error message only."""
    for index, (suffix, raw) in enumerate(fuzz.seeds()):
        path = tmp_path / f"{index}{suffix}"
        path.write_bytes(raw)
        assert fuzz.read(path) == "read"


def test_no_seed_is_read_when_it_is_cut(tmp_path):
    """Keras' and other libraries' files among them; ours are cut at every byte elsewhere."""
    for index, (suffix, raw) in enumerate(fuzz.seeds()):
        path = tmp_path / f"{index}{suffix}"
        for size in {*range(0, len(raw), max(1, len(raw) // 40)), len(raw) - 1}:
            path.write_bytes(raw[:size])
            assert fuzz.read(path) != "read", (suffix, size)


@pytest.mark.parametrize("seed", range(3))
def test_only_our_errors_come_out(tmp_path, seed):
    counts, _ = fuzz.work((300, seed, str(tmp_path)))
    assert sum(counts.values()) == 300
    assert len(counts) > 5


@pytest.mark.parametrize(
    "misdeed",
    [
        lambda folder: eval("1 + 1"),  # noqa: S307
        lambda folder: os.system("true"),
        lambda folder: (folder / "other").write_text(""),
        lambda folder: pickle.loads(b"cbuiltins\nlen\n."),
    ],
)
def test_the_watch_sees(tmp_path, misdeed):
    with (
        pytest.raises(PermissionError, match="m.npz"),
        watching.watch().over(tmp_path / "m.npz"),
    ):
        misdeed(tmp_path)


def test_the_peak_sees(tmp_path):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell")
    peak = watching.Peak()
    peak.start()
    np.ones(4 << 20)
    assert 30 << 20 < peak.bytes() < 40 << 20


@pytest.mark.slow
def test_only_our_errors_come_out_of_100000():
    counts, _ = fuzz.fuzz(100_000, seed=10_000)
    assert sum(counts.values()) == 100_000
