import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from singanet.parallel.communicators.rank_file import JOB
from singanet.parallel.launch import rank as folders
from singanet.parallel.launch.job import process_state
from singanet.parallel.launch.rank import JobFolder, job_folder, sweep_lost


def sleeper(path, **options):
    """A process of the job in ``path``."""
    code = "import time; time.sleep(60)"
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, JOB: str(path)}, **options
    )


def ended(process):
    return process.wait(timeout=10) == -signal.SIGKILL


def test_nothing_of_a_job_is_left(nothing_left):
    with job_folder() as folder:
        others = sleeper("/tmp/another job")
        running, stopped = sleeper(folder.path), sleeper(folder.path, start_new_session=True)
        os.kill(stopped.pid, signal.SIGSTOP)
        (folder.shared / "segment").write_bytes(b"x")
        (folder.path / "below").mkdir()
        while process_state(stopped.pid) != "T" or len(folder.processes()) < 2:
            time.sleep(0.01)
    assert ended(running)
    assert ended(stopped)
    assert others.poll() is None
    others.kill()
    others.wait()


@pytest.mark.parametrize(("count", "ends_in"), [(10, 0.5), (10**6, 5.5)])
def test_what_processes_begin_in_their_end_is_ended_too(monkeypatch, tmp_path, count, ends_in):
    """Soon, and no end is waited for longer than five seconds."""
    now, killed = [0.0], []
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(folders, "time", clock)
    monkeypatch.setattr(os, "kill", lambda pid, how: killed.append((pid, how)))
    # Each that is killed has begun one more.
    found = lambda self: [len(killed)] if len(killed) < count else []  # noqa: E731
    monkeypatch.setattr(JobFolder, "processes", found)
    JobFolder(tmp_path).kill()
    assert killed == [(pid, signal.SIGKILL) for pid in range(len(killed))]
    assert len(killed) >= 10
    assert ends_in - 0.5 < now[0] < ends_in


def test_no_handle_of_a_job_stays_open(nothing_left):
    def opened(about):
        found = []
        for handle in os.listdir("/dev/fd"):
            with suppress(OSError):
                found.append(os.path.samestat(os.fstat(int(handle)), about))
        return any(found)

    with job_folder() as folder:
        about = folder.path.stat()
        assert opened(about)
    assert not opened(about)


def test_what_a_killed_launcher_has_left_is_swept_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_FOLDER_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    lost = tmp_path / "singanet-job-lost"
    lost.mkdir()
    (tmp_path / "memory" / lost.name).mkdir()
    alone = tmp_path / "memory" / "singanet-job-alone"
    alone.mkdir()
    os.utime(alone, (time.time() - 100,) * 2)
    process = sleeper(lost)
    sweep_lost()
    assert not alone.exists()
    assert lost.exists()  # it may be one that begins just now
    os.utime(lost, (time.time() - 100,) * 2)
    with job_folder() as mine:
        os.utime(mine.path, (time.time() - 100,) * 2)
        sweep_lost()
        assert mine.path.exists()
    assert ended(process)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "memory"]
    assert not any(Path(tmp_path / "memory").iterdir())
