"""Jobs whose ranks become fewer and more, from one checkpoint to the next."""

from __future__ import annotations

import pytest

from singanet.errors import BackendError
from singanet.parallel.launch import JobOptions, job, launch
from tests.parallel.launch.test_job import ROOT

# A training that goes on from a file, of ranks that have nothing to tell each other.
TRAINS_ALONE = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from singanet.base.processes import LEAVING
from singanet.parallel.communicators.rank_file import JOB, own_file, read_state

rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
own = own_file()

def at(rank, step):
    other = read_state(Path(os.environ[JOB]), rank)
    return other is not None and other.step == step

how, folder, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
saved, first = folder / "step", os.environ["SINGANET_RESTART"] == "0"
if rank == size - 1 and first and how == "hang": time.sleep(60)
if first and how == "hang":
    own.tell("comes")
    time.sleep(60)
own.tell("met")
for step in range(int(saved.read_text()) if saved.exists() else 0, 20):
    own.tell(step=step)
    if step == 3 and first and how == "kill":
        while not all(at(other, 3) for other in range(size)): time.sleep(0.01)
        if rank == size - 1: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    if rank == 0:
        (folder / "taken").open("a").write(f"{{step}} {{size}}\\n")
        beside = folder / "beside"
        beside.write_text(str(step + 1))
        beside.rename(saved)
        if step == 3 and how == "hosts": (folder / "hosts").write_text("localhost slots=2")
    time.sleep(0.1 if size < most else 0.0)
    try:
        if LEAVING.asked and rank == 0: LEAVING.leave()
    except KeyboardInterrupt:
        if how != "catch": raise
        sys.exit(0)  # a program that ends well by Ctrl-C
"""


@pytest.fixture
def resized(fake_mpirun, nothing_left, tmp_path, capfd, monkeypatch):
    """Run a job between two sizes; the status, the steps taken with their sizes, what was said."""
    monkeypatch.setattr("singanet.parallel.launch.start._EVERY", 0.1)
    script = tmp_path / "script.py"
    script.write_text(TRAINS_ALONE.format(root=str(ROOT)))

    def call(how, ranks, sizes, **options):
        program = [str(script), how, str(tmp_path), str(sizes[1] - (how == "hosts"))]
        status = launch(JobOptions(ranks, program, sizes=sizes, **options))
        lines = (tmp_path / "taken").read_text("utf-8").splitlines()
        return status, [tuple(map(int, line.split())) for line in lines], capfd.readouterr().err

    return call


def sizes_of(taken):
    """The sizes in turn, of steps of which each was taken."""
    assert sorted({step for step, _ in taken}) == list(range(20))
    sizes = [size for _, size in taken]
    return [size for k, size in enumerate(sizes) if not k or sizes[k - 1] != size]


@pytest.mark.full
def test_fewer_go_on_and_more_from_the_next_checkpoint(resized):
    status, taken, err = resized("kill", 2, (1, 2), rest=0.2)
    assert status == 0, err
    assert sizes_of(taken) == [2, 1, 2]
    assert "rank 1 of 2" in err
    assert "was killed by SIGKILL" in err
    assert err.index("continues with 1 rank\n") < err.index("continues with 2 ranks")
    # No step that was in a file was taken again.
    assert len(taken) == 20


@pytest.mark.full
def test_a_program_that_ends_well_by_an_interrupt_goes_on_all_the_same(resized):
    status, taken, err = resized("catch", 1, (1, 2))
    assert status == 0, err
    assert sizes_of(taken) == [1, 2]


@pytest.mark.full
def test_a_rank_that_hangs_before_all_meet_is_dead_after_the_deadline(resized, monkeypatch):
    look = job.Job._look_at_start

    def later(self, ranks, states, now):
        """The deadline is over as soon as the other rank waits."""
        if any(state.phase == "comes" for state in states):
            self._launched = now - 90.0
            self._starting = {pid: job.process_time(pid) for pid, rank in ranks.items() if rank}
            self._busy = now - 90.0
        look(self, ranks, states, now)

    monkeypatch.setattr(job.Job, "_look_at_start", later)
    status, taken, err = resized("hang", 2, (1, 2), deadline=60.0, rest=90.0)
    assert status == 0, err
    assert "rank 1 of 2 has not reached parallel.init in 9" in err
    assert "rank 1 has died: a slot of" in err
    assert "continues with 1 rank\n" in err
    assert taken[-1] == (19, 1)


def test_a_job_with_too_few_slots_ends_after_the_deadline(resized, tmp_path, capfd):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1")
    with pytest.raises(BackendError) as error:
        resized("well", 2, (2, 2), hosts=hosts, deadline=0.5)
    assert "2 free slots within 0.5 s; received 1 of localhost free" in str(error.value)
    assert "waits for 2 free slots: 1 of localhost free" in capfd.readouterr().err


@pytest.mark.full
def test_machines_that_a_hosts_file_gets_are_taken_in(resized, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1")
    status, taken, err = resized("hosts", 1, (1, 3), hosts=hosts)
    assert status == 0, err
    assert sizes_of(taken) == [1, 2]
