"""Files that appear whole or not at all, whatever strikes while they are written."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from singanet.base.files import replacing
from singanet.checkpoint import entry, open_state, write_state
from singanet.errors import FileAccessError
from tests.interrupts import struck_at, threads_gone

OLD = {"a": np.arange(50, dtype="f4"), "b": np.zeros(3, "f8")}
NEW = {"a": np.arange(70, dtype="f4"), "b": np.ones(3, "f4")}


# What others' objects say when they are let go in the middle of a write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("suffix", "every"),
    [
        (".npz", 1),
        # What these have of their own is less than what all share.
        *((suffix, 9) for suffix in (".safetensors", ".h5", ".pickle", ".bin")),
        *(
            pytest.param(suffix, 1, marks=pytest.mark.slow)
            for suffix in (".safetensors", ".h5", ".pickle", ".bin")
        ),
    ],
)
@pytest.mark.full
def test_an_interrupt_at_any_line_of_a_save(tmp_path, suffix, every, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # or the disk takes half a minute
    monkeypatch.setattr(entry, "_AT_ONCE", 0)  # by a thread of its own
    path = tmp_path / f"m{suffix}"
    write_state(path, OLD)
    before, line = set(threading.enumerate()), 1 - every
    states = {50: OLD, 70: NEW}
    sizes = set()
    while True:
        line += every
        ended = struck_at(line, lambda: write_state(path, NEW))
        assert threads_gone(before), line
        with open_state(path) as reader:
            found = dict(reader)
        sizes.add(found["a"].size)
        for name, array in states[found["a"].size].items():
            np.testing.assert_array_equal(found[name], array)
        if not ended:
            break
    assert line > 100
    assert sizes == {50, 70}


def test_nobody_sees_what_the_old_file_kept_from_them(tmp_path):
    path = tmp_path / "m"
    path.write_text("old")
    path.chmod(0o600)
    with replacing(path) as beside:
        assert beside.stat().st_mode & 0o777 == 0o600
        beside.write_text("new")
        assert beside.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text("utf-8") == "new"


def test_a_file_that_its_owner_may_only_read_stays_one(tmp_path):
    path = tmp_path / "m"
    path.write_text("old")
    path.chmod(0o440)
    with replacing(path) as beside:
        beside.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o440


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_the_owner_stays(tmp_path):
    path = tmp_path / "m"
    path.write_text("old")
    os.chown(path, 65534, 65534)
    with replacing(path) as beside:
        beside.write_text("new")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 230])
def test_the_longest_names_that_a_file_system_takes(tmp_path, name):
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        pytest.skip("a name that the language of this machine has not: see below")
    path = tmp_path / name
    for text in ("old", "new"):
        with replacing(path) as beside:
            beside.write_text(text)
        assert path.read_text("utf-8") == text
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("format", [None, "npz", "hdf5", "pickle"])
def test_a_device_is_no_file_to_write(format):
    with pytest.raises(FileAccessError, match="received a device or pipe"):
        write_state(os.devnull, OLD, format)


def test_a_name_that_the_language_of_the_machine_has_not(tmp_path):
    """Under LC_ALL=C, where Python takes file names for ASCII."""
    code = (
        "import sys, numpy as np; from singanet.errors import FileAccessError\n"
        "from singanet.checkpoint import open_state, write_state\n"
        "path = sys.argv[1] + '/gr\\u00f6\\u00dfer.npz'\n"
        "for work in (lambda: write_state(path, {'a': np.ones(2)}), lambda: open_state(path)):\n"
        "    try: work()\n"
        "    except FileAccessError as error: assert 'PYTHONUTF8' in str(error)\n"
        "    else: raise SystemExit(3)\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
