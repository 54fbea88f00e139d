"""Files flushed while they are written."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from singanet.base import files as flushing
from singanet.checkpoint import Source, open_state, write_state
from singanet.errors import FileAccessError

pytestmark = pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="no such call here")


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(flushing, "_STEP", 1 << 16)
    monkeypatch.setattr(flushing, "_PAUSE", 0.001)


def slow_state(waiting):
    """Arrays that come one by one, each once ``waiting`` says so."""

    def make(index):
        def fetch():
            deadline = time.monotonic() + 30
            while not waiting(index) and time.monotonic() < deadline:
                time.sleep(0.001)
            return np.full(50_000, index, "f4")

        return fetch

    return [Source(f"w{i}", (50_000,), np.dtype("f4"), make(i)) for i in range(4)]


def test_the_disk_works_before_the_end(path, holder, small_steps, monkeypatch):
    sizes = []
    real = os.fdatasync

    def flush(handle):
        real(handle)
        sizes.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fdatasync", flush)
    write_state(path, slow_state(lambda index: len(sizes) >= index))
    assert len(sizes) >= 3
    assert sizes == sorted(sizes)
    assert sizes[0] < holder(path).stat().st_size
    with open_state(path) as reader:
        assert [array[0] for _, array in reader] == [0, 1, 2, 3]


def test_a_disk_that_fails_meanwhile(path, small_steps, monkeypatch):
    """It tells of a page that it lost once, so that the last flush would succeed."""
    write_state(path, {"old": np.ones(3, "f4")})
    failed = []

    def flush(handle):
        failed.append(handle)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", flush)
    with pytest.raises(FileAccessError, match="Input/output error"):
        write_state(path, slow_state(lambda index: failed or not index))
    assert len(failed) == 1
    with open_state(path) as reader:
        assert list(reader.entries) == ["old"]
    assert not [each for each in path.parent.iterdir() if each.suffix == ".tmp"]


def test_an_error_of_the_writer_comes_first(tmp_path, small_steps):
    with pytest.raises(KeyError, match="mine"), flushing.flushed_meanwhile(tmp_path / "gone"):
        raise KeyError("mine")


def test_without_such_a_call(path, monkeypatch):
    monkeypatch.delattr(os, "fdatasync")
    write_state(path, {"x": np.ones(3, "f4")})
    with open_state(path) as reader:
        assert reader.read("x").tolist() == [1, 1, 1]


def test_a_small_file_has_no_thread(path, monkeypatch):
    """It would take as long as a part of the file."""
    monkeypatch.setattr(flushing, "flushed_meanwhile", None)
    write_state(path, {"w": np.ones(3, "f4")})
    with open_state(path) as reader:
        assert list(reader.entries) == ["w"]
