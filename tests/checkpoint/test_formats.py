"""Which file is opened and written by which format, and what belongs to none of them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from singanet.base import files as flushing
from singanet.checkpoint import open_state, write_state
from singanet.errors import ArgumentError, FileAccessError, FileFormatError, UnknownNameError
from tests.kit.files import names_in, read_state


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    for start in (b"", b"sg", b"sgx", b"\x89HDF\r\n\x1a\n", b"PK\3\4", b"\x80\2", b"text"):
        path.write_bytes(start)
        with pytest.raises(FileFormatError, match="x.bin"):
            read_state(path)
    with pytest.raises(FileAccessError, match="No such file"):
        open_state(tmp_path / "m")
    (tmp_path / "m.npz").mkdir()
    with pytest.raises(FileAccessError, match=r"m\.npz"):
        write_state(tmp_path / "m.npz", {"x": np.ones(2)})
    with pytest.raises(FileAccessError, match="received a folder"):
        open_state(tmp_path / "m.npz")


def test_unknown_formats_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match="'hdf6'.*did you mean 'hdf5'"):
        write_state(tmp_path / "m", {}, format="hdf6")
    with pytest.raises(UnknownNameError, match="argument format"):
        open_state(tmp_path / "m", format="zip")


@pytest.mark.parametrize("path", ["", ".", "..", "a/", "a/..", "a\0b", b"bytes", None, 3, ["m"]])
def test_paths_of_no_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (lambda: write_state(path, {"x": np.ones(1)}), lambda: open_state(path)):
        with pytest.raises(ArgumentError, match="argument f: expected (a path|the path of a file)"):
            call()
    assert names_in(tmp_path) == []


def test_an_error_of_the_writer_comes_before_one_of_its_flushes(tmp_path):
    if not hasattr(os, "fdatasync"):
        pytest.skip("this system has no fdatasync")
    with pytest.raises(KeyError, match="mine"), flushing.flushed_meanwhile(tmp_path / "gone"):
        raise KeyError("mine")
