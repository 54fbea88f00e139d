"""Machine code that is kept: used again if it is whole and the user's own, else made anew."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest

from singanet.ops.casts import has_compiler
from singanet.ops.compiled import engine
from singanet.ops.compiled.engine import KeptCode

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(engine.VARIABLE, raising=False)
    return tmp_path / "singanet"


def only_file(folder):
    (path,) = folder.glob("code-*/*")
    return path


def test_what_is_kept_is_read_by_others_of_the_same_parts(folder):
    KeptCode("a", "b").keep("one", b"some code")
    assert KeptCode("a", "b").read("one") == b"some code"
    assert KeptCode("a", "b").read("two") is None
    assert KeptCode("a").read("one") is None


@pytest.mark.parametrize("change", ["cut", "changed", "empty", "gone", "a folder"])
def test_what_is_damaged_is_not_used(folder, change):
    KeptCode("a").keep("one", b"some code")
    path = only_file(folder)
    content = path.read_bytes()
    if change in ("gone", "a folder"):
        path.unlink()
        if change == "a folder":
            path.mkdir()
    else:
        path.write_bytes(
            {"cut": content[:-1], "changed": content[:-1] + b"!", "empty": b""}[change]
        )
    assert KeptCode("a").read("one") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
@pytest.mark.parametrize("where", ["file", "folder"])
def test_what_others_may_write_is_not_used(folder, where):
    KeptCode("a").keep("one", b"some code")
    path = only_file(folder)
    (path if where == "file" else path.parent).chmod(0o777)
    assert KeptCode("a").read("one") is None


def test_a_mask_that_leaves_all_to_a_group_changes_nothing(folder):
    before = os.umask(0o002)
    try:
        KeptCode("a").keep("one", b"some code")
    finally:
        os.umask(before)
    assert KeptCode("a").read("one") == b"some code"


def test_another_users_is_not_used(folder, monkeypatch):
    KeptCode("a").keep("one", b"some code")
    monkeypatch.setattr(os, "getuid", lambda: only_file(folder).stat().st_uid + 1)
    assert KeptCode("a").read("one") is None


def test_switched_off_nothing_is_kept(folder, monkeypatch):
    monkeypatch.setenv(engine.VARIABLE, "off")
    KeptCode("a").keep("one", b"some code")
    assert KeptCode("a").read("one") is None
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_no_error(folder):
    folder.write_text("a file in its place")
    KeptCode("a").keep("one", b"some code")
    assert KeptCode("a").read("one") is None


def test_the_oldest_folders_go(folder):
    for k in range(engine._FOLDERS + 3):
        KeptCode(str(k)).keep("one", b"some code")
        made = KeptCode(str(k))._folder
        os.utime(made, (k, k))
    left = sorted(folder.glob("code-*"))
    assert len(left) == engine._FOLDERS
    assert KeptCode(str(engine._FOLDERS + 2))._folder in left
    assert KeptCode("0")._folder not in left


def test_a_function_is_written_once(folder, monkeypatch):
    from singanet.ops.compiled import engine, pool

    written = []

    def product(width, relu):
        written.append(width)
        return pool.product(width, relu)

    for _ in range(2):
        # As in another process.
        engine._kept.cache_clear()
        function = engine.known(product, 16, False)
        x, matrix = np.ones((1, 3), np.float32), np.full((3, 16), 2, np.float32)
        bias, y = np.zeros(16, np.float32), np.empty((1, 16), np.float32)
        arrays = [array.ctypes.data for array in (y, x, matrix, bias)]
        function.call(*arrays, 1, 3, 16)
        np.testing.assert_array_equal(y, 6)
        y[:] = 0
        told = (ctypes.c_int64 * 7)(*arrays, 1, 3, 16)
        function.briefly(ctypes.addressof(told))
        np.testing.assert_array_equal(y, 6)
    engine._kept.cache_clear()
    assert written == [16]
