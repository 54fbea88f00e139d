"""Jobs of processes without MPI: what they tell, how they end and go on, and what they leave."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from singanet.base.processes import Leaving
from singanet.base.progress import ProgressBar
from singanet.errors import BackendError
from singanet.parallel.communicators.rank_file import JOB, RankFile, RankState, trace_part
from singanet.parallel.communicators.timeline import Timeline
from singanet.parallel.launch import JobOptions, hosts, job, launch, rank
from singanet.parallel.launch.rank import JobFolder, job_folder, sweep_lost
from singanet.parallel.launch.start import merge_traces
from tests.kit.ranks import together
from tests.terminals import pseudo_terminal

ROOT = Path(__file__).resolve().parents[3]

HEAD = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from singanet.parallel.communicators.rank_file import JOB, own_file, read_state

rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
how, own = sys.argv[1], own_file()
last, first = rank == size - 1, os.environ["SINGANET_RESTART"] == "0"

def until_others(do):
    "Until all others tell so, as ranks of MPI start together."
    while True:
        states = [read_state(Path(os.environ[JOB]), other) for other in range(size)]
        if all(state and (state.rank == rank or do(state)) for state in states): return
        time.sleep(0.01)

"""

# Each rank takes steps; the last one does something in its fourth, for which the others wait.
RANK = (
    HEAD
    + """
print("out of", rank, *sys.argv[1:], flush=True)
print("err of", rank, file=sys.stderr, flush=True)

def act():
    until_others(lambda state: state.phase == "waits")
    if how == "raise":
        from singanet.layers import Layer
        class Failing(Layer):
            def forward(self, ctx, x): raise KeyError("lost")
        Failing("fc3").forward(None, None)
    if how == "exit": sys.exit(7)
    if how == "once" and not first: return
    if how == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if how in ("kill", "once"): os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang": time.sleep(1.0)

for step in range(6):
    own.tell(step=step)
    if step == 3 and how == "all":
        until_others(lambda state: state.step == 3)
        raise ValueError("everywhere")
    if step == 3 and how != "well":
        if last: act()
        else:
            until_others(lambda state: state.step == 3)
            own.tell("waits", what="the gradients of fc/weight")
            time.sleep(1.0 if how in ("once", "hang") else 30)
            own.tell("met")
"""
)

# All but the last rank wait within MPI for it, which does something instead of coming.
BEGINS = (
    HEAD
    + """
if how == "late":
    end = time.process_time() + 1.0
    while last and time.process_time() < end: pass
    own.tell("met" if last else "comes")
    if not last: until_others(lambda state: state.has_met); own.tell("met")
    sys.exit(0)
if last:
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

# The last rank hangs or leaves no report; the others report that it does not answer.
VAIN = (
    HEAD
    + """
from singanet.errors import RankError

def stands_here():
    if how == "hang": time.sleep(30)
    print("the disk is full", flush=True)
    os._exit(3)

own.tell("met")
if last:
    until_others(lambda state: state.phase == "waits")
    stands_here()
own.tell("waits", what="the gradients of fc/weight")
time.sleep(0.5)
raise RankError("fc", expected="the others", received="no answer", advice="look")
"""
)

# A training that goes on from a file, of ranks that have nothing to tell each other.
ALONE = (
    HEAD
    + """
from singanet.base.processes import LEAVING
folder, most = Path(sys.argv[2]), int(sys.argv[3])
saved = folder / "step"
if first and how == "hang":
    if not last: own.tell("comes")
    time.sleep(60)
own.tell("met")
for step in range(int(saved.read_text()) if saved.exists() else 0, 20):
    own.tell(step=step)
    if step == 3 and first and how == "kill":
        until_others(lambda state: state.step == 3)
        if last: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    if rank == 0:
        (folder / "taken").open("a").write(f"{step} {size}\\n")
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
)


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


