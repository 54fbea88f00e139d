"""Without a folder of the user's own nothing is kept, nor run from the working directory."""

import os
import site
import sys
from pathlib import Path

import pytest

from singanet.base.processes import cache_folder
from singanet.ops.compiled.engine import KeptCode
from singanet.ops.onednn import library

pwd = pytest.importorskip("pwd", reason="Windows has homes of another kind")


@pytest.fixture(params=["none", "relative", "here"])
def homeless(request, monkeypatch, tmp_path):
    """A user number that the system does not know, or one with a HOME that is relative."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    if request.param == "none":
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
        return Path("~")
    monkeypatch.setenv("HOME", "." if request.param == "here" else "mine")
    return Path(os.environ["HOME"])


def test_there_is_no_cache(homeless, tmp_path):
    assert cache_folder() is None
    KeptCode("a").keep("one", b"some code")
    assert list(tmp_path.iterdir()) == []
    assert KeptCode("a").read("one") is None


def test_what_lies_in_the_working_directory_is_not_loaded(homeless, monkeypatch):
    lib = homeless / ".local" / "lib"
    lib.mkdir(parents=True)
    (lib / "libdnnl.so.3").write_bytes(b"whoever made the folder's")
    monkeypatch.setattr(site, "USER_BASE", None)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    for variable in (library.PATH_VARIABLE, "LD_LIBRARY_PATH", "PYTHONUSERBASE"):
        monkeypatch.delenv(variable, raising=False)
    found = library.find_library()
    assert found is None or os.path.isabs(found)
