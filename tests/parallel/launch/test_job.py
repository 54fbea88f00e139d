"""Jobs of processes without MPI, which tell what they do as ranks tell it."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from singanet.base.processes import Leaving
from singanet.base.progress import ProgressBar
from singanet.parallel.communicators.rank_file import JOB, RankFile, RankState
from singanet.parallel.launch import JobOptions, hosts, job, launch, rank
from singanet.parallel.launch.job import Job, Outputs
from singanet.parallel.launch.rank import JobFolder, job_folder
from tests.terminals import pseudo_terminal

ROOT = Path(__file__).resolve().parents[3]

# Each rank takes steps; the last one does something in its fourth, for which the others wait.
HEAD = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from singanet.parallel.communicators.rank_file import JOB, own_file, read_state
from singanet.layers import Layer

rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
own = own_file()
print("out of", rank, *sys.argv[1:], flush=True)
print("err of", rank, file=sys.stderr, flush=True)

class Failing(Layer):
    def forward(self, ctx, x):
        raise KeyError("lost")

def until_others(do):
    "Until all others tell so, as ranks of MPI start together."
    while True:
        states = [read_state(Path(os.environ[JOB]), other) for other in range(size)]
        if all(state and (state.rank == rank or do(state)) for state in states): return
        time.sleep(0.01)

"""

RANK = (
    HEAD
    + """
def act(how):
    until_others(lambda state: state.phase == "waits")
    if how == "raise": Failing("fc3").forward(None, None)
    if how == "exit": sys.exit(7)
    if how == "once" and os.environ["SINGANET_RESTART"] != "0": return
    if how == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if how in ("kill", "once"): os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang": time.sleep(1.0)

for step in range(6):
    own.tell(step=step)
    if step == 3 and sys.argv[1] == "all":
        until_others(lambda state: state.step == 3)
        raise ValueError("everywhere")
    if step == 3 and sys.argv[1] != "well":
        if rank == size - 1: act(sys.argv[1])
        else:
            until_others(lambda state: state.step == 3)
            own.tell("waits", what="the gradients of fc/weight")
            time.sleep(1.0 if sys.argv[1] in ("once", "hang") else 30)
            own.tell("met")
"""
)


# All but the last rank wait within MPI for it, which does something instead of coming.
BEGINS = (
    HEAD
    + """
how = sys.argv[1]
if rank == size - 1:
    until_others(lambda state: state.phase == "comes")
    if how == "hang": time.sleep(30)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "met": own.tell("met")
    if how in ("leave", "met"): sys.exit(0)
    if how == "interrupt": raise KeyboardInterrupt
own.tell("comes")
time.sleep(30)
"""
)


def report(rank, status, kind, text):
    return {"rank": rank, "status": status, "kind": kind, "text": text, "time": 1.0}


@pytest.fixture
def started(fake_mpirun, nothing_left, tmp_path, capfd):
    """Start ranks that end in some way; the status and what was written."""
    script = tmp_path / "script.py"

    def call(how, ranks=2, text=RANK, **options):
        script.write_text(text.format(root=str(ROOT)))
        program = [str(script), how, *options.pop("more", [])]
        status = launch(JobOptions(ranks, program, patience=0.5, **options))
        return status, *capfd.readouterr()

    return call


def test_the_page_tells_the_defaults():
    page = (ROOT / "docs" / "parallel.md").read_text("utf-8")
    for name in ("patience", "stall", "deadline"):
        (told,) = re.findall(rf"^\| `--{name} S` .*\(default (\d+)\)", page, re.MULTILINE)
        assert getattr(JobOptions(1, ()), name) == float(told)


def test_what_rank_0_writes_can_be_read_by_its_user_alone(tmp_path):
    with Outputs(tmp_path, remote=False) as outputs:
        outputs.started()
        places = [place for place in tmp_path.iterdir() if place.is_fifo()]
        assert {stat.S_IMODE(place.stat().st_mode) for place in places} <= {0o600}