@pytest.fixture
def started(fake_mpirun, nothing_left, tmp_path, capfd):
    script = tmp_path / "script.py"

    def call(how, ranks=2, text=RANK, **options):
        script.write_text(text)
        program = [str(script), how, *options.pop("more", [])]
        status = launch(JobOptions(ranks, program, patience=0.5, **options))
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def watched(monkeypatch):
    """A job of ``options`` that has not begun, whose ranks are in ``states``."""
    with job_folder() as folder:

        def made(*states, ranks=2, machines=(), wanted=lambda: False, **options):
            one = job.Job(JobOptions(ranks, (), **options), folder, [*machines], wanted)
            one._states = lambda: [*states]
            return one

        yield made


def state(rank, phase="met", step=4, seconds=0.0):
    return RankState(rank, 7, phase, step, "the gradients of fc/weight", time.time() - seconds)


def report(rank, status, kind, text):
    return {"rank": rank, "status": status, "kind": kind, "text": text, "time": 1.0}


# -- whole jobs -----------------------------------------------------------------------------------


def test_rank_0_speaks_for_all(started, tmp_path):
    status, out, err = started("well", log_dir=tmp_path / "logs", more=["an argument"])
    assert (status, out) == (0, "out of 0 well an argument\n")
    assert [line for line in err.splitlines() if "launch" not in line] == ["err of 0"]
    log = (tmp_path / "logs" / "rank-1.log").read_text("utf-8")
    assert log.splitlines() == ["out of 1 well an argument", "err of 1"]


WAITS = ["rank 0, step 3: waited", "for the gradients of fc/weight", r", step 3\)"]
BEGAN = ["rank 1 of 2", "rank 0, step 0: waited"]
HANGS = 1 + VAIN.splitlines().index("""    if how == "hang": time.sleep(30)""")
SOON = {"deadline": 0.5}
ENDS = {
    "killed": (RANK, "kill", {}, 137, ["rank 1 of 2", "was killed by SIGKILL", *WAITS]),
    # What the rank has written last, as no error of Python tells more.
    "exit": (RANK, "exit", {}, 7, ["rank 1 of 2", "ended with status 7", "err of 1", *WAITS]),
    "stopped": (RANK, "stop", {}, 1, ["rank 1 of 2", "has been stopped for 0.", *WAITS]),
    "raises": (RANK, "raise", {}, 1, ["1 of 2", "ended by KeyError in layer 'fc3'", *WAITS]),
    "all raise": (RANK, "all", {"ranks": 3}, 1, ["rank 0 of 3", "ValueError: everywhere"]),
    "stall": (
        RANK, "hang", {"stall": 0.3}, 0,
        ["1 of 2 ranks wait:", "rank 0, step 3: waited 0.", "rank 1, step 3: computed",
         r"rank 1 was in\n +File .*script\.py", r", line \d+ in act\n"],
    ),
    "hangs before": (BEGINS, "hang", SOON, 1, ["not reached parallel.init in", *BEGAN]),
    "killed before": (BEGINS, "kill", {}, 137, BEGAN),
    "leaves before": (BEGINS, "leave", {}, 1, ["has ended, and others wait for it", *BEGAN]),
    "leaves there": (BEGINS, "met", {}, 1, ["has ended, and others wait for it", *BEGAN]),
    "interrupted before": (BEGINS, "interrupt", {}, 130, ["ended by KeyboardInterrupt", *BEGAN]),
    # Imports on a busy machine may take longer than a short deadline.
    "late": (BEGINS, "late", SOON, 0, []),
    "hangs at a line": (
        VAIN, "hang", {}, 1,
        [r"rank 1 of 2 .* has made others wait; rank 0 ended by RankError\n",
         rf"rank 1 was in\n +File .*script\.py\", line {HANGS} in stands_here\n"],
    ),
    "last lines": (
        VAIN, "leave", {}, 3, [r"rank 1 of 2 .* ended with status 3\n", "the disk is full"],
    ),
}  # fmt: skip
SLOW = "killed before", "leaves before", "leaves there"


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ENDS]
)
def test_ranks_that_end_end_all_and_what_they_did_is_told(name, started, monkeypatch):
    monkeypatch.setattr(job, "_NOTICE", 0.5)
    text, how, options, status, told = ENDS[name]
    ended, _, err = started(how, text=text, **options)
    assert ended == status, err
    err = err[max(err.find("singanet launch: rank 1 of 2"), 0) :]
    for pattern in told:
        assert re.search(pattern, err), err
    assert err.count("Traceback") == (name in ("raises", "all raise", "interrupted before"))
    assert err.count("ranks wait:") == (name == "stall")
    assert "runpy" not in err.partition("was in")[2]
    assert "not reached" not in err or name == "hangs before"


