"""Files that appear whole or not at all, locks on folders, and processes that fork."""

from __future__ import annotations

import json
import os
import re
import signal
import site
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from singanet.base import files
from singanet.base.files import NAME, hold, is_held, let_go, replacing
from singanet.base.processes import cache_folder
from singanet.checkpoint import entry, open_state, write_state
from singanet.errors import FileAccessError
from singanet.ops.compiled.engine import KeptCode
from singanet.ops.onednn import library
from tests.interrupts import signalled_at, struck_at, threads_gone

OLD = {"a": np.arange(50, dtype="f4"), "b": np.zeros(3, "f8")}
NEW = {"a": np.arange(70, dtype="f4"), "b": np.ones(3, "f4")}
OTHERS = ".safetensors", ".h5", ".pickle", ".bin"


def python(code, *arguments, **variables):
    """The output of a new interpreter."""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **variables}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- Whole files ----------------------------------------------------------------------------------


# Objects of other libraries complain if a write is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("suffix", "every"),
    # All formats share most of the lines.
    [(".npz", 1), *((suffix, 9) for suffix in OTHERS),
     *(pytest.param(suffix, 1, marks=pytest.mark.slow) for suffix in OTHERS)],
)  # fmt: skip
@pytest.mark.full
def test_an_interrupt_at_any_line_of_a_save(tmp_path, suffix, every, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # or the disk takes half a minute
    monkeypatch.setattr(entry, "_AT_ONCE", 0)  # by a thread of its own
    path = tmp_path / f"m{suffix}"
    write_state(path, OLD)
    before, line, ended = set(threading.enumerate()), 1 - every, True
    states, sizes = {50: OLD, 70: NEW}, set()
    while ended:
        line += every
        ended = struck_at(line, lambda: write_state(path, NEW))
        assert threads_gone(before), line
        with open_state(path) as reader:
            found = dict(reader)
        sizes.add(found["a"].size)
        for name, array in states[found["a"].size].items():
            np.testing.assert_array_equal(found[name], array)
    assert line > 100
    assert sizes == {50, 70}


@pytest.mark.parametrize("mode", [0o600, 0o440])
def test_a_new_file_has_the_mode_and_owner_of_the_old_one(tmp_path, mode):
    path = tmp_path / "m"
    path.write_text("old")
    path.chmod(mode)
    owner = path.stat().st_uid
    if os.geteuid() == 0:
        owner = 65534
        os.chown(path, owner, owner)
    with replacing(path) as beside:
        assert not beside.stat().st_mode & 0o077 & ~mode
        beside.write_text("new")
    assert path.stat().st_mode & 0o777 == mode
    assert path.stat().st_uid == owner
    assert path.read_text("utf-8") == "new"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 230])
def test_the_longest_names_that_a_file_system_takes(tmp_path, name):
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        pytest.skip("file names of this machine are ASCII")
    for text in ("old", "new"):
        with replacing(tmp_path / name) as beside:
            beside.write_text(text)
        assert (tmp_path / name).read_text("utf-8") == text
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("format", [None, "npz", "hdf5", "pickle"])
def test_a_device_is_no_file_to_write(format):
    with pytest.raises(FileAccessError, match="received a device or pipe"):
        write_state(os.devnull, OLD, format)


