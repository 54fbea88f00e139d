"""A lock that two processes cannot both have, and that ends with the process."""

import os
import re
import signal
import subprocess
import sys

import pytest

from singanet.base.files import NAME, hold, is_held, let_go
from singanet.errors import FileAccessError
from tests.interrupts import signalled_at

HOLDER = """
import sys, pathlib
from singanet.base.files import hold
hold(pathlib.Path(sys.argv[1]), object(), object())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock on ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_another_process_is_refused_by_name_until_the_first_dies(tmp_path, holder):
    me, user = object(), object()
    with pytest.raises(
        FileAccessError, match=rf"received a training of process {holder.pid} on \S+; wait"
    ):
        hold(tmp_path, me, user)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    # The file is still there, which means nothing.
    assert (tmp_path / NAME).exists()
    hold(tmp_path, me, user)
    assert (tmp_path / NAME).read_text("utf-8").startswith(f"process {os.getpid()} on ")
    let_go(tmp_path, user)
    assert list(tmp_path.iterdir()) == []


def test_one_owner_may_hold_it_for_several(tmp_path):
    owner, first, second = object(), object(), object()
    hold(tmp_path, owner, first)
    hold(tmp_path / ".." / tmp_path.name, owner, second)
    with pytest.raises(FileAccessError, match=re.escape(f"process {os.getpid()} on")):
        hold(tmp_path, object(), object())
    let_go(tmp_path, first)
    let_go(tmp_path, first)
    let_go(tmp_path, object())
    with pytest.raises(FileAccessError):
        hold(tmp_path, object(), object())
    let_go(tmp_path, second)
    hold(tmp_path, object(), first)
    let_go(tmp_path, first)


def test_whether_a_folder_is_locked_can_be_asked_without_touching_it(tmp_path):
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "missing")
    user = object()
    hold(tmp_path, object(), user)
    assert is_held(tmp_path)
    asked = "import sys; from pathlib import Path; from singanet.base.files import is_held; "
    asked += "print(is_held(Path(sys.argv[1])))"
    command = [sys.executable, "-c", asked, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    let_go(tmp_path, user)
    assert not is_held(tmp_path)
    # What a killed process leaves.
    (tmp_path / NAME).write_text("process 1 on nowhere")
    (tmp_path / NAME).chmod(0o444)
    assert not is_held(tmp_path)
    assert (tmp_path / NAME).read_text("utf-8") == "process 1 on nowhere"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / NAME).symlink_to(victim)
    with pytest.raises(FileAccessError):
        hold(folder, object(), object())
    assert victim.read_text("utf-8") == "kept"


def test_a_file_that_was_removed_between_opening_and_locking_is_not_taken(tmp_path, monkeypatch):
    from singanet.base import files

    take, removed = files._take, []

    def too_late(handle):
        if not removed:
            removed.append((tmp_path / NAME).unlink())
        return take(handle)

    monkeypatch.setattr(files, "_take", too_late)
    user = object()
    hold(tmp_path, object(), user)
    assert (tmp_path / NAME).exists()
    let_go(tmp_path, user)


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    from singanet.base import files

    def none(handle, kind):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", none)
    user = object()
    with pytest.warns(RuntimeWarning, match="no locks on this file system"):
        hold(tmp_path, object(), user)
    let_go(tmp_path, user)


def test_wherever_ctrl_c_strikes_the_next_training_may_begin(tmp_path):
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
