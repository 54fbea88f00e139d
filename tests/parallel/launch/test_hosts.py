"""Machines: what Slurm, PBS, hosts files and mpirun tell of them, which can work, which rest."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time

import pytest

from singanet.__main__ import main
from singanet.errors import BackendError
from singanet.parallel.launch import hosts
from singanet.parallel.launch.hosts import Death, Host, Knocking, Slots, allocated, expanded
from singanet.parallel.launch.job import Ending, JobOptions
from singanet.parallel.launch.start import Restarts

OWN = socket.gethostname()


# -- what an allocation and a file tell -----------------------------------------------------------


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


def test_slots_of_slurm_and_pbs(tmp_path):
    told = {"SLURM_JOB_NODELIST": "n[1-3],big", "SLURM_TASKS_PER_NODE": "4(x3),16"}
    assert allocated(told) == [Host("n1", 4), Host("n2", 4), Host("n3", 4), Host("big", 16)]
    del told["SLURM_TASKS_PER_NODE"]
    assert [host.slots for host in allocated(told)] == [1, 1, 1, 1]
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
    assert not hosts.elsewhere([])
    same = [Host(OWN, 2), Host("localhost", 1), Host(f"{OWN.split('.')[0]}.x", 1)]
    assert not hosts.elsewhere(same)
    assert hosts.elsewhere([Host(OWN, 2), Host("another", 2)])
    # mpirun reads the allocation itself; ranks of other machines have folders of their own.
    words = hosts.flags(4, None, tmp_path, remote=True)
    assert not {"--hostfile", "prte_tmpdir_base"} & {*words}
    told = hosts.flags(4, tmp_path / "hosts", tmp_path)
    assert told[-2:] == ["--hostfile", str(tmp_path / "hosts")]
    assert "prte_tmpdir_base" not in told


def test_hosts_are_read_with_their_slots(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# ours\nnode1 slots=4\nnode2   max_slots=8 slots = 2  # the old one\n\nnode3\n"
    )
    found = hosts.read_hosts(path)
    assert found == [Host("node1", 4), Host("node2", 2), Host("node3", 1)]
    # The first lap fills the slots, and each lap after it puts as many.
    assert [hosts.local_ranks(n, found) for n in (3, 7, 8)] == [3, 4, 8]
    assert hosts.local_ranks(5, []) == 5
    path.write_text("# none\n")
    with pytest.raises(BackendError, match="node1 slots=4"):
        hosts.read_hosts(path)


JOB = """
from pathlib import Path
import sys
from singanet import parallel

comm = parallel.init()
(Path(sys.argv[1]) / str(comm.rank)).write_text(str(comm.size))
"""
MANAGERS = {
    "slurm": {
        "SLURM_JOBID": "7", "SLURM_JOB_ID": "7", "SLURM_NODELIST": OWN, "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": OWN, "SLURM_TASKS_PER_NODE": "3", "SLURM_JOB_NUM_NODES": "1",
    },
    "pbs": {"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH"},
    "hosts": {},
}  # fmt: skip


@pytest.mark.few(0, full=1)
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_job_has_the_ranks_of_its_allocation(manager, tmp_path, monkeypatch):
    """Open MPI's own reading of the same variables, of this one machine."""
    pytest.importorskip("mpi4py", exc_type=ImportError)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "nodes").write_text(f"{OWN}\n" * 3)
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    for name, value in MANAGERS[manager].items():
        monkeypatch.setenv(name, value)
    if manager == "pbs":
        monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    options = ["--hosts", str(tmp_path / "hosts")] if manager == "hosts" else []
    out = tmp_path / "out"
    out.mkdir()
    assert main(["launch", *options, str(tmp_path / "job.py"), str(out)]) == 0
    assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys("012", "3")


# -- mpirun ---------------------------------------------------------------------------------------

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
    assert hosts.death_in(f"something before\n{text}") == death


def test_root_and_too_few_cores_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr(hosts, "cores", lambda: 8)
    for user in (1000, 0):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert ("--allow-run-as-root" in hosts.flags(2, None, tmp_path)) == (user == 0)
        assert ("--allow-run-as-root" in hosts.notes(9, "1")) == (user == 0)
        assert (hosts.notes(8, "1") == "") == (user != 0)
    assert [hosts.threads_a_rank(n) for n in (1, 3, 8, 20)] == [8, 2, 1, 1]
    assert "9 ranks take turns on 8 cores (--oversubscribe)" in hosts.notes(9, "1")


