"""Ranks of real jobs that are killed, stopped, raise or leave, at every place of a training."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from singanet.parallel.launch.rank import JobFolder

pytest.importorskip("mpi4py", exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[3]
STEPS, SAVED = 12, 2

TRAINS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback, ModelCheckpoint

job = Path(os.environ["SINGANET_JOB"])
how, rank, at, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
comm = parallel.init()
me = comm.rank
if comm.rank == 0: (folder / "jobs").open("a").write(f"{job}\\n")


class Dies(Callback):
    taken = 0

    def on_batch_end(self, batch, logs):
        self.taken += 1
        first = os.environ["SINGANET_RESTART"] == "0"
        if self.session.step == at and me == rank and first:
            (folder / "died").write_text(str(time.monotonic()))
            if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
            if how == "stop": os.kill(os.getpid(), signal.SIGSTOP)
            if how == "raise": raise KeyError("lost")
            if how == "exit": sys.exit(3)
            if how == "leave": sys.exit(0)


rng = np.random.default_rng(0)
x, y = rng.standard_normal((46, 6), np.float32), rng.integers(0, 3, 46)
net = singanet.FeedForwardNet(
    [Dense("a", 16, input_sample_shape=(6,)), Activation("relu"), Dropout("d", 0.3), Dense("b", 3)],
    loss=SoftmaxCrossEntropy(), seed=0)
net.compile(parallel.AllReduce(SGD(lr=0.1, momentum=0.9)))
saved, dies = (folder / "step.npz").exists(), Dies()
net.fit(x, y, batch_size=12, epochs=3, verbose=False, resume=folder if saved else None,
        callbacks=[ModelCheckpoint(folder, monitor=None, every_steps=2), dies])
if comm.rank == 0: (folder / "taken").write_text(str(dies.taken))
np.savez(f"{folder}.{comm.rank}.npz", *net.param_values())
"""


def job(tmp_path, ranks, how, rank, at, *options, text=TRAINS):
    """The status of a job, its standard error by lines with the time of each, and its folder."""
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(text)
    folder.mkdir()
    command = [sys.executable, "-m", "singanet", "launch", "-n", str(ranks), *options]
    command += [str(script), how, str(rank), str(at), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = [(time.monotonic(), line.rstrip("\n")) for line in process.stdout]
        return process.wait(timeout=60), lines, folder


def left(folder):
    """Folders, shared memory and processes of the jobs that said which they are in ``folder``."""
    jobs = [JobFolder(Path(line)) for line in (folder / "jobs").read_text("utf-8").splitlines()]
    files = [path for job in jobs for path in (job.path, job.shared) if path.exists()]
    return [*files, *(process for job in jobs for process in job.processes())]


def ended_values(folder, ranks):
    return [list(np.load(f"{folder}.{rank}.npz").values()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The parameters that each number of ranks ends with where nothing happens."""

    def call(ranks):
        if ranks not in known:
            place = tmp_path_factory.mktemp(f"well-{ranks}")
            status, lines, folder = job(place, ranks, "none", 0, 0)
            assert status == 0, lines
            known[ranks] = ended_values(folder, ranks)[0]
        return known[ranks]

    known = {}
    return call


def survives(tmp_path, undisturbed, ranks, how, rank, at, *options):
    """One job, ended within ten seconds of the death and gone on to the bit; the seconds."""
    status, lines, folder = job(tmp_path, ranks, how, rank, at, "--restarts", "1", *options)
    text = "\n".join(line for _, line in lines)
    (tmp_path / "told.txt").write_text(text)
    assert status == 0, text
    died = float((folder / "died").read_text("utf-8"))
    seconds = next(when for when, line in lines if "restart 1 of 1" in line) - died
    assert seconds < 10.0, text
    # It dies before the checkpoint of its step is written: none before that was lost.
    assert int((folder / "taken").read_text("utf-8")) == STEPS - (at - 1) // SAVED * SAVED
    # The rank with its step, and for others what they waited for.
    assert f"of {ranks} (process" in text
    assert "step " in text
    named = f"rank {rank} of {ranks}" if how != "leave" else f"rank {rank} has ended"
    assert named in text
    for value in ended_values(folder, ranks):
        for one, other in zip(value, undisturbed(ranks), strict=True):
            np.testing.assert_array_equal(one, other)
    assert left(folder) == []
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "how"), [(3, "kill"), (3, "stop")])
def test_a_job_goes_on_to_the_bit_after_a_rank_has_died(ranks, how, tmp_path, undisturbed):
    survives(tmp_path, undisturbed, ranks, how, 1, 7, "--patience", "1")


def _hundred():
    ways = itertools.product(("kill", "stop", "raise", "exit", "leave"), (1, 6, STEPS), (2, 3, 4))
    cases = [*ways] * 3
    random = Random(0)
    random.shuffle(cases)
    return [(n, how, random.randrange(n), at) for how, at, n in cases[:100]]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100))
def test_a_hundred_kills(number, tmp_path, tmp_path_factory, undisturbed):
    ranks, how, rank, at = _hundred()[number]
    seconds = survives(tmp_path, undisturbed, ranks, how, rank, at)
    with (tmp_path_factory.getbasetemp() / "kills.csv").open("a") as file:
        file.write(f"{how},{at},{ranks},{rank},{seconds:.2f}\n")
