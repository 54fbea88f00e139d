"""Slots that rest, and machines that do not answer."""

from __future__ import annotations

import stat
import sys
import time

import pytest

from singanet.errors import BackendError
from singanet.parallel.launch.hosts import Host, Knocking, Slots
from singanet.parallel.launch.job import Ending, JobOptions
from singanet.parallel.launch.start import Restarts


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
    machines.answer["b"] = None
    assert (slots.look(), slots.known) == ([Host("a", 1)], False)
    machines.answer["b"] = False
    assert (slots.look(), slots.known) == ([Host("a", 1)], True)
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


@pytest.fixture
def ssh(tmp_path):
    """A command that speaks as ssh does, to machines that are up, down, or lost."""
    path = tmp_path / "ssh"
    path.write_text(
        f"#!{sys.executable}\nimport sys, time\nname = sys.argv[-2]\n"
        "assert 'BatchMode=yes' in sys.argv\n"
        "if name == 'lost': time.sleep(60)\nsys.exit(255 * (name != 'up'))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PRTE_MCA_plm_ssh_agent": str(path)}


def test_machines_are_asked_by_ssh_without_waiting(ssh, monkeypatch):
    monkeypatch.setattr("singanet.parallel.launch.hosts._ANSWER", 0.5)
    knocking = Knocking(ssh)
    said = dict.fromkeys(("up", "down", "lost"))
    began = time.monotonic()
    assert [knocking(name) for name in said] == [None] * 3
    assert time.monotonic() - began < 0.5
    while None in said.values():
        said = {name: knocking(name) if known is None else known for name, known in said.items()}
        assert time.monotonic() - began < 10.0
        time.sleep(0.02)
    assert said == {"up": True, "down": False, "lost": False}
    assert [knocking(name) for name in ("localhost", "127.0.0.1")] == [True, True]


def test_machines_that_nothing_here_reaches_are_taken_to_answer():
    assert Knocking({"OMPI_MCA_plm_rsh_agent": "/nowhere/agent -x"})("up") is True


@pytest.fixture
def runs(monkeypatch):
    """Run endings, one after the other; the sizes that were started, the status, what was said."""
    monkeypatch.setattr("singanet.parallel.launch.start._EVERY", 0.0)
    monkeypatch.setattr("singanet.parallel.launch.start._LOOK", 0.001)

    def call(machines, sizes, endings, ranks=9, restarts=0, deadline=0.05, rest=10.0):
        started, said, rest_of = [], [], iter(endings)

        def start(options, hosts, number, wanted):
            started.append({host.name: host.slots for host in hosts})
            assert number == len(started) - 1
            assert options.ranks == sum(started[-1].values())
            assert options.program == (["again"] if number else ["first"])
            ending = next(rest_of)
            return ending(wanted) if callable(ending) else ending

        options = JobOptions(
            ranks, ["first"], restarts=restarts, deadline=deadline, sizes=sizes,
            resumed=lambda program: ["again"],
        )  # fmt: skip
        job = Restarts(options, machines.read, machines.made(rest), said.append)
        return job.run(start), started, said

    return call


ENDED, KILLED, FAILED = Ending(0, final=True), Ending(137, dead=(2,), step=5), Ending(1, step=5)


def test_a_job_goes_on_with_fewer_and_then_with_more(runs):
    machines = Machines(a=2, b=1)

    def enlarged(wanted):
        assert not wanted()
        machines.now = 11.0
        assert wanted()
        return Ending(130, left=True)

    status, started, said = runs(machines, (2, 3), [KILLED, enlarged, ENDED])
    assert (status, started) == (0, [{"a": 2, "b": 1}, {"a": 2}, {"a": 2, "b": 1}])
    assert said == [
        "rank 2 has died: a slot of b rests for 10 s",
        "continues with 2 ranks",
        "3 ranks can work instead of 2: from the next checkpoint on",
        "continues with 3 ranks",
    ]


def test_a_job_begins_with_as_many_as_it_was_told_and_grows_to_its_most(runs):
    def enlarged(wanted):
        assert wanted()
        return Ending(130, left=True)

    _, started, _ = runs(Machines(a=9), (1, 4), [enlarged, ENDED], ranks=2)
    assert started == [{"a": 2}, {"a": 4}]


def test_another_free_slot_takes_the_place_at_once(runs):
    _, started, _ = runs(Machines(a=2, b=4), (3, 3), [KILLED, ENDED])
    assert started == [{"a": 2, "b": 1}] * 2


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
        return Ending(130, left=True)

    _, started, said = runs(machines, (1, 3), [lost, back, ENDED])
    assert started == [{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}]
    assert "no answer of b" in said


def test_a_failure_that_is_no_death_is_begun_anew_so_often(runs):
    status, started, said = runs(Machines(a=2), (1, 2), [FAILED, FAILED], restarts=1)
    assert (status, len(started)) == (1, 2)
    assert "restart 1 of 1" in said


def test_a_job_of_which_too_few_are_left_ends_in_words(runs):
    with pytest.raises(BackendError) as error:
        runs(Machines(a=2, b=1), (3, 3), [KILLED])
    text = str(error.value)
    assert "3 free slots within 0.05 s" in text
    assert "2 of a free; 1 rest, as their ranks have died" in text
    assert "--elastic MIN:MAX" in text


def test_a_job_that_dies_where_it_died_before_ends(runs):
    """It worked for long each time, and got no further."""
    machines = Machines(a=1)
    pauses = []

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
