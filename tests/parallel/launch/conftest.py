from __future__ import annotations

import stat
import sys
import tempfile

import pytest

from singanet.parallel.launch import hosts, rank

FAKE = """#!{python}
import os, subprocess, sys, time
words = sys.argv[1:]
count = int(words[words.index("-n") + 1])
program = words[words.index(sys.executable):]
ranks = []
for k in range(count):
    env = {{**os.environ, "OMPI_COMM_WORLD_RANK": str(k), "OMPI_COMM_WORLD_SIZE": str(count)}}
    ranks.append(subprocess.Popen(program, env=env, start_new_session=True))
while all(rank.poll() in (None, 0) for rank in ranks):
    if all(rank.poll() is not None for rank in ranks):
        sys.exit(0)
    time.sleep(0.01)
for k, rank in enumerate(ranks):
    if rank.poll() is None:
        rank.terminate()
    elif rank.returncode < 0:
        status = 128 - rank.returncode
        print(f"noticed that process rank {{k}} with PID {{rank.pid}} on node here exited on\\n"
              f"signal {{-rank.returncode}} (Killed).", file=sys.stderr)
    elif rank.returncode:
        status = rank.returncode
        print(f"   Process name: [prterun-here-1@1,{{k}}]\\n   Exit code:    {{status}}",
              file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture
def fake_mpirun(tmp_path, monkeypatch):
    """A launcher of processes that speaks as mpirun does, where there is no MPI."""
    path = tmp_path / "mpirun"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(hosts, "find_mpirun", lambda: str(path))
    return path


@pytest.fixture
def nothing_left(tmp_path, monkeypatch):
    """Fails where a job leaves a folder or shared memory."""
    places = [tmp_path / "temporary", tmp_path / "memory"]
    for place in places:
        place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places[0]))
    monkeypatch.setattr(rank, "_FOLDER_MEMORY", places[1])
    yield
    assert [path for place in places for path in place.iterdir()] == []
