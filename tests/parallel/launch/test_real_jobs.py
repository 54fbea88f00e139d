"""Real jobs to which something happens: each ends in time, or goes on to the right parameters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.commands.runs.optimizers import expect_servers
from singanet.errors import ArgumentError
from singanet.parallel.launch.job import _ranks_of
from singanet.parallel.launch.rank import JobFolder
from singanet.training.files import read_training

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LAUNCH = [sys.executable, "-m", "singanet", "launch"]

DEADLINE, LOAD = 10.0, 20.0
"""Seconds after which a wait is an error; and what a busy machine may add to it."""

ASKED = 35.0
"""Seconds that ranks have where the launcher was asked to end, and a little."""

STEPS, SAVED = 12, 2

# A fault of the script's own is `fault`'s: those of others are sent to its process by the test.
TRAINS = """
import atexit, os, signal, sys, threading, time
from pathlib import Path

how, place, victim, at, drops, folder = sys.argv[1:]
folder, at, me = Path(folder), int(at), int(os.environ["OMPI_COMM_WORLD_RANK"])
first = os.environ["SINGANET_RESTART"] == "0"
(folder / "jobs").open("a").write(os.environ["SINGANET_JOB"] + "\\n")


def fault(where):
    if where != place or not first or str(me) not in victim: return
    (folder / "fault").write_text(str(time.monotonic()))
    if how == "hang": time.sleep(300)
    if how == "exit": os._exit(7)
    if how == "quit": sys.exit(3)
    if how == "leave": sys.exit(0)
    if how == "raise": raise KeyError("lost")
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(0.01)  # for what Python hears of a little later


fault("first line")
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback, ModelCheckpoint
fault("before init")
comm = parallel.init()
fault("after init")


class Paces(Callback):
    '''In their second attempt ranks wait for more.'''

    def on_batch_end(self, batch, logs):
        time.sleep(0.25 if os.environ["SINGANET_RESTART"] == "1" else 0.05)
        if me == 0: (folder / "taken").open("a").write(f"{self.session.step} {comm.size}\\n")
        if self.session.step == at: fault("step")


class Saves(ModelCheckpoint):
    '''Something happens while the file that a save writes is not whole.'''

    def on_batch_end(self, batch, logs):
        saving = threading.Event()
        if place == "save" and str(me) in victim and self.session.step >= at:
            def watch():
                while not saving.is_set():
                    if any(folder.glob(".*.tmp")): fault("save"); return
            threading.Thread(target=watch, daemon=True).start()
        super().on_batch_end(batch, logs)
        saving.set()


rng = np.random.default_rng(0)
x, y = rng.standard_normal((46, 6), np.float32), rng.integers(0, 3, 46)
draws = [Dropout("d", 0.3)] if drops == "draws" else []
net = singanet.FeedForwardNet(
    [Dense("a", 400, input_sample_shape=(6,)), Activation("relu"), *draws, Dense("b", 3)],
    loss=SoftmaxCrossEntropy(), seed=0)
net.compile(parallel.AllReduce(SGD(lr=0.1, momentum=0.9)))
saved = any(folder.glob("*.npz"))
net.fit(x, y, batch_size=12, epochs=3, verbose=False, resume=folder if saved else None,
        callbacks=[Paces(), Saves(folder, monitor=None, every_steps=2)])
