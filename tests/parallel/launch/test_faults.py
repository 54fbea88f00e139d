"""Real jobs to which something happens at a random place: each ends, or goes on, and in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from singanet.parallel.launch.job import _ranks_of
from tests.parallel.launch.test_kills import ROOT, ended_values, left

pytest.importorskip("mpi4py", exc_type=ImportError)

DEADLINE, LOAD = 10.0, 20.0
"""Seconds after which a wait is an error; and what a busy machine may add to it."""

ASKED = 35.0
"""Seconds that ranks have where the launcher was asked to end, and a little."""

STEPS = 12

# A fault of the script's own is `SCRIPT`'s: those of others are sent to its process by the test.
TRAINS = """
import atexit, os, signal, sys, threading, time
from pathlib import Path

how, place, victim, at, drops, folder = sys.argv[1:]
folder, at, me = Path(folder), int(at), int(os.environ["OMPI_COMM_WORLD_RANK"])
(folder / "jobs").open("a").write(os.environ["SINGANET_JOB"] + "\\n")


def fault(where):
    once = folder / "fault"
    if where != place or me != int(victim) or once.exists(): return
    once.write_text(str(time.monotonic()))
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
    def on_batch_end(self, batch, logs):
        time.sleep(0.05)
        if self.session.step == at: fault("step")


class Saves(ModelCheckpoint):
    '''Something happens while the file that a save writes is not whole.'''

    def on_batch_end(self, batch, logs):
        saving = threading.Event()
        if place == "save" and me == int(victim) and self.session.step >= at:
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
    how: str
    place: str
    victim: int
    at: int = 0
    seconds: float = 0.0