def test_a_rank_of_another_machine_makes_the_place_of_its_memory(tmp_path):
    """The folder of a job is only on its launcher's."""
    script = tmp_path / "script.py"
    script.write_text("import os, pathlib\nfrom singanet.parallel.launch.rank import _MEMORY\n"
                      "place = pathlib.Path(os.environ[_MEMORY])\n"
                      "print(place, oct(place.stat().st_mode & 0o777))\n"
                      "place.rmdir()\n"
                      "raise SystemExit\n")  # fmt: skip
    env = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    env |= {JOB: str(tmp_path / "elsewhere" / f"job-{os.getpid()}"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "singanet.parallel.launch.rank", str(script)]
    made = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert made.split() == [str(JobFolder(Path(env[JOB])).shared), "0o700"]


@pytest.mark.parametrize("more", [[], ["1", "two"]])
def test_a_rank_runs_modules_and_scripts_as_python_does(tmp_path, monkeypatch, capsys, more):
    (tmp_path / "shows.py").write_text(
        "import sys\nprint(__name__, sys.path[0], *sys.argv, sep='|')\n"
    )
    monkeypatch.chdir(tmp_path)
    for how, named in (["-m", "shows"], tmp_path / "shows.py"), (["shows.py"], "shows.py"):
        monkeypatch.setattr(sys, "argv", ["before"])
        monkeypatch.setattr(sys, "path", ["before", *sys.path])
        rank._run([*how, *more])
        assert capsys.readouterr().out.strip().split("|") == [
            "__main__",
            str(tmp_path),
            str(named),
            *more,
        ]


@pytest.mark.parametrize(
    ("status", "asks", "is_told"), [(130, True, False), (1, True, True), (130, False, True)]
)
def test_an_end_that_the_user_asked_for_needs_no_words(status, asks, is_told, capsys):
    with job_folder() as folder:
        watched = job.Job(JobOptions(2, ()), folder)
        if asks:
            watched._take(signal.SIGINT, None)
        rank._report(folder.path, report(1, status, "KeyError", "the traceback"))
        assert watched._ended(1, "") == status
    assert ("the traceback" in capsys.readouterr().err) == is_told


@pytest.mark.full
def test_the_machines_of_a_hosts_file_are_swept_in_the_end(
    started, fake_mpirun, tmp_path, monkeypatch
):
    swept, run = [], subprocess.run

    def noted(command, **options):
        swept.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    (tmp_path / "hosts").write_text("here slots=2\n")
    status, out, _ = started("well", text="print('here')", ranks=1, hosts=tmp_path / "hosts")
    assert (status, out) == (0, "here\n")
    (command,) = swept
    assert command[0] == str(fake_mpirun)
    assert command[-2] == "singanet.parallel.launch.start"


def test_ranks_are_looked_at_a_few_times_a_second(monkeypatch):
    """So often a stopped one counts as stopped for so long."""
    now, looks = [0.0], []

    class Ends:
        pid = 0

        def poll(self):
            return 0 if now[0] >= 10 else None

    class Waits:
        def carry(self, seconds):
            now[0] += seconds

    with job_folder() as folder:
        watched = job.Job(JobOptions(1, ()), folder)
        monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(job, "_LOOK", 0.25)  # of which parts are exact
        monkeypatch.setattr(job, "_ranks_of", lambda pid: {})
        monkeypatch.setattr(watched, "_look", lambda ranks, at: looks.append(at))
        watched._watch(Ends(), Waits())
    assert looks == [0.0625 + 0.25 * k for k in range(len(looks))]
    assert len(looks) == 40


@pytest.mark.parametrize(("asked_at", "ends_at"), [([1.0], 1.0 + job._GRACE), ([1.0, 5.0], 5.0)])
def test_ranks_have_their_time_to_end_until_asked_again(asked_at, ends_at, monkeypatch):
    now, asks = [0.0], [*asked_at]

    class Waits:
        def carry(self, seconds):
            now[0] += seconds
            if asks and now[0] >= asks[0]:
                del asks[0]
                watched._take(signal.SIGINT, None)

    with job_folder() as folder:
        watched = job.Job(JobOptions(1, ()), folder)
        monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(job, "_ranks_of", lambda pid: {})
        watched._watch(SimpleNamespace(pid=0, poll=lambda: 0 if now[0] > 100 else None), Waits())
    assert ends_at <= now[0] < ends_at + 0.5


def test_rank_0_speaks_for_all(started, tmp_path):
    status, out, err = started("well", log_dir=tmp_path / "logs", more=["an argument"])
    assert status == 0
    assert out == "out of 0 well an argument\n"
    assert [line for line in err.splitlines() if "launch" not in line] == ["err of 0"]
    log = (tmp_path / "logs" / "rank-1.log").read_text("utf-8")
    assert log.splitlines() == ["out of 1 well an argument", "err of 1"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("kill", 137, "was killed by SIGKILL"),
        ("exit", 7, "ended with status 7"),
        ("stop", 1, "has been stopped for 0."),
        ("raise", 1, "ended by KeyError in layer 'fc3'"),
    ],
)
def test_a_rank_that_ends_ends_all_and_is_named_with_its_step(how, status, told, started):
    ended, _, err = started(how)
    assert ended == status
    said = err[err.index("singanet launch: rank 1 of 2") :]
    assert ", step 3)" in said
    assert told in said
    assert "rank 0, step 3: waited" in said
    assert "for the gradients of fc/weight" in said
    assert (said.count("Traceback") == 1) == (how == "raise")
    if how == "exit":  # what the rank has written last, as no error of Python tells more
        assert "err of 1" in said