@pytest.mark.parametrize(
    ("missing", "told"), [("mpi4py", "no mpi4py"), ("mpirun", "no mpirun"), ("Open MPI", "HYDRA")]
)
def test_it_is_said_what_to_install(missing, told, monkeypatch, tmp_path):
    found = None if missing == "mpi4py" else object()
    monkeypatch.setattr(hosts.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing == "Open MPI":
        other = tmp_path / "mpirun"
        other.write_text("#!/bin/sh\necho HYDRA build details:\n")
        os.chmod(other, 0o755)
    with pytest.raises(BackendError, match=r"singanet\[mpi\]") as refused:
        hosts.find_mpirun()
    assert told in str(refused.value)


# -- slots that rest, and machines that do not answer ---------------------------------------------


class Machines:
    """Machines by name, of which some answer, and a clock."""

    def __init__(self, **slots):
        self.slots, self.answer, self.now, self.asked = slots, dict.fromkeys(slots, True), 0.0, []

    def read(self):
        return [Host(name, count) for name, count in self.slots.items()]

    def answers(self, name):
        self.asked.append(name)
        return self.answer.get(name, True)

    def made(self, rest=10.0):
        return Slots(self.read, self.answers, rest, lambda: self.now)


def test_a_slot_whose_rank_has_died_rests_longer_each_time():
    machines = Machines(a=2, b=1)
    slots = machines.made()
    assert slots.look() == [Host("a", 2), Host("b", 1)]
    for pause in (10.0, 20.0, 40.0):
        assert slots.died("a", 1, 5.0) == pause
        assert slots.look() == [Host("a", 1), Host("b", 1)]
        machines.now += pause - 0.1
        assert slots.look() == [Host("a", 1), Host("b", 1)]
        machines.now += 0.2
        assert slots.look() == [Host("a", 2), Host("b", 1)]
    # It has worked ten times as long as it rested.
    assert slots.died("a", 2, 401.0) == 10.0
    assert slots.look() == [Host("b", 1)]
    assert "1 of b free; 2 rest" in slots.told()
    for _ in range(9):
        pause = slots.died("b", 1, 0.0)
    assert pause == 600.0


def test_a_machine_that_does_not_answer_is_asked_again():
    machines = Machines(a=1, b=2)
    slots = machines.made()
    for answer, known in ((None, False), (False, True)):
        machines.answer["b"] = answer
        assert (slots.look(), slots.known) == ([Host("a", 1)], known)
    assert (slots.silent, slots.told()) == ({"b"}, "1 of a free; no answer of b")
    machines.answer["b"] = True
    asked = len(machines.asked)
    machines.now = 9.9
    assert slots.look() == [Host("a", 1)]
    assert len(machines.asked) == asked
    machines.now = 10.1
    assert slots.look() == [Host("a", 1), Host("b", 2)]
    # What has answered is asked no more, but where a job on it has failed.
    asked = len(machines.asked)
    assert slots.look()
    assert len(machines.asked) == asked
    slots.doubt()
    assert slots.look()
    assert machines.asked[asked:] == ["a", "b"]


def test_machines_come_and_go_with_the_hosts_file():
    machines = Machines(a=1)
    slots = machines.made()
    assert slots.look() == [Host("a", 1)]
    machines.slots = {"b": 3}
    assert slots.look() == [Host("b", 3)]
    machines.read = lambda: [Host("a", 1), Host("b", 1), Host("a", 2)]
    slots = machines.made()
    slots.died("a", 1, 0.0)
    assert slots.look() == [Host("a", 2), Host("b", 1)]


def test_machines_are_asked_by_ssh_without_waiting(tmp_path, monkeypatch):
    path = tmp_path / "ssh"
    path.write_text(
        f"#!{sys.executable}\nimport sys, time\nname = sys.argv[-2]\n"
        "assert 'BatchMode=yes' in sys.argv\n"
        "if name == 'lost': time.sleep(60)\nsys.exit(255 * (name != 'up'))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(hosts, "_ANSWER", 0.5)
    knocking, said = Knocking({"PRTE_MCA_plm_ssh_agent": str(path)}), {}
    began = time.monotonic()
    assert [knocking(name) for name in ("up", "down", "lost")] == [None] * 3
    assert time.monotonic() - began < 0.5
    while None in said.values() or not said:
        for name in {"up", "down", "lost"} - {n for n, known in said.items() if known is not None}:
            said[name] = knocking(name)
        assert time.monotonic() - began < 10.0
        time.sleep(0.02)
    assert said == {"up": True, "down": False, "lost": False}
    assert [knocking(name) for name in ("localhost", "127.0.0.1")] == [True, True]
    # Machines that nothing here reaches are taken to answer.
    assert Knocking({"OMPI_MCA_plm_rsh_agent": "/nowhere/agent -x"})("up") is True


@pytest.fixture
def runs(monkeypatch):
    """Run endings, one after the other; the sizes that were started, the status, what was said."""
    monkeypatch.setattr("singanet.parallel.launch.start._EVERY", 0.0)
    monkeypatch.setattr("singanet.parallel.launch.start._LOOK", 0.001)

    def call(machines, sizes, endings, ranks=9, restarts=0):
        started, said, rest_of = [], [], iter(endings)

        def start(options, hosts, number, wanted):
            started.append({host.name: host.slots for host in hosts})
            assert number == len(started) - 1
            assert options.ranks == sum(started[-1].values())
            assert options.program == (["again"] if number else ["first"])
            ending = next(rest_of)
            return ending(wanted) if callable(ending) else ending

        options = JobOptions(
            ranks, ["first"], restarts=restarts, deadline=0.05, sizes=sizes,
            resumed=lambda program: ["again"],
        )  # fmt: skip
        job = Restarts(options, machines.read, machines.made(10.0), said.append)
        return job.run(start), started, said

    return call


ENDED, KILLED_TWO, FAILED = Ending(0, final=True), Ending(137, dead=(2,), step=5), Ending(1, step=5)
ENLARGED = Ending(130, left=True)


def test_a_job_goes_on_with_fewer_and_then_with_more(runs):
    machines = Machines(a=2, b=1)

    def enlarged(wanted):
        assert not wanted()
        machines.now = 11.0
        assert wanted()
        return ENLARGED

    status, started, said = runs(machines, (2, 3), [KILLED_TWO, enlarged, ENDED])
    assert (status, started) == (0, [{"a": 2, "b": 1}, {"a": 2}, {"a": 2, "b": 1}])
    assert said == [
        "rank 2 has died: a slot of b rests for 10 s",
        "continues with 2 ranks",
        "3 ranks can work instead of 2: from the next checkpoint on",
        "continues with 3 ranks",
    ]


def test_a_machine_that_is_lost_is_left_and_taken_in_again(runs):
    machines = Machines(a=1, b=2)

    def lost(_):
        machines.answer["b"] = False
        return Ending(1)

    def back(wanted):
        machines.now = 11.0
        assert not wanted()
        machines.answer["b"], machines.now = True, 40.0
        assert wanted()
        return ENLARGED

    _, started, said = runs(machines, (1, 3), [lost, back, ENDED])
    assert started == [{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}]
    assert "no answer of b" in said


def test_jobs_begin_as_told_grow_take_free_slots_and_are_begun_anew_so_often(runs):
    def grows(wanted):
        assert wanted()
        return ENLARGED

    assert runs(Machines(a=9), (1, 4), [grows, ENDED], ranks=2)[1] == [{"a": 2}, {"a": 4}]
    # Another free slot takes the place at once.
    assert runs(Machines(a=2, b=4), (3, 3), [KILLED_TWO, ENDED])[1] == [{"a": 2, "b": 1}] * 2
    status, started, said = runs(Machines(a=2), (1, 2), [FAILED, FAILED], restarts=1)
    assert (status, len(started)) == (1, 2)
    assert "restart 1 of 1" in said


def test_a_job_of_which_too_few_are_left_ends_in_words(runs):
    with pytest.raises(BackendError) as error:
        runs(Machines(a=2, b=1), (3, 3), [KILLED_TWO])
    text = str(error.value)
    assert "3 free slots within 0.05 s" in text
    assert "2 of a free; 1 rest, as their ranks have died" in text
    assert "--elastic MIN:MAX" in text


def test_a_job_that_dies_where_it_died_before_ends(runs):
    """It worked for long each time, and got no further."""
    machines, pauses = Machines(a=1), []

    def dies(_):
        machines.now += 1e4
        return Ending(137, dead=(0,), step=7)

    class Waits(Slots):
        def died(self, name, count, worked):
            pauses.append(super().died(name, count, worked))
            machines.now += pauses[-1] if len(pauses) < 4 else 0.0
            return pauses[-1]

    machines.made = lambda rest: Waits(machines.read, machines.answers, rest, lambda: machines.now)
    with pytest.raises(BackendError):
        runs(machines, (1, 1), [dies] * 9)
    assert pauses == [10.0, 20.0, 40.0, 80.0]
