"""Real jobs with servers: workers and servers that die, and what is gone on from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.commands.runs.optimizers import expect_servers
from singanet.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[3]

TRAINS = """
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


def job(tmp_path, how="none", victim=0):
    """What the job has said, and the folder of what it has left."""
    script, folder = tmp_path / f"{how}-{victim}.py", tmp_path / f"{how}-{victim}"
    script.write_text(TRAINS)
    folder.mkdir()
    options = ["-n", "4", "--servers", "2", "--restarts", "1", "--patience", "1"]
    command = [sys.executable, "-m", "singanet", "launch", *options, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, how, str(victim), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (folder / "ended").write_text(str(time.monotonic()))
    assert done.returncode == 0, done.stderr
    return done.stderr, folder


def values(folder):
    first, second = (dict(np.load(folder / f"{rank}.npz")) for rank in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    return first


@pytest.mark.slow
def test_jobs_go_on_to_the_bit_from_the_last_snapshot_of_all_servers(tmp_path):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    expected = values(job(tmp_path)[1])
    for how, victim in (("kill", 1), ("kill", 3), ("stop", 2)):
        said, folder = job(tmp_path, how, victim)
        # At most the steps since the last one are lost.
        assert (folder / "begun").read_text("utf-8").split() == ["0", "6"]
        assert f"rank {victim} of 4" in said
        seconds = float((folder / "ended").read_text("utf-8")) - float(
            (folder / "died").read_text("utf-8")
        )
        assert seconds < 60
        for name, value in values(folder).items():
            np.testing.assert_array_equal(value, expected[name])


def test_servers_are_asked_for_where_they_are_needed():
    expect_servers("ps", 1)
    expect_servers("allreduce", 0)
    for name, servers in (("ps", 0), ("allreduce", 1)):
        with pytest.raises(ArgumentError, match="--servers 1 train MODEL --parallel ps"):
            expect_servers(name, servers)


def test_one_rank_has_to_train(capsys):
    with pytest.raises(SystemExit):
        main(["launch", "-n", "2", "--servers", "2", "train", "mlp"])
    assert "at least one of 2 ranks must train" in capsys.readouterr().err