def test_an_error_of_all_ranks_is_told_once(started):
    status, _, err = started("all", ranks=3)
    assert status == 1
    assert err.count("Traceback") == 1
    assert err.count("ValueError: everywhere") == 1
    assert "rank 0 of 3" in err


def test_the_hosts_are_read_again_at_each_start(fake_mpirun, tmp_path, monkeypatch):
    hosts, seen = tmp_path / "hosts", []
    hosts.write_text("node1\n")

    def attempt(found, options, machines, number, wanted):
        seen.append([machine.name for machine in machines])
        # It may be half written by then.
        hosts.write_text("" if number else "node2\n")
        return job.Ending(1)

    monkeypatch.setattr("singanet.parallel.launch.start._attempt", attempt)
    assert launch(JobOptions(1, ["script.py"], hosts=hosts, restarts=2)) == 1
    assert seen == [["node1"], ["node2"], ["node2"]]


@pytest.mark.full
def test_a_job_is_begun_anew_as_often_as_it_may(started):
    status, out, err = started("once", restarts=2, resumed=lambda program: [*program, "--resume"])
    assert status == 0
    assert out == "out of 0 once\nout of 0 once --resume\n"
    assert err.count("restart 1 of 2") == 1
    status, _, err = started("exit", restarts=3, final=frozenset({7}))
    assert status == 7
    assert "restart" not in err


@pytest.mark.full
def test_a_stall_is_told_while_the_job_goes_on(started):
    status, _, err = started("hang", stall=0.3)
    assert status == 0
    assert err.count("1 of 2 ranks wait:") == 1
    assert "rank 0, step 3: waited 0." in err
    assert "rank 1, step 3: computed" in err
    assert re.search(r"rank 1 was in\n +File .*script\.py\", line \d+ in act\n", err)


def state(rank, phase="met", step=4, seconds=0.0):
    return RankState(rank, 7, phase, step, "the gradients of fc/weight", time.time() - seconds)


def test_only_a_wait_as_long_as_was_given_is_a_stall_and_told_once(monkeypatch, capfd):
    with job_folder() as folder:
        watched = job.Job(JobOptions(2, (), stall=60.0), folder)
        for seconds, told in ((1.0, 0), (59.0, 0), (61.0, 1), (70.0, 0)):
            waiting = state(0, "waits", seconds=seconds)
            monkeypatch.setattr(watched, "_states", lambda given=waiting: [given])
            watched._look({}, seconds)
            assert capfd.readouterr().err.count("1 of 2 ranks wait:") == told


def test_mpirun_that_cannot_start_is_quoted(fake_mpirun, started):
    fake_mpirun.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no route to node7')\n")
    status, _, err = started("well")
    assert status == 1
    assert "no route to node7" in err


def begins(started, how, told, **options):
    """A job whose last rank never comes to where the others wait, and which has ended for that."""
    status, _, err = started(how, text=BEGINS, **options)
    assert status in (1, 130, 137)
    assert "rank 1 of 2" in err
    assert told in err
    assert "rank 0, step 0: waited" in err


def test_who_waits_within_mpi_waits_no_longer_than_the_deadline(started):
    begins(started, "hang", "has not reached parallel.init in", deadline=0.5)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("hang", "has not reached parallel.init in"),
        pytest.param("kill", "", marks=pytest.mark.slow),
        pytest.param("leave", "has ended, and others wait for it", marks=pytest.mark.slow),
        pytest.param("met", "has ended, and others wait for it", marks=pytest.mark.slow),
        ("interrupt", "ended by KeyboardInterrupt"),
    ],
)
@pytest.mark.full
def test_what_ends_before_all_have_met_ends_the_job(how, told, started, monkeypatch):
    monkeypatch.setattr(job, "_NOTICE", 0.5)
    begins(started, how, told, deadline=0.5 if how == "hang" else 20.0)