@pytest.mark.full
def test_a_job_is_begun_anew_as_often_as_it_may(started):
    status, out, err = started("once", restarts=2, resumed=lambda program: [*program, "--resume"])
    assert (status, out) == (0, "out of 0 once\nout of 0 once --resume\n")
    assert err.count("restart 1 of 2") == 1
    status, _, err = started("exit", restarts=3, final=frozenset({7}))
    assert status == 7
    assert "restart" not in err


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


def test_mpirun_that_cannot_start_is_quoted(fake_mpirun, started):
    fake_mpirun.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no route to node7')\n")
    status, _, err = started("well")
    assert status == 1
    assert "no route to node7" in err


@pytest.mark.parametrize(("how", "status"), [("well", 0), ("exit", 7)])
def test_closed_streams_change_no_end(how, status, fake_mpirun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANK)
    code = (
        "import sys; from singanet.parallel.launch import hosts, launch, JobOptions;"
        f"hosts.find_mpirun = lambda: {str(fake_mpirun)!r};"
        f"sys.exit(launch(JobOptions(2, [{str(script)!r}, {how!r}])))"
    )
    command = ["sh", "-c", 'exec "$0" "$@" 2>&- 0<&-', sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    assert run.returncode == status
    assert "out of 0" in run.stdout


# -- what a launcher does -------------------------------------------------------------------------


def test_the_page_tells_the_defaults():
    page = (ROOT / "docs" / "parallel.md").read_text("utf-8")
    for name in ("patience", "stall", "deadline"):
        (told,) = re.findall(rf"^\| `--{name} S` .*\(default (\d+)\)", page, re.MULTILINE)
        assert getattr(JobOptions(1, ()), name) == float(told)


def test_what_rank_0_writes_can_be_read_by_its_user_alone(tmp_path):
    with job.Outputs(tmp_path, remote=False) as outputs:
        outputs.started()
        places = [place for place in tmp_path.iterdir() if place.is_fifo()]
        assert {stat.S_IMODE(place.stat().st_mode) for place in places} <= {0o600}


@pytest.mark.parametrize(
    ("status", "asks", "is_told"), [(130, True, False), (1, True, True), (130, False, True)]
)
def test_an_end_that_the_user_asked_for_needs_no_words(status, asks, is_told, watched, capsys):
    one = watched()
    if asks:
        one._take(signal.SIGINT, None)
    rank._report(one.folder.path, report(1, status, "KeyError", "the traceback"))
    assert one._ended(1, "") == status
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
    assert (command[0], command[-2]) == (str(fake_mpirun), "singanet.parallel.launch.start")


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


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(job, "_ranks_of", lambda pid: {})

    def carry(self, seconds):
        self.now += seconds

    def until(self, end):
        return SimpleNamespace(pid=0, poll=lambda: 0 if self.now >= end else None)


def test_ranks_are_looked_at_a_few_times_a_second(watched, monkeypatch):
    """So often a stopped one counts as stopped for so long."""
    clock, looks, one = Clock(monkeypatch), [], watched(ranks=1)
    monkeypatch.setattr(job, "_LOOK", 0.25)  # of which parts are exact
    one._look = lambda ranks, at: looks.append(at)
    one._watch(clock.until(10), clock)
    assert looks == [0.0625 + 0.25 * k for k in range(40)]


@pytest.mark.parametrize(("asked_at", "ends_at"), [([1.0], 1.0 + job._GRACE), ([1.0, 5.0], 5.0)])
def test_ranks_have_their_time_to_end_until_asked_again(asked_at, ends_at, watched, monkeypatch):
    one, asks = watched(ranks=1), [*asked_at]

    class Asks(Clock):
        def carry(self, seconds):
            super().carry(seconds)
            if asks and self.now >= asks[0]:
                del asks[0]
                one._take(signal.SIGINT, None)

    clock = Asks(monkeypatch)
    one._watch(clock.until(100), clock)
    assert ends_at <= clock.now < ends_at + 0.5


def test_only_a_wait_as_long_as_was_given_is_a_stall_and_told_once(watched, capfd):
    one = watched(stall=60.0)
    for seconds, told in ((1.0, 0), (59.0, 0), (61.0, 1), (70.0, 0)):
        one._states = lambda seconds=seconds: [state(0, "waits", seconds=seconds)]
        one._look({}, seconds)
        assert capfd.readouterr().err.count("1 of 2 ranks wait:") == told


@pytest.mark.parametrize("remote", [False, True])
def test_a_job_of_which_no_rank_has_come_to_where_all_begin_ends(remote, watched, capsys):
    """None waited for another: nothing told of it."""
    said = {"sizes": (1, 2), "deadline": 5.0, "hosts": Path("hosts") if remote else None}
    one = watched(state(1, "begun"), **said)
    for now, dead in ((100.0, set()), (104.9, set()), (105.1, {1})):
        one._look({7: 1}, now)
        assert one.dead == dead
    assert one._ended(137, "") == 1
    assert "rank 1 of 2 has not reached parallel.init in 5.1 s" in capsys.readouterr().err
    # Ranks that nobody here sees are mpirun's, where they are elsewhere.
    unseen = watched(**said)
    for now in (100.0, 105.1):
        unseen._look({}, now)
    assert ("has started no rank" in unseen._failure) == (not remote)


def test_who_hangs_in_a_step_is_dead_where_numbers_may_change(watched):
    error = "rank 0 of 3, step 4: expected the gradients within 5 s; received no answer"
    states = [state(r, "waits" if r < 2 else "met") for r in range(3)]
    one = watched(*states, ranks=3, sizes=(1, 3))
    rank._report(one.folder.path, report(0, 1, "RankError", error))
    assert one._ended(1, "") == 1
    assert one.dead == {2}


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
    ranks, met, remote, told, watched, monkeypatch
):
    """Of ranks on other machines only mpirun knows, which hands the signal on."""
    asked, given = [], Path("hosts") if remote else None
    states = [state(r, "met" if r in met else "comes") for r in ranks.values()]
    one = watched(wanted=lambda: True, sizes=(1, 3), hosts=given)
    one._mpirun = 9
    with monkeypatch.context() as patch:
        patch.setattr(job.os, "kill", lambda pid, number: asked.append((pid, number)))
        for now in (100.0, 104.0):
            one._ask_to_leave(ranks, states, now)
    assert asked == [(pid, hosts.LEAVE) for pid in told]