fault("after fit")
np.savez(f"{folder}.{comm.rank}.npz", *net.param_values())
atexit.register(fault, "at exit")
"""

OWN = ("first line", "before init", "after init", "step", "save", "after fit", "at exit")
ENDS = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGSEGV", "exit", "quit", "leave", "raise")
SENT = ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT")


@dataclass(frozen=True)
class Fault:
    """What happens to whom: ``seconds`` after the job has begun, or at a place of its script."""

    ranks: int
    elastic: bool
    restarts: int
    how: str = "-"
    place: str = "-"
    victim: str = "-"
    at: int = 0
    seconds: float = 0.0
    deadline: float = DEADLINE


def drawn(number: int) -> Fault:
    """The fault of that number; neighbours differ in who is hit."""
    random = Random(number)
    ranks = random.choice((2, 3))
    job = ranks, random.random() < 0.5, random.choice((0, 0, 1, 2))
    victim, kind = str(random.randrange(ranks)), number % 4
    if kind == 0:  # at any time, as another process does it
        return Fault(*job, random.choice(SENT), "any", victim, seconds=random.uniform(0.2, 3.2))
    if kind == 1 and random.random() < 0.5:
        how = random.choice(("SIGINT", "SIGTERM", "SIGKILL"))
        return Fault(*job, how, "launcher", seconds=random.uniform(0.2, 3.2))
    how, place = random.choice(ENDS), random.choice(OWN)
    if place == "save":  # only rank 0 writes, and a thread can do no more than a signal
        victim, how = "0", random.choice(("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "exit"))
    return Fault(*job, how, place, victim, at=random.randrange(1, STEPS + 1))


@dataclass
class Ended:
    status: int
    lines: list[tuple[float, str]]
    folder: Path
    at: float

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def values(self) -> list[list[Any]]:
        places = sorted(self.folder.parent.glob(f"{self.folder.name}.*.npz"))
        return [list(np.load(path).values()) for path in places]

    def left(self) -> list[Any]:
        """Folders, shared memory and processes of the jobs that said which they are."""
        told = self.folder / "jobs"
        lines = told.read_text("utf-8").splitlines() if told.exists() else []
        jobs = [JobFolder(Path(line)) for line in dict.fromkeys(lines)]
        files = [path for job in jobs for path in (job.path, job.shared) if path.exists()]
        return [*files, *(process for job in jobs for process in job.processes())]

    def taken(self) -> list[tuple[int, int]]:
        """The steps in turn, each with the number of ranks."""
        lines = (self.folder / "taken").read_text("utf-8").splitlines()
        return [(int(step), int(size)) for step, size in map(str.split, lines)]


def run(fault: Fault, folder: Path) -> Ended:
    pytest.importorskip("mpi4py", exc_type=ImportError)
    folder.mkdir(exist_ok=True)
    script = folder.parent / "script.py"
    script.write_text(TRAINS)
    options = ["-n", str(fault.ranks), "--deadline", str(fault.deadline), "--patience", "1"]
    options += ["--restarts", str(fault.restarts)]
    options += ["--elastic", f"1:{fault.ranks}", "--rest", "1"] * (
        fault.elastic and fault.how != "-"
    )
    own = [fault.how, fault.place, fault.victim] if fault.place in OWN else ["-"] * 3
    words = [*own, str(fault.at), "none" if fault.elastic else "draws", str(folder)]
    command, lines = [*LAUNCH, *options, str(script), *words], []
    end, struck = time.monotonic() + 150.0, time.monotonic() + fault.seconds
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(command, env=ENVIRONMENT, stdout=said, stderr=said) as process,
    ):
        while (status := process.poll()) is None:
            now = time.monotonic()
            if fault.place in ("any", "launcher") and now > struck:
                strike(fault, process.pid, folder)
                struck = end + 1.0
            lines = _read(folder, lines)
            if now > end:
                process.kill()
                raise AssertionError(f"it hangs: {fault}\n" + (folder / "said").read_text("utf-8"))
            time.sleep(0.02)
    return Ended(status, _read(folder, lines), folder, time.monotonic())


def _read(folder: Path, lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    fresh = (folder / "said").read_text(errors="replace").splitlines()[len(lines) :]
    return [*lines, *((time.monotonic(), line) for line in fresh)]


def strike(fault: Fault, launcher: int, folder: Path) -> None:
    """Send the signal of ``fault``; to a rank once there is one."""
    end, pid = time.monotonic() + 5.0, launcher if fault.place == "launcher" else None
    while pid is None and time.monotonic() < end:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text("utf-8").split()
        ranks = {rank: each for child in children for each, rank in _ranks_of(int(child)).items()}
        pid = ranks.get(int(fault.victim))
    if pid is not None:
        (folder / "fault").write_text(str(time.monotonic()))
        os.kill(pid, getattr(signal, fault.how))


def outcome_in_time(fault: Fault, ended: Ended) -> str:
    """That the job has ended, or been begun anew soon; which of these, after what time."""
    if not (ended.folder / "fault").exists():
        return "not reached"
    began = float((ended.folder / "fault").read_text("utf-8"))
    known = {"restart 1 of": "restarted", "continues with": "resized"}
    acts = [(at, what) for at, line in ended.lines for mark, what in known.items() if mark in line]
    when, what = min([*acts, (ended.at, "ended")])
    # Who hangs from the first line on is dead after a deadline, and another to begin in.
    waits = 2 * fault.deadline if fault.how == "hang" else fault.deadline
    bound = (ASKED if fault.place == "launcher" else waits) + LOAD
    assert when - began < bound, f"{what} after {when - began:.1f} s: {fault}\n{ended.text}"
    return f"{what} after {when - began:.1f} s"


Right = Callable[[int, bool], list[Any]]


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> Right:
    """The parameters that each number of ranks ends with where nothing happens."""
    known: dict[tuple[int, bool], list[Any]] = {}

    def call(ranks: int, elastic: bool) -> list[Any]:
        if (ranks, elastic) not in known:
            folder = tmp_path_factory.mktemp(f"well-{ranks}-{elastic}") / "run"
            ended = run(Fault(ranks, elastic, 0), folder)
            assert ended.status == 0, ended.text
            known[ranks, elastic] = ended.values()[0]
        return known[ranks, elastic]

    return call


def expect_right(fault: Fault, ended: Ended, right: Right) -> None:
    made = ended.values()
    assert made, f"{fault}\n{ended.text}"
    for values in made:
        for value, expected in zip(values, right(fault.ranks, fault.elastic), strict=True):
            # Other ranks sum in another order.
            atol = 1e-5 if fault.elastic else 0.0
            np.testing.assert_allclose(value, expected, 0.0, atol, err_msg=f"{fault}\n{ended.text}")


def survives(fault: Fault, folder: Path, right: Right) -> str:
    """One job that ends in time, and goes on to the right parameters; how it has ended."""
    ended = run(fault, folder)
    outcome = f"{outcome_in_time(fault, ended)}, status {ended.status}"
    if fault.place == "launcher" and fault.how == "SIGKILL":
        end = time.monotonic() + DEADLINE  # nobody is left to wait for what mpirun ends
        while any(isinstance(found, int) for found in ended.left()):
            assert time.monotonic() < end, f"{fault}: {ended.left()}"
            time.sleep(0.05)
    else:
        assert ended.left() == [], f"{fault}\n{ended.text}"
    if ended.status or not ended.values():
        # Where it has ended, the same command goes on.
        for path in folder.parent.glob("run.*.npz"):
            path.unlink()
        again = run(Fault(fault.ranks, fault.elastic, 0), folder)
        assert again.status == 0, f"{fault}\n{ended.text}\n-- again:\n{again.text}"
        ended, outcome = again, outcome + ", gone on"
    expect_right(fault, ended, right)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("number", range(200))
def test_every_job_ends_or_goes_on(number, tmp_path, tmp_path_factory, right):
    fault = drawn(number)
    outcome = survives(fault, tmp_path / "run", right)
    with (tmp_path_factory.getbasetemp() / "faults.txt").open("a") as file:
        file.write(f"{number} {fault}: {outcome}\n")


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 7, STEPS])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "raise", "exit", "leave"])
def test_a_job_that_is_begun_anew_loses_no_step_that_was_saved_and_names_who_died(
    how, at, tmp_path, right
):
    fault = Fault(2 + at % 3, False, 1, how, "step", "1", at)
    ended = run(fault, tmp_path / "run")
    assert ended.status == 0, ended.text
    assert outcome_in_time(replace(fault, deadline=-LOAD / 2), ended).startswith("restarted")
    # It dies before the checkpoint of its step is written: none before that was lost.
    again = (at - 1) // SAVED * SAVED
    assert [step for step, _ in ended.taken()][-(STEPS - again) :] == [*range(again + 1, STEPS + 1)]
    named = "rank 1 has ended" if how == "leave" else f"rank 1 of {fault.ranks}"
    for text in (named, f"of {fault.ranks} (process", "step "):
        assert text in ended.text
    expect_right(fault, ended, right)
    assert ended.left() == []


@pytest.mark.slow
def test_ranks_become_fewer_and_more_from_one_checkpoint_to_the_next(tmp_path, right):
    fault = Fault(3, True, 0, "SIGKILL", "step", "1", 7)
    ended = run(fault, tmp_path / "run")
    assert ended.status == 0, ended.text
    assert "was killed by SIGKILL" in ended.text
    assert "Traceback" not in ended.text
    taken = ended.taken()
    sizes = [size for _, size in taken]
    assert [size for k, size in enumerate(sizes) if not k or sizes[k - 1] != size] == [3, 2, 3]
    # The files are of each second step: the seventh is taken twice, and no other.
    assert [step for step, _ in taken] == [*range(1, 8), *range(7, STEPS + 1)]
    expect_right(fault, ended, right)
    assert len(ended.values()) == 3
    assert int(json.loads(bytes(read_training(ended.folder)["session"]))["step"]) == STEPS
    assert ended.left() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "victim", "dead", "began"),
    [
        ("first line", "1", "rank 1 has died", "rank 1 of 2 has not reached parallel.init"),
        ("first line", "01", "ranks 0, 1 have died", "rank 0, 1 of 2 has not reached"),
        ("step", "1", "rank 1 has died", "ended by RankError"),
    ],
)
def test_a_rank_that_hangs_is_dead_after_the_deadline(place, victim, dead, began, tmp_path, right):
    """From its first line on, be it that no other waits for it yet."""
    fault = Fault(2, True, 0, "hang", place, victim, 5, deadline=12.0)
    ended = run(fault, tmp_path / "run")
    assert ended.status == 0, ended.text
    assert dead in ended.text
    assert began in ended.text
    outcome_in_time(fault, ended)
    expect_right(fault, ended, right)
    assert ended.left() == []


@pytest.mark.slow
def test_a_run_of_the_command_line_is_enlarged_in_its_folder(tmp_path):
    """By one rank first, which nobody ends by an agreement."""
    pytest.importorskip("mpi4py", exc_type=ImportError)
    hosts, run, told = tmp_path / "hosts", tmp_path / "run", []
    hosts.write_text("localhost slots=1\n")
    command = [*LAUNCH, "--hosts", str(hosts), "--elastic", "1:2", "train", "mlp"]
    command += ["--epochs", "300", "--out", str(run)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:
            told.append(line)
            if line.startswith("epoch 2/"):
                hosts.write_text("localhost slots=2\n")
            if line.startswith("epoch") and "continues with 2 ranks" in "".join(told):
                process.send_signal(signal.SIGTERM)
                break
        told.append(process.stderr.read())
        assert process.wait(timeout=60) == 143
    text = "".join(told)
    assert "2 ranks can work instead of 1" in text
    assert "interrupted" not in text
    rows = (run / "history.csv").read_text("utf-8").splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(len(rows)))


# -- jobs with servers ----------------------------------------------------------------------------

SERVED = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.parallel.communicators.rank_file import read_state

how, victim, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
comm = parallel.init()
rng = np.random.default_rng(0)
x, y = rng.integers(0, 50, (24, 3)), rng.integers(0, 3, 24)
net = singanet.FeedForwardNet(
    [Embedding("e", 50, 4, input_sample_shape=(3,)), Flatten("f"), Dense("a", 8),
     Activation("relu"), Dense("b", 3)], loss=SoftmaxCrossEntropy(), seed=0)
stage = parallel.ParameterServer(Adam(lr=0.01), snapshots=folder / "snapshots", every=3)
stage.meet(net)
if comm.rank == 0: (folder / "begun").open("a").write(f"{stage.restored}\\n")
for step in range(stage.restored, 11):
    if step == 7 and comm.rank == 0 and os.environ["SINGANET_RESTART"] == "0" and how != "none":
        pid = read_state(Path(os.environ["SINGANET_JOB"]), victim).pid
        (folder / "died").write_text(str(time.monotonic()))
        os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    net.step(x[comm.rank::comm.size], y[comm.rank::comm.size], stage)
np.savez(folder / f"{comm.rank}.npz", **dict(zip(net.param_names(), net.param_values())))
"""


