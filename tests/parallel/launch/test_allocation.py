"""What Slurm and PBS tell of the machines of a job."""

from __future__ import annotations

import socket

import pytest

from singanet.errors import BackendError
from singanet.parallel.launch import hosts
from singanet.parallel.launch.hosts import Host, allocated, elsewhere, expanded


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node", ["node"]),
        ("a,b-1,c.d", ["a", "b-1", "c.d"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11],m[1]-ib", ["n08", "n09", "n10", "n11", "m1-ib"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)
def test_names_of_slurm(text, names):
    assert expanded(text) == names


def test_slots_of_slurm():
    told = {"SLURM_JOB_NODELIST": "n[1-3],big", "SLURM_TASKS_PER_NODE": "4(x3),16"}
    assert allocated(told) == [Host("n1", 4), Host("n2", 4), Host("n3", 4), Host("big", 16)]
    del told["SLURM_TASKS_PER_NODE"]
    assert [host.slots for host in allocated(told)] == [1, 1, 1, 1]


def test_slots_of_pbs(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("n1\nn1\nn2\nn1\n")
    assert allocated({"PBS_NODEFILE": str(file)}) == [Host("n1", 3), Host("n2", 1)]
    assert allocated({}) == []


@pytest.mark.parametrize(
    "told",
    [
        {"SLURM_JOB_NODELIST": "n[1-"},
        {"SLURM_JOB_NODELIST": "n[a-b]"},
        {"SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "4"},
        {"SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "many"},
        {"PBS_NODEFILE": "/nowhere/at/all"},
    ],
)
def test_what_is_none_of_theirs_is_refused(told):
    with pytest.raises(BackendError, match=r"expected .*; received .*; pass --hosts"):
        allocated(told)


def test_other_machines_are_told_from_this_one(tmp_path):
    own = socket.gethostname()
    assert not elsewhere([])
    assert not elsewhere([Host(own, 2), Host("localhost", 1), Host(f"{own.split('.')[0]}.x", 1)])
    assert elsewhere([Host(own, 2), Host("another", 2)])
    # mpirun reads the allocation itself.
    assert "--hostfile" not in hosts.flags(4, None, tmp_path, remote=True)
    assert "prte_tmpdir_base" not in hosts.flags(4, None, tmp_path, remote=True)


JOB = """
from pathlib import Path
import sys
from singanet import parallel

comm = parallel.init()
(Path(sys.argv[1]) / str(comm.rank)).write_text(str(comm.size))
"""


@pytest.mark.full
@pytest.mark.parametrize("manager", ["slurm", "pbs", "hosts"])
def test_a_job_has_the_ranks_of_its_allocation(manager, tmp_path, monkeypatch):
    """Open MPI's own reading of the same variables, of this one machine."""
    pytest.importorskip("mpi4py", exc_type=ImportError)
    from singanet.__main__ import main

    own = socket.gethostname()
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "nodes").write_text(f"{own}\n" * 3)
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    told = {
        "slurm": {
            "SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_NODELIST": own,
            "SLURM_JOB_NODELIST": own, "SLURM_TASKS_PER_NODE": "3", "SLURM_NNODES": "1",
            "SLURM_JOB_NUM_NODES": "1",
        },
        "pbs": {
            "PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_NODEFILE": str(tmp_path / "nodes"),
        },
        "hosts": {},
    }[manager]  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    options = ["--hosts", str(tmp_path / "hosts")] if manager == "hosts" else []
    out = tmp_path / "out"
    out.mkdir()
    assert main(["launch", *options, str(tmp_path / "job.py"), str(out)]) == 0
    assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys("012", "3")
