"""``singanet launch``: what it refuses before anything is started, and trainings by real ranks."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.commands import make_parser
from singanet.parallel.launch import hosts as mpirun
from singanet.training.files import read_training

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_a_training_that_is_begun_anew_goes_on(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(
        "singanet.parallel.launch.launch", lambda options: given.append(options) or 0
    )
    words = ["launch", "-n", "3", "--restarts", "2", "train", "mlp", "--out", str(tmp_path)]
    assert main(words) == 0
    (options,) = given
    assert (options.ranks, options.restarts) == (3, 2)
    assert list(options.program) == ["-m", "singanet", "train", "mlp", "--out", str(tmp_path)]
    again = options.resumed(options.program)
    assert again == [*options.program, "--resume"]
    assert make_parser().parse_args(again[2:]).resume
    assert options.final == {2, 3}


@pytest.mark.parametrize(("words", "sizes", "ranks"), [
    (["-n", "3"], None, 3), (["-n", "3", "--elastic", "2:4"], (2, 4), 3),
    (["--elastic", "2:4", "-n3", "--rest", "1"], (2, 4), 3), (["--elastic=2:4"], (2, 4), 4),
    (["--elastic", "2:4", "--hosts", "HOSTS"], (2, 4), 3),
    (["--elastic", "1:2", "--hosts", "HOSTS"], (1, 2), 2),
    (["--elastic", "4:5", "--hosts", "HOSTS"], (4, 5), 4)
])  # fmt: skip
def test_elastic_has_sizes(words, sizes, ranks, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(
        "singanet.parallel.launch.launch", lambda options: given.append(options) or 0
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=2\nnode2\n")
    words = [str(hosts) if word == "HOSTS" else word for word in words]
    # Those of the program are its own.
    program = ["train", "mlp", "--out", str(tmp_path / "run")]
    assert main(["launch", *words, *program]) == 0
    (options,) = given
    assert (options.sizes, options.ranks) == (sizes, ranks)
    assert list(options.program) == ["-m", "singanet", *program]


def test_the_words_of_a_script_are_its_own():
    words = ["launch", "-n", "2", "script.py", "--elastic", "1:2", "--elastic"]
    assert make_parser().parse_args(words).program == words[3:]


def train(*before, out, data):
    """A training by ranks that ``before`` starts; the ended process."""
    return subprocess.run(
        [*before, *words(out, data)], env=ENVIRONMENT, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


def words(out, data):
    figures = ["--out", str(out), "--json", f"{out}.json"]
    return ["train", "mlp", "--data", data, "--epochs", "2", "--batch-size", "10", *figures]


def test_ranks_train_as_one_process_and_write_once(small, tmp_path):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    singanet = [sys.executable, "-m", "singanet"]
    assert main([*words(tmp_path / "one", small), "--quiet"]) == 0
    flags = ["--allow-run-as-root", "--oversubscribe", "--timeout", "90", "-n", "2"]
    plain = train(mpirun.find_mpirun(), *flags, *singanet, out=tmp_path / "plain", data=small)
    launched = train(*singanet, "launch", "-n", "2", out=tmp_path / "two", data=small)
    for ended in (plain, launched):
        assert ended.returncode == 0, ended.stderr
        assert re.fullmatch(r"test accuracy .* s\s*", ended.stdout)
        assert ended.stderr.count("epoch 2/2") == 1
    assert json.loads((tmp_path / "two.json").read_text("utf-8"))["ranks"] == 2
    one, two, other = (read_training(tmp_path / name) for name in ("one", "two", "plain"))
    named = [name for name in one if name.startswith("net/")]
    assert named
    for name in named:
        np.testing.assert_array_equal(two[name], other[name], err_msg=name)
        np.testing.assert_allclose(two[name], one[name], 1e-4, 1e-6, err_msg=name)


@pytest.mark.slow
def test_an_interrupted_training_ends_on_all_ranks_with_its_state(small, tmp_path):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    command = [sys.executable, "-m", "singanet", "launch", "-n", "2"]
    command += ["train", "mlp", "--data", small, "--epochs", "100000", "--out", str(tmp_path)]
    told = []
    with subprocess.Popen(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stderr:
            told.append(line)
            if line.startswith("epoch 2/"):
                process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert f"interrupted; resume with: singanet train --out {tmp_path} --resume" in told[-1]
    assert int(json.loads(bytes(read_training(tmp_path)["session"]))["step"]) > 1
    assert not any("Traceback" in line for line in told)