@pytest.mark.slow
def test_jobs_go_on_to_the_bit_from_the_last_snapshot_of_all_servers(tmp_path):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    (tmp_path / "script.py").write_text(SERVED)
    options = ["-n", "4", "--servers", "2", "--restarts", "1", "--patience", "1"]
    values = []
    for how, victim in (("none", 0), ("kill", 1), ("kill", 3), ("stop", 2)):
        folder = tmp_path / f"{how}-{victim}"
        folder.mkdir()
        done = subprocess.run(
            [*LAUNCH, *options, str(tmp_path / "script.py"), how, str(victim), str(folder)],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        values += [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)]
        np.testing.assert_equal(values[-2:], values[:2])
        if how != "none":
            assert time.monotonic() - float((folder / "died").read_text("utf-8")) < 60
            # At most the steps since the last one are lost.
            assert (folder / "begun").read_text("utf-8").split() == ["0", "6"]
            assert f"rank {victim} of 4" in done.stderr
    np.testing.assert_equal(values[0], values[1])


def test_servers_are_asked_for_where_they_are_needed(capsys):
    expect_servers("ps", 1)
    expect_servers("allreduce", 0)
    for name, servers in (("ps", 0), ("allreduce", 1)):
        with pytest.raises(ArgumentError, match="--servers 1 train MODEL --parallel ps"):
            expect_servers(name, servers)
    with pytest.raises(SystemExit):
        main(["launch", "-n", "2", "--servers", "2", "train", "mlp"])
    assert "at least one of 2 ranks must train" in capsys.readouterr().err