@pytest.mark.parametrize("given", [None, Path("hosts")])
@pytest.mark.parametrize("name", ["localhost", "node7"])
def test_mpirun_is_told_the_machines_that_can_work(given, name, watched, monkeypatch):
    """In an allocation it would take the first ones, be they lost."""
    swept = []
    monkeypatch.setattr(job.subprocess, "run", lambda words, **_: swept.append(words))
    one = watched(machines=[hosts.Host(name, 2)], sizes=(1, 3), hosts=given)
    flags = one.flags()
    one._sweep_hosts("mpirun")
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
    started = job.Job(JobOptions(2, program), JobFolder(tmp_path))
    with (
        pseudo_terminal(80) as terminal,
        ProgressBar("starting ranks", 2, stream=terminal.stream, delay=-1) as bar,
    ):
        started._show_start(bar)
        for number, phase in ((0, "begun"), (0, "comes"), (1, "begun"), (1, "met")):
            RankFile(tmp_path / f"rank-{number}").tell(phase)
            started._show_start(bar)
    frames = [frame.split(" |")[0] for frame in terminal.frames]
    assert frames == [f"starting ranks {each}" for each in drawn]


def test_each_rank_is_a_process_in_one_trace(tmp_path):
    trace = tmp_path / "trace.json"

    def rank(comm):
        timeline = Timeline(trace_part(trace, comm.rank), comm)
        for step in (1, 2):
            timeline.add("sums", "the gradients of fc", timeline._since)
            timeline.add("waiting", "the gradients of fc", timeline._since)
            timeline.step(step)
        timeline.write()

    together(rank)
    with trace_part(trace, 1).open("a") as killed:
        killed.write('{"ph": "X", "na')
    merge_traces(trace, 3)
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert list(tmp_path.iterdir()) == [trace]
    for number in (0, 1):
        own = [event for event in events if event["pid"] == number]
        names = {event["args"]["name"] for event in own if event["name"] == "process_name"}
        assert names == {f"rank {number}"}
        steps = [e for e in own if e["ph"] == "X" and e["tid"] == 0]
        assert [event["name"] for event in steps] == ["step 0", "step 1"]
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in steps)
        assert [event["ph"] for event in own if event.get("cat") == "sums"] == ["b", "e"] * 2