# The last rank hangs or leaves no report; the others report that it does not answer.
VAIN = (
    HEAD
    + """
from singanet.errors import RankError

def stands_here(how):
    if how == "hang": time.sleep(30)
    print("the disk is full", flush=True)
    os._exit(3)

own.tell("met")
if rank == size - 1:
    until_others(lambda state: state.phase == "waits")
    stands_here(sys.argv[1])
own.tell("waits", what="the gradients of fc/weight")
time.sleep(0.5)
raise RankError("fc", expected="the others", received="no answer", advice="look")
"""
)


def test_the_line_is_told_at_which_a_rank_hangs(started):
    _, _, err = started("hang", text=VAIN)
    line = 1 + VAIN.splitlines().index("""    if how == "hang": time.sleep(30)""")
    assert re.search(r"rank 1 of 2 .* has made others wait; rank 0 ended by RankError\n", err)
    assert re.search(rf"rank 1 was in\n +File .*script\.py\", line {line} in stands_here\n", err)
    assert "runpy" not in err.partition("was in")[2]


def test_a_rank_that_ends_without_a_report_is_named_with_its_last_lines(started):
    status, _, err = started("leave", text=VAIN)
    assert status == 3
    assert re.search(r"rank 1 of 2 .* ended with status 3\n", err)
    assert "the disk is full" in err


def test_a_rank_that_still_computes_has_not_missed_where_all_begin(started):
    """Imports on a busy machine may take longer than a short deadline."""
    text = (
        BEGINS.partition("how = ")[0]
        + """
if rank == size - 1:
    end = time.process_time() + 2.0
    while time.process_time() < end: pass
    own.tell("met")
else:
    own.tell("comes")
    until_others(lambda state: state.has_met)
    own.tell("met")
"""
    )
    status, _, err = started("", text=text, deadline=1.0)
    assert (status, "has not reached" in err) == (0, False)


@pytest.mark.parametrize(("how", "status"), [("well", 0), ("exit", 7)])
def test_closed_streams_change_no_end(how, status, fake_mpirun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANK.format(root=str(ROOT)))
    code = (
        "import sys; from singanet.parallel.launch import hosts, launch, JobOptions;"
        f"hosts.find_mpirun = lambda: {str(fake_mpirun)!r};"
        f"sys.exit(launch(JobOptions(2, [{str(script)!r}, {how!r}])))"
    )
    run = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" 2>&- 0<&-', sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert run.returncode == status
    assert "out of 0" in run.stdout


def test_an_interrupt_is_handed_on(started, monkeypatch):
    asked, look = [], job.Job._look

    def interrupting(self, ranks, now):
        if any(state.phase == "waits" for state in self._states()) and not asked:
            asked.append(self._take(signal.SIGINT, None))
        look(self, ranks, now)

    monkeypatch.setattr(job.Job, "_look", interrupting)
    status, _, err = started("hang")
    assert status == 130
    assert "singanet launch: rank" not in err


@pytest.mark.parametrize("remote", [False, True])
def test_a_job_of_which_no_rank_has_come_to_where_all_begin_ends(remote, monkeypatch, capsys):
    """None waited for another: nothing told of it."""
    options = JobOptions(2, (), sizes=(1, 2), deadline=5.0, hosts=Path("hosts") if remote else None)
    states = [state(1, "begun")]
    with job_folder() as folder:
        watched = job.Job(options, folder)
        monkeypatch.setattr(watched, "_states", lambda: states)
        for now in (100.0, 104.9):
            watched._look({7: 1}, now)
        assert not watched.dead
        watched._look({7: 1}, 105.1)
        assert watched.dead == {1}
        assert watched._ended(137, "") == 1
        assert "rank 1 of 2 has not reached parallel.init in 5.1 s" in capsys.readouterr().err
        # Ranks that nobody here sees are mpirun's, where they are elsewhere.
        unseen = job.Job(options, folder)
        monkeypatch.setattr(unseen, "_states", list)
        unseen._look({}, 100.0)
        unseen._look({}, 105.1)
        assert ("has started no rank" in unseen._failure) == (not remote)


