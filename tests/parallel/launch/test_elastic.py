"""Ranks of real jobs that die, and are done without by the ranks that follow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training.files import read_training
from tests.parallel.launch.test_kills import ROOT, STEPS, TRAINS, ended_values, job, left

pytest.importorskip("mpi4py", exc_type=ImportError)

# Without draws of each rank's own, several train as one process.
SAME = TRAINS.replace('Dropout("d", 0.3), ', "")


@pytest.fixture(scope="module")
def one():
    """The parameters with which one process ends."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((46, 6), np.float32), rng.integers(0, 3, 46)
    net = singanet.FeedForwardNet(
        [Dense("a", 16, input_sample_shape=(6,)), Activation("relu"), Dense("b", 3)],
        loss=SoftmaxCrossEntropy(), seed=0,
    )  # fmt: skip
    net.compile(SGD(lr=0.1, momentum=0.9))
    net.fit(x, y, batch_size=12, epochs=3, verbose=False)
    return net.param_values()


# Ranks of a real job: they wait in their first attempts for more, as steps take no time.
TRAINS_SLOWLY = SAME.replace(
    "        self.taken += 1\n",
    """        self.taken += 1
        if me == 0: (folder / "sizes").open("a").write(f"{self.session.step} {comm.size}\\n")
        if os.environ["SINGANET_RESTART"] == "1": time.sleep(0.25)
""",
)


@pytest.mark.slow
def test_ranks_become_fewer_and_more_from_one_checkpoint_to_the_next(tmp_path, one):
    status, lines, folder = job(
        tmp_path, 3, "kill", 1, 7, "--elastic", "2:3", "--rest", "1", text=TRAINS_SLOWLY
    )
    text = "\n".join(line for _, line in lines)
    assert status == 0, text
    assert "was killed by SIGKILL" in text
    assert "Traceback" not in text
    taken = [tuple(map(int, line.split())) for line in (folder / "sizes").read_text().splitlines()]
    sizes = [size for _, size in taken]
    assert [size for k, size in enumerate(sizes) if not k or sizes[k - 1] != size] == [3, 2, 3]
    # The files are of each second step: the seventh is taken twice, and no other.
    assert [step for step, _ in taken] == [*range(1, 8), *range(7, STEPS + 1)]
    first, *others = ended_values(folder, 3)
    for value, expected in zip(first, one, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)
    for other in others:
        for value, same in zip(other, first, strict=True):
            np.testing.assert_array_equal(value, same)
    assert int(json.loads(bytes(read_training(folder)["session"]))["step"]) == STEPS
    assert left(folder) == []


@pytest.mark.slow
def test_a_run_of_the_command_line_is_enlarged_in_its_folder(tmp_path):
    """By one rank first, which nobody ends by an agreement."""
    hosts, run = tmp_path / "hosts", tmp_path / "run"
    hosts.write_text("localhost slots=1\n")
    command = [sys.executable, "-m", "singanet", "launch", "--hosts", str(hosts)]
    command += ["--elastic", "1:2", "train", "mlp", "--epochs", "300", "--out", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = []
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
    assert text.count("interrupted") == 0
    rows = (run / "history.csv").read_text("utf-8").splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(len(rows)))


HANGS = SAME.replace(
    "from pathlib import Path\n",
    """from pathlib import Path
first = os.environ["SINGANET_RESTART"] == "0"
me = int(os.environ["OMPI_COMM_WORLD_RANK"])
if first and (sys.argv[1] == "all" or sys.argv[1] == "one" and me == 1): time.sleep(300)
""",
    1,
).replace(
    '            if how == "kill"',
    '            if how == "step": time.sleep(300)\n' + 12 * " " + 'if how == "kill"',
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dead", "began"),
    [
        ("one", "rank 1 has died", "rank 1 of 2 has not reached parallel.init"),
        ("all", "ranks 0, 1 have died", "rank 0, 1 of 2 has not reached parallel.init"),
        ("step", "rank 1 has died", "ended by RankError"),
    ],
)
def test_a_rank_that_hangs_is_dead_after_the_deadline(how, dead, began, tmp_path, one):
    """From its first line on, be it that no other waits for it yet."""
    status, lines, folder = job(
        tmp_path, 2, how, 1, 5, "--elastic", "1:2", "--rest", "3", "--deadline", "12", text=HANGS
    )
    text = "\n".join(line for _, line in lines)
    assert status == 0, text
    assert dead in text
    assert began in text
    # Within the deadline, and another to begin in.
    assert lines[-1][0] - lines[0][0] < 60.0
    for value, expected in zip(ended_values(folder, 1)[0], one, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)
    assert left(folder) == []