def drawn(number: int) -> Fault:
    """The fault of that number; neighbours differ in who is hit."""
    random = Random(number)
    ranks = random.choice((2, 3))
    job = ranks, random.random() < 0.5, random.choice((0, 0, 1, 2))
    victim = random.randrange(ranks)
    kind = number % 4
    if kind == 0:  # at any time, as another process does it
        return Fault(*job, random.choice(SENT), "any", victim, seconds=random.uniform(0.2, 3.2))
    if kind == 1 and random.random() < 0.5:
        how = random.choice(("SIGINT", "SIGTERM", "SIGKILL"))
        return Fault(*job, how, "launcher", -1, seconds=random.uniform(0.2, 3.2))
    how, place = random.choice(ENDS), random.choice(OWN)
    if place == "save":  # only rank 0 writes, and a thread can do no more than a signal
        victim, how = 0, random.choice(("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "exit"))
    return Fault(*job, how, place, victim, at=random.randrange(1, STEPS + 1))


def run(fault: Fault, folder: Path, disturbed: bool = True) -> tuple[int, list[tuple[float, str]]]:
    """One job; its status, and its lines with the time of each."""
    script = folder.parent / "script.py"
    script.write_text(TRAINS)
    options = ["-n", str(fault.ranks), "--deadline", str(DEADLINE), "--patience", "1"]
    if disturbed:
        options += ["--restarts", str(fault.restarts)]
        options += ["--elastic", f"1:{fault.ranks}", "--rest", "1"] * fault.elastic
    own = disturbed and fault.place in OWN
    words = (
        [fault.how, fault.place, str(fault.victim), str(fault.at)] if own else ["-"] * 2 + ["0"] * 2
    )
    words += ["none" if fault.elastic else "draws", str(folder)]
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(
            [sys.executable, "-m", "singanet", "launch", *options, str(script), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=said,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        if disturbed and not own:
            time.sleep(fault.seconds)
            strike(fault, process.pid, folder)
        return _followed(process, fault, folder / "said")


def _followed(
    process: subprocess.Popen[bytes], fault: Fault, said: Path
) -> tuple[int, list[tuple[float, str]]]:
    lines: list[tuple[float, str]] = []
    end = time.monotonic() + 150.0
    while True:
        status = process.poll()
        fresh = said.read_text(errors="replace").splitlines()[len(lines) :]
        lines += [(time.monotonic(), line) for line in fresh]
        if status is not None:
            return status, lines
        if time.monotonic() > end:
            process.kill()
            raise AssertionError(f"it hangs: {fault}\n" + said.read_text("utf-8"))
        time.sleep(0.02)


def strike(fault: Fault, launcher: int, folder: Path) -> None:
    """Send the signal of ``fault``; to a rank once there is one."""
    end, pid = time.monotonic() + 5.0, launcher
    while fault.victim >= 0 and pid == launcher and time.monotonic() < end:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text("utf-8").split()
        ranks = {rank: each for child in children for each, rank in _ranks_of(int(child)).items()}
        pid = ranks.get(fault.victim, launcher)
    if pid != launcher or fault.victim < 0:
        (folder / "fault").write_text(str(time.monotonic()))
        os.kill(pid, getattr(signal, fault.how))


def expect_in_time(fault: Fault, folder: Path, lines: list[tuple[float, str]], ended: float) -> str:
    """That the job has ended, been begun anew soon; which of these, after what time."""
    if not (folder / "fault").exists():
        return "not reached"
    began = float((folder / "fault").read_text("utf-8"))
    known = {"restart 1 of": "restarted", "continues with": "resized"}
    acts = [(when, what) for when, line in lines for mark, what in known.items() if mark in line]
    when, what = min([*acts, (ended, "ended")])
    bound = (ASKED if fault.place == "launcher" else DEADLINE) + LOAD
    text = "\n".join(line for _, line in lines)
    assert when - began < bound, f"{what} after {when - began:.1f} s: {fault}\n{text}"
    return f"{what} after {when - began:.1f} s"


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The parameters that each number of ranks ends with where nothing happens."""

    def call(ranks, elastic):
        if (ranks, elastic) not in known:
            folder = tmp_path_factory.mktemp(f"well-{ranks}-{elastic}") / "run"
            folder.mkdir()
            status, lines = run(Fault(ranks, elastic, 0, "-", "-", 0), folder, disturbed=False)
            assert status == 0, lines
            known[ranks, elastic] = ended_values(folder, ranks)[0]
        return known[ranks, elastic]

    known: dict[tuple[int, bool], list[np.ndarray]] = {}
    return call


def survives(fault: Fault, folder: Path, right) -> str:
    """One job that ends in time, and goes on to the right parameters; how it has ended."""
    folder.mkdir()
    status, lines = run(fault, folder)
    told = expect_in_time(fault, folder, lines, time.monotonic())
    text = "\n".join(line for _, line in lines)
    outcome = f"{told}, status {status}"
    if fault.place == "launcher" and fault.how == "SIGKILL":
        end = time.monotonic() + DEADLINE  # nobody is left to wait for what mpirun ends
        while (folder / "jobs").exists() and any(map(_is_process, left(folder))):
            assert time.monotonic() < end, f"{fault}: {left(folder)}"
            time.sleep(0.05)
    elif (folder / "jobs").exists():
        assert left(folder) == [], f"{fault}\n{text}"
    whole = [Path(f"{folder}.{rank}.npz") for rank in range(fault.ranks)]
    if status or not any(path.exists() for path in whole):
        # Where it has ended, the same command goes on.
        for path in whole:
            path.unlink(missing_ok=True)
        (folder / "fault").write_text("0")
        again, lines = run(fault, folder, disturbed=False)
        more = "\n".join(line for _, line in lines)
        assert again == 0, f"{fault}\n{text}\n-- again:\n{more}"
        outcome += ", gone on"
    made = [list(np.load(path).values()) for path in whole if path.exists()]
    assert made, f"{fault}\n{text}"
    for values in made:
        for value, expected in zip(values, right(fault.ranks, fault.elastic), strict=True):
            if fault.elastic:  # other ranks sum in another order
                np.testing.assert_allclose(value, expected, atol=1e-5, err_msg=f"{fault}\n{text}")
            else:
                np.testing.assert_array_equal(value, expected, err_msg=f"{fault}\n{text}")
    return outcome


def _is_process(found: object) -> bool:
    return isinstance(found, int)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(200))
def test_every_job_ends_or_goes_on(number, tmp_path, tmp_path_factory, right):
    fault = drawn(number)
    outcome = survives(fault, tmp_path / "run", right)
    with (tmp_path_factory.getbasetemp() / "faults.txt").open("a") as file:
        file.write(f"{number} {fault}: {outcome}\n")