def test_who_hangs_in_a_step_is_dead_where_numbers_may_change():
    error = "rank 0 of 3, step 4: expected the gradients within 5 s; received no answer"
    with job_folder() as folder:
        watched = job.Job(JobOptions(3, (), sizes=(1, 3)), folder)
        states = [state(r, "waits" if r < 2 else "met") for r in range(3)]
        watched._states = lambda: states
        rank._report(folder.path, report(0, 1, "RankError", error))
        assert watched._ended(1, "") == 1
    assert watched.dead == {2}


@pytest.mark.parametrize(
    ("ranks", "met", "remote", "told"),
    [
        ({7: 0, 8: 1}, (0, 1), False, [7, 8]),
        ({7: 0, 8: 1}, (0,), False, []),
        ({}, (), False, []),
        ({}, (), True, [9]),
    ],
)
def test_who_has_met_the_others_is_asked_to_end_at_a_checkpoint(
    ranks, met, remote, told, monkeypatch
):
    """Of ranks on other machines only mpirun knows, which hands the signal on."""
    asked = []
    options = JobOptions(2, (), sizes=(1, 3), hosts=Path("hosts") if remote else None)
    states = [state(r, "met" if r in met else "comes") for r in ranks.values()]
    monkeypatch.setattr(job.os, "kill", lambda pid, number: asked.append((pid, number)))
    with job_folder() as folder:
        watched = job.Job(options, folder, wanted=lambda: True)
        watched._mpirun = 9
        for now in (100.0, 104.0):
            watched._ask_to_leave(ranks, states, now)
    monkeypatch.undo()
    assert asked == [(pid, hosts.LEAVE) for pid in told]


@pytest.mark.parametrize(
    ("how", "begun", "status", "is_told"),
    [
        ("pass", False, 0, False),
        ("pass", True, 130, False),
        ("sys.exit(0)", True, 130, False),
        ("sys.exit(5)", True, 5, False),
        ("raise KeyboardInterrupt", True, 130, False),
        ("raise KeyboardInterrupt", False, 130, True),
        ("raise KeyError", True, 1, True),
    ],
)
def test_a_program_that_was_asked_to_leave_has_not_ended(
    how, begun, status, is_told, tmp_path, monkeypatch, capsys
):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{how}\n")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    leaving = Leaving()
    leaving.begun = begun
    monkeypatch.setattr(rank, "LEAVING", leaving)
    assert rank._outcome(0, [str(script)], None)[0] == status
    assert ("Traceback" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize("given", [None, Path("hosts")])
@pytest.mark.parametrize("name", ["localhost", "node7"])
def test_mpirun_is_told_the_machines_that_can_work(given, name, monkeypatch):
    """In an allocation it would take the first ones, be they lost."""
    swept = []
    monkeypatch.setattr(job.subprocess, "run", lambda words, **_: swept.append(words))
    with job_folder() as folder:
        options = JobOptions(2, (), sizes=(1, 3), hosts=given)
        watched = job.Job(options, folder, [hosts.Host(name, 2)])
        flags = watched.flags()
        watched._sweep_hosts("mpirun")
        for words in (flags, *swept):
            file = Path(words[words.index("--hostfile") + 1])
            assert file.read_text("utf-8") == f"{name} slots=2\n"
        assert flags[-2:] == ["--forward-signals", "SIGURG"]


@pytest.mark.parametrize(
    ("program", "drawn"),
    [
        (["-m", "singanet", "train"], ["0/2", "0/2", "1/2", "1/2"]),
        (["job.py"], ["0/2", "1/2", "1/2"]),
    ],
)
def test_ranks_are_counted_until_all_have_started(program, drawn, tmp_path, monkeypatch):
    """A script may print before its ranks meet: there is no bar from then on."""
    monkeypatch.setattr("singanet.base.progress.INTERVAL", -1)
    started = Job(JobOptions(2, program), JobFolder(tmp_path))
    with (
        pseudo_terminal(80) as terminal,
        ProgressBar("starting ranks", 2, stream=terminal.stream, delay=-1) as bar,
    ):
        started._show_start(bar)
        for rank, phase in ((0, "begun"), (0, "comes"), (1, "begun"), (1, "met")):
            RankFile(tmp_path / f"rank-{rank}").tell(phase)
            started._show_start(bar)
    frames = [frame.split(" |")[0] for frame in terminal.frames]
    assert frames == [f"starting ranks {each}" for each in drawn]
