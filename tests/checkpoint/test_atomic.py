"""Files appear whole or not at all: full disk, read-only folder, vanished folder."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from singanet.checkpoint import FORMATS, Source, open_state, write_state
from singanet.errors import FileAccessError


@pytest.fixture
def old(path):
    """A checkpoint that stands at ``path`` already."""
    state = {"a/w": np.arange(50, dtype="f4")}
    write_state(path, state)
    return state


def read_all(path):
    with open_state(path) as reader:
        return dict(reader)


@pytest.fixture
def full_disk():
    """No file may grow above 100 kB; Python ignores the signal, so writes fail with an error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk(tmp_path, path, old, full_disk, assert_same):
    before = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(FileAccessError, match=r"a place to write; received File too large"):
        write_state(path, {f"w{i}": np.ones(20_000, "f4") for i in range(3)})
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert_same(read_all(path), old)


def test_a_disk_that_fills_up_at_the_last_byte(tmp_path, path, old, full_disk, assert_same):
    """Where the tables at the file's end no longer fit."""
    for size in (23_000, 24_000, 24_500, 24_900, 24_990):
        state = {"w": np.ones(size, "f4")}
        try:
            write_state(path, state)
        except FileAccessError:
            assert_same(read_all(path), old)
        else:
            old = state
            assert_same(read_all(path), state)
    assert len(list(tmp_path.iterdir())) <= 2


def test_an_array_that_cannot_be_made(tmp_path, path, old, assert_same):
    def fail():
        raise ZeroDivisionError

    sources = [
        Source("a", (2,), np.dtype("f4"), lambda: np.ones(2, "f4")),
        Source("b", (2,), np.dtype("f4"), fail),
    ]
    before = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        write_state(path, sources)
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert_same(read_all(path), old)


ON_A_SMALL_DISK = """
import os, sys, numpy as np
from pathlib import Path
from singanet.checkpoint import open_state, write_state
from singanet.errors import FileAccessError
path = Path(sys.argv[1])
write_state(path, {"a/w": np.arange(50, dtype="f4")})
before = sorted(os.listdir(path.parent))
for size in (40_000, 60_000, 70_000, 75_000, 200_000):
    try:
        write_state(path, {f"w{i}": np.ones(size // 4, "f4") for i in range(4)})
    except FileAccessError as error:
        print(size, error)
    else:
        raise SystemExit(f"{size} fitted")
    assert sorted(os.listdir(path.parent)) == before
    with open_state(path) as reader:
        assert reader.read("a/w").tolist() == list(range(50))
"""


@pytest.mark.slow
def test_a_small_disk(tmp_path, path):
    """A file system of its own, with room for an old checkpoint and half of a new one."""
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=128k none '{small}' && exec \"$@\""
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    try:
        tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except OSError:
        pytest.skip("no unshare here")
    if tried.returncode:
        pytest.skip("this user may not mount")
    words = [*prefix, sys.executable, "-c", ON_A_SMALL_DISK, str(small / path.name)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all("No space left on device; free some space" in line for line in lines), lines


@pytest.fixture
def nobody(path):
    """Whom permissions stop, where the tests run as root; a folder of theirs."""
    write_state(path, {"x": np.ones(1)})
    read_all(path)  # nobody may not even read the modules that this needs
    with tempfile.TemporaryDirectory() as folder:
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)


def test_a_read_only_folder(nobody, format, assert_same):
    path = nobody / f"model{FORMATS[format].suffixes[0]}"
    state = {"a/w": np.arange(50, dtype="f4")}
    write_state(path, state)
    before = sorted(each.name for each in nobody.iterdir())
    nobody.chmod(0o500)
    try:
        with pytest.raises(FileAccessError, match="Permission denied; free some space or choose"):
            write_state(path, {"x": np.ones(2)})
    finally:
        nobody.chmod(0o700)
    assert sorted(each.name for each in nobody.iterdir()) == before
    assert_same(read_all(path), state)


def test_a_file_that_may_not_be_read(nobody, format):
    path = nobody / f"model{FORMATS[format].suffixes[0]}"
    write_state(path, {"x": np.ones(2)})
    path.chmod(0o200)
    with pytest.raises(FileAccessError, match="Permission denied; check the path"):
        read_all(path)


def test_a_folder_that_refuses(path, old, monkeypatch, assert_same):
    """What a read-only folder answers, for those whom permissions do not stop."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(FileAccessError, match="received Permission denied; free some space"):
        write_state(path, {"x": np.ones(2)})
    monkeypatch.undo()
    assert_same(read_all(path), old)


def test_a_folder_that_is_not_there(tmp_path, path):
    with pytest.raises(FileAccessError, match=r"gone.*No such file or directory"):
        write_state(tmp_path / "gone" / path.name, {"x": np.ones(2)})


def test_a_folder_that_vanishes_meanwhile(tmp_path, path):
    folder = tmp_path / "run"
    folder.mkdir()

    def vanish():
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        return np.ones(2)

    with pytest.raises(FileAccessError, match="run"):
        write_state(folder / path.name, [Source("x", (2,), np.dtype("f8"), vanish)])


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "m.npz").mkdir()
    with pytest.raises(FileAccessError, match=r"m\.npz"):
        write_state(tmp_path / "m.npz", {"x": np.ones(2)})
    with pytest.raises(FileAccessError, match="received a folder"):
        open_state(tmp_path / "m.npz")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileAccessError, match="No such file"):
        open_state(tmp_path / "m")


def test_a_link_stays_a_link(tmp_path, path, old, assert_same):
    link = tmp_path / f"link{''.join(path.suffixes)}"
    link.symlink_to(path)
    write_state(link, {"x": np.ones(3, "f4")})
    assert link.is_symlink()
    assert_same(read_all(path), {"x": np.ones(3, "f4")})


def test_permissions_stay(path, old):
    path.chmod(0o640)
    write_state(path, {"x": np.ones(2, "f4")})
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_killed_writers_left_is_removed(tmp_path, path):
    write_state(path, {"x": np.ones(2, "f4")})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    from singanet.base.files import _host

    dead = tmp_path / f".{path.name}.{_host()}-{ended.pid}-0123abcd.tmp"
    alive = tmp_path / f".{path.name}.{_host()}-1-0123abcd.tmp"
    elsewhere = tmp_path / f".{path.name}.otherhost-{ended.pid}-0123abcd.tmp"
    for each in (dead, alive, elsewhere):
        each.touch()
    write_state(path, {"x": np.ones(2, "f4")})
    assert not dead.exists()
    assert alive.exists()
    assert elsewhere.exists()


def test_a_pipe_stays_a_pipe(tmp_path, path):
    """And /dev/null stays what it is, for those who may replace it."""
    os.mkfifo(path)
    with pytest.raises(FileAccessError, match="expected a file, or none yet; received a device"):
        write_state(path, {"x": np.ones(2)})
    assert path.is_fifo()
    for format in (None, "npz", "hdf5"):
        with pytest.raises(FileAccessError, match="a device or pipe, which may never end"):
            open_state(path, format)
    # A snapshot's description is written beside it first.
    assert len(list(tmp_path.iterdir())) == 1