# -- what a rank does -----------------------------------------------------------------------------


def test_a_rank_of_another_machine_makes_the_place_of_its_memory(tmp_path):
    """The folder of a job is only on its launcher's."""
    script = tmp_path / "script.py"
    script.write_text("import os, pathlib\nfrom singanet.parallel.launch.rank import _MEMORY\n"
                      "place = pathlib.Path(os.environ[_MEMORY])\n"
                      "print(place, oct(place.stat().st_mode & 0o777))\n"
                      "place.rmdir()\nraise SystemExit\n")  # fmt: skip
    env = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    env |= {JOB: str(tmp_path / "elsewhere" / f"job-{os.getpid()}"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "singanet.parallel.launch.rank", str(script)]
    made = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert made.split() == [str(JobFolder(Path(env[JOB])).shared), "0o700"]


@pytest.mark.parametrize("more", [[], ["1", "two"]])
def test_a_rank_runs_modules_and_scripts_as_python_does(tmp_path, monkeypatch, capsys, more):
    shows = tmp_path / "shows.py"
    shows.write_text("import sys\nprint(__name__, sys.path[0], *sys.argv, sep='|')\n")
    monkeypatch.chdir(tmp_path)
    for how, named in (["-m", "shows"], shows), (["shows.py"], "shows.py"):
        monkeypatch.setattr(sys, "argv", ["before"])
        monkeypatch.setattr(sys, "path", ["before", *sys.path])
        rank._run([*how, *more])
        said = capsys.readouterr().out.strip().split("|")
        assert said == ["__main__", str(tmp_path), str(named), *more]


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
    script, leaving = tmp_path / "script.py", Leaving()
    script.write_text(f"import sys\n{how}\n")
    leaving.begun = begun
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(rank, "LEAVING", leaving)
    assert rank._outcome(0, [str(script)], None)[0] == status
    assert ("Traceback" in capsys.readouterr().err) == is_told


# -- ranks that become fewer and more -------------------------------------------------------------


@pytest.fixture
def resized(fake_mpirun, nothing_left, tmp_path, capfd, monkeypatch):
    """Run a job between two sizes; the sizes in turn, the number of steps, what was said."""
    monkeypatch.setattr("singanet.parallel.launch.start._EVERY", 0.1)
    script = tmp_path / "script.py"
    script.write_text(ALONE)

    def call(how, ranks, sizes, **options):
        program = [str(script), how, str(tmp_path), str(sizes[1] - (how == "hosts"))]
        status = launch(JobOptions(ranks, program, sizes=sizes, **options))
        err = capfd.readouterr().err
        assert status == 0, err
        lines = (tmp_path / "taken").read_text("utf-8").splitlines()
        taken = [tuple(map(int, line.split())) for line in lines]
        assert {step for step, _ in taken} == {*range(20)}
        found = [size for _, size in taken]
        turns = [size for k, size in enumerate(found) if not k or found[k - 1] != size]
        return turns, len(taken), err

    return call


@pytest.mark.full
def test_fewer_go_on_and_more_from_the_next_checkpoint(resized):
    sizes, count, err = resized("kill", 2, (1, 2), rest=0.2)
    # No step that was in a file was taken again.
    assert (sizes, count) == ([2, 1, 2], 20)
    assert "rank 1 of 2" in err
    assert "was killed by SIGKILL" in err
    assert err.index("continues with 1 rank\n") < err.index("continues with 2 ranks")


@pytest.mark.full
def test_a_program_that_ends_well_by_an_interrupt_goes_on_all_the_same(resized):
    assert resized("catch", 1, (1, 2))[0] == [1, 2]


@pytest.mark.full
def test_machines_that_a_hosts_file_gets_are_taken_in(resized, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=1")
    assert resized("hosts", 1, (1, 3), hosts=tmp_path / "hosts")[0] == [1, 2]


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
    sizes, _, err = resized("hang", 2, (1, 2), deadline=60.0, rest=90.0)
    assert sizes == [1]
    assert "rank 1 of 2 has not reached parallel.init in 9" in err
    assert "rank 1 has died: a slot of" in err
    assert "continues with 1 rank\n" in err


def test_a_job_with_too_few_slots_ends_after_the_deadline(resized, tmp_path, capfd):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1")
    with pytest.raises(BackendError) as error:
        resized("well", 2, (2, 2), hosts=hosts, deadline=0.5)
    assert "2 free slots within 0.5 s; received 1 of localhost free" in str(error.value)
    assert "waits for 2 free slots: 1 of localhost free" in capfd.readouterr().err


# -- what a job leaves ----------------------------------------------------------------------------


def sleeper(path, **options):
    code = "import time; time.sleep(60)"
    env = {**os.environ, JOB: str(path)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **options)


def ended(process):
    return process.wait(timeout=10) == -signal.SIGKILL


def test_nothing_of_a_job_is_left(nothing_left):
    def opened(about):
        found = []
        for handle in os.listdir("/dev/fd"):
            with suppress(OSError):
                found.append(os.path.samestat(os.fstat(int(handle)), about))
        return any(found)

    with job_folder() as folder:
        about = folder.path.stat()
        assert opened(about)
        others = sleeper("/tmp/another job")
        running, stopped = sleeper(folder.path), sleeper(folder.path, start_new_session=True)
        os.kill(stopped.pid, signal.SIGSTOP)
        (folder.shared / "segment").write_bytes(b"x")
        (folder.path / "below").mkdir()
        while job.process_state(stopped.pid) != "T" or len(folder.processes()) < 2:
            time.sleep(0.01)
    assert not opened(about)
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
    monkeypatch.setattr(rank, "time", clock)
    monkeypatch.setattr(os, "kill", lambda pid, how: killed.append((pid, how)))
    # Each that is killed has begun one more.
    found = lambda self: [len(killed)] if len(killed) < count else []  # noqa: E731
    monkeypatch.setattr(JobFolder, "processes", found)
    JobFolder(tmp_path).kill()
    assert killed == [(pid, signal.SIGKILL) for pid in range(len(killed))]
    assert len(killed) >= 10
    assert ends_in - 0.5 < now[0] < ends_in


def test_what_a_killed_launcher_has_left_is_swept_by_the_next(monkeypatch, tmp_path):
    memory, lost = tmp_path / "memory", tmp_path / "singanet-job-lost"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rank, "_FOLDER_MEMORY", memory)
    alone = memory / "singanet-job-alone"
    for place in (memory, lost, memory / lost.name, alone):
        place.mkdir()
    old = (time.time() - 100,) * 2
    os.utime(alone, old)
    process = sleeper(lost)
    sweep_lost()
    assert not alone.exists()
    assert lost.exists()  # it may be one that begins just now
    os.utime(lost, old)
    with job_folder() as mine:
        os.utime(mine.path, old)
        sweep_lost()
        assert mine.path.exists()
    assert ended(process)
    assert sorted(tmp_path.iterdir()) == [memory]
    assert not any(memory.iterdir())
