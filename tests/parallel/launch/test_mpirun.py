import os
import sys

import pytest

from singanet.errors import BackendError
from singanet.parallel.launch import hosts as mpirun
from singanet.parallel.launch.hosts import Death, Host

# What Open MPI 5.0.11 said.
KILLED = """\
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 28626 on node vm exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
EXITED = """\
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-28609@1,12]
   Exit code:    3
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("text", "death"),
    [
        (KILLED, Death(1, "was killed by SIGKILL", 137)),
        (KILLED.replace("signal 9", "signal 63"), Death(1, "was killed by signal 63", 191)),
        (EXITED, Death(12, "ended with status 3", 3)),
        ("ssh: connect to host node7: No route to host", None),
    ],
)
def test_the_rank_that_mpirun_names_is_found(text, death):
    assert mpirun.death_in(f"something before\n{text}") == death


def test_hosts_are_read_with_their_slots(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# ours\nnode1 slots=4\nnode2   max_slots=8 slots = 2  # the old one\n\nnode3\n"
    )
    hosts = mpirun.read_hosts(path)
    assert hosts == [Host("node1", 4), Host("node2", 2), Host("node3", 1)]
    # The first lap fills the slots, and each lap after it puts as many.
    assert [mpirun.local_ranks(n, hosts) for n in (3, 7, 8)] == [3, 4, 8]
    assert mpirun.local_ranks(5, []) == 5


def test_hosts_without_any_are_refused(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# none\n")
    with pytest.raises(BackendError, match="node1 slots=4"):
        mpirun.read_hosts(path)


def test_root_and_too_few_cores_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr(mpirun, "cores", lambda: 8)
    monkeypatch.setattr(mpirun, "is_root", lambda: False)
    assert [mpirun.threads_a_rank(n) for n in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert mpirun.notes(8, "1") == ""
    assert "--allow-run-as-root" not in mpirun.flags(2, None, tmp_path)
    monkeypatch.setattr(mpirun, "is_root", lambda: True)
    said = mpirun.notes(9, "1")
    assert "--allow-run-as-root" in said
    assert "9 ranks take turns on 8 cores (--oversubscribe)" in said
    assert "--allow-run-as-root" in mpirun.flags(2, None, tmp_path)


@pytest.mark.parametrize("user", [0, 1000])
def test_root_is_who_has_no_other_number(monkeypatch, tmp_path, user):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-run-as-root" in mpirun.flags(2, None, tmp_path)) == (user == 0)


def test_ranks_of_other_machines_have_folders_of_their_own(tmp_path):
    told = mpirun.flags(4, tmp_path / "hosts", tmp_path)
    assert told[-2:] == ["--hostfile", str(tmp_path / "hosts")]
    assert "prte_tmpdir_base" not in told


@pytest.mark.parametrize("missing", ["mpi4py", "mpirun", "Open MPI"])
def test_it_is_said_what_to_install(missing, monkeypatch, tmp_path):
    found = None if missing == "mpi4py" else object()
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing == "Open MPI":
        other = tmp_path / "mpirun"
        other.write_text("#!/bin/sh\necho HYDRA build details:\n")
        os.chmod(other, 0o755)
    with pytest.raises(BackendError, match=r"singanet\[mpi\]") as refused:
        mpirun.find_mpirun()
    assert {"mpi4py": "no mpi4py", "mpirun": "no mpirun", "Open MPI": "HYDRA"}[missing] in str(
        refused.value
    )
