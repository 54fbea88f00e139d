"""The file of a run's figures."""

import errno
import json

import pytest

from singanet.base import files
from singanet.commands.runs.recipe import check_writable, write_json
from singanet.errors import ArgumentError, FileAccessError


def test_the_file_is_replaced_whole(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text("old")
    write_json(path, {"a": 1.5, "b": None})
    assert json.loads(path.read_text("utf-8")) == {"a": 1.5, "b": None}
    assert [p.name for p in tmp_path.iterdir()] == ["figures.json"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "no space left")

    path = tmp_path / "figures.json"
    path.write_text("old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(FileAccessError, match=r"figures.json': .*no space left"):
        write_json(path, {"a": 1.5})
    assert path.read_text("utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["figures.json"]


def test_a_place_that_is_none_is_refused_before_the_run(tmp_path):
    check_writable(None)
    check_writable(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        with pytest.raises(ArgumentError, match="--json"):
            check_writable(path)