def test_a_name_beyond_ascii_where_file_names_are_ascii(tmp_path):
    code = (
        "import sys, numpy as np; from singanet.errors import FileAccessError\n"
        "from singanet.checkpoint import open_state, write_state\n"
        "path = sys.argv[1] + '/gr\\u00f6\\u00dfer.npz'\n"
        "for work in (lambda: write_state(path, {'a': np.ones(2)}), lambda: open_state(path)):\n"
        "    try: work()\n"
        "    except FileAccessError as error: assert 'PYTHONUTF8' in str(error)\n"
        "    else: raise SystemExit(3)\n"
    )
    python(code, tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


# -- Locks ----------------------------------------------------------------------------------------

HOLDER = """
import sys, pathlib
from singanet.base.files import hold
hold(pathlib.Path(sys.argv[1]), object(), object())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process with the lock on ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_until_the_first_ends(tmp_path, holder):
    me, user = object(), object()
    words = rf"received a training of process {holder.pid} on \S+; wait"
    with pytest.raises(FileAccessError, match=words):
        hold(tmp_path, me, user)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # A file without a lock means nothing.
    assert (tmp_path / NAME).exists()
    hold(tmp_path, me, user)
    assert (tmp_path / NAME).read_text("utf-8").startswith(f"process {os.getpid()} on ")
    let_go(tmp_path, user)
    assert list(tmp_path.iterdir()) == []


def test_one_owner_may_hold_a_folder_for_several_users(tmp_path):
    owner, first, second = object(), object(), object()
    hold(tmp_path, owner, first)
    hold(tmp_path / ".." / tmp_path.name, owner, second)
    with pytest.raises(FileAccessError, match=re.escape(f"process {os.getpid()} on")):
        hold(tmp_path, object(), object())
    for user in (first, first, object()):
        let_go(tmp_path, user)
    with pytest.raises(FileAccessError):
        hold(tmp_path, object(), object())
    let_go(tmp_path, second)
    hold(tmp_path, object(), first)
    let_go(tmp_path, first)


def test_asking_for_a_lock_changes_nothing(tmp_path):
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "missing")
    user = object()
    hold(tmp_path, object(), user)
    assert is_held(tmp_path)
    asked = "import sys; from pathlib import Path; from singanet.base.files import is_held; "
    assert python(f"{asked}print(is_held(Path(sys.argv[1])))", tmp_path) == "True\n"
    let_go(tmp_path, user)
    assert not is_held(tmp_path)
    # A killed process leaves its file.
    (tmp_path / NAME).write_text("process 1 on nowhere")
    (tmp_path / NAME).chmod(0o444)
    assert not is_held(tmp_path)
    assert (tmp_path / NAME).read_text("utf-8") == "process 1 on nowhere"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("kept")
    folder.mkdir()
    (folder / NAME).symlink_to(victim)
    with pytest.raises(FileAccessError):
        hold(folder, object(), object())
    assert victim.read_text("utf-8") == "kept"


def test_a_file_removed_between_opening_and_locking_is_not_taken(tmp_path, monkeypatch):
    take, removed, user = files._take, [], object()

    def too_late(handle):
        if not removed:
            removed.append((tmp_path / NAME).unlink())
        return take(handle)

    monkeypatch.setattr(files, "_take", too_late)
    hold(tmp_path, object(), user)
    assert (tmp_path / NAME).exists()
    let_go(tmp_path, user)


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch):
    def none(handle, kind):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", none)
    user = object()
    with pytest.warns(RuntimeWarning, match="no locks on this file system"):
        hold(tmp_path, object(), user)
    let_go(tmp_path, user)


def test_after_ctrl_c_at_any_line_the_next_training_may_begin(tmp_path):
    line, struck = 0, True
    while struck:
        line += 1
        owner = object()
        struck = signalled_at(line, lambda: hold(tmp_path, owner, owner))  # noqa: B023
        let_go(tmp_path, owner)
        assert not is_held(tmp_path), line
        hold(tmp_path, owner, owner)
        struck |= signalled_at(line, lambda: let_go(tmp_path, owner))  # noqa: B023
        let_go(tmp_path, owner)
        assert not is_held(tmp_path), line
    assert line > 20


# -- Processes ------------------------------------------------------------------------------------

FORKED = """
import json, os, sys, threading, time
from singanet.base.processes import free_in_children

first, second = free_in_children(threading.Lock()), free_in_children(threading.RLock())
changed, held, done = [0, 0], threading.Event(), threading.Event()

def change():
    # One lock inside the other, as a recording that asks for the speeds of kernels.
    with first:
        changed[0] += 1
        held.set()
        time.sleep(0.1)
        with second:
            changed[1] += 1
    held.clear()

seen = []
for _ in range(3):
    thread = threading.Thread(target=change)
    thread.start()
    held.wait()
    read, write = os.pipe()
    if not os.fork():
        free = first.acquire(timeout=5) and second.acquire(timeout=5)
        os.write(write, json.dumps([bool(free), *changed]).encode())
        os._exit(0)
    seen.append(json.loads(os.read(read, 100)))
    thread.join()
print(json.dumps([seen, first.acquire(timeout=1), second.acquire(timeout=1)]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_child_finds_locks_free_and_nothing_half_changed():
    seen, *free = json.loads(python(FORKED))
    assert [child for child, *_ in seen] == [True] * 3
    assert all(one == other for _, one, other in seen)
    assert free == [True, True]


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


def test_without_a_home_there_is_no_cache(homeless, tmp_path):
    assert cache_folder() is None
    KeptCode("a").keep("one", b"some code")
    assert list(tmp_path.iterdir()) == []
    assert KeptCode("a").read("one") is None


def test_a_library_in_the_working_directory_is_not_loaded(homeless, monkeypatch):
    lib = homeless / ".local" / "lib"
    lib.mkdir(parents=True)
    (lib / "libdnnl.so.3").write_bytes(b"whoever made the folder's")
    monkeypatch.setattr(site, "USER_BASE", None)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    for variable in (library.PATH_VARIABLE, "LD_LIBRARY_PATH", "PYTHONUSERBASE"):
        monkeypatch.delenv(variable, raising=False)
    found = library.find_library()
    assert found is None or os.path.isabs(found)
