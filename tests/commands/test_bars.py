"""The bars of all commands, on a terminal, and what a training says at its end."""

import json
import re
import shlex
import sys

import numpy as np
import pytest

import singanet
from singanet.__main__ import main
from singanet.program import tuning
from tests.commands.published import spoken
from tests.commands.test_tune import path as routes  # noqa: F401 - a fixture
from tests.terminals import pseudo_terminal

BYTES = "(?: [kMG]?B)?"
COUNT = rf"(.+?) ([\d.]+{BYTES}/(?:[\d.]+{BYTES} \||\?))"


@pytest.fixture
def bars(monkeypatch):
    """Run a command whose bars are drawn at once; return the drawings by title."""
    monkeypatch.setattr("singanet.base.progress.DELAY", -1)
    monkeypatch.setattr("singanet.base.progress.INTERVAL", -1)
    monkeypatch.setattr("singanet.training.display.SHORT", -1)

    def of(*argv):
        with pseudo_terminal(200) as terminal, monkeypatch.context() as inside:
            inside.setattr("sys.stderr", terminal.stream)
            assert main([str(part) for part in argv]) == 0
        found = {}
        for frame in terminal.frames:
            if drawn := re.match(COUNT, frame):
                found.setdefault(drawn[1], []).append(drawn[2].removesuffix(" |"))
        assert terminal.shown.split("\r")[-1].strip() == ""
        return found

    return of


def test_a_trained_net_is_evaluated_and_predicts_with_a_bar(run_dir, small, tmp_path, bars):
    assert bars("evaluate", run_dir)["evaluate"] == ["1/1"]
    found = bars("predict", run_dir, "--out", tmp_path / "out.csv")
    assert found["predictor"] == ["1/1"]
    assert found["reading small.npz"][-1] == "5.2 kB/5.2 kB"


def test_files_are_read_and_written_with_a_bar(tmp_path, bars):
    net = singanet.models.build("mlp", seed=0)
    net.save(tmp_path / "a.npz")
    found = bars("convert", tmp_path / "a.npz", tmp_path / "b.safetensors")
    assert found == {"writing b.safetensors": found["writing b.safetensors"]}
    assert found["writing b.safetensors"][-1] == "940.6 kB/940.6 kB"
    found = bars("convert", tmp_path / "a.npz", tmp_path / "c.h5", "--model", "mlp")
    assert [*found] == ["checking a.npz", "reading a.npz", "writing c.h5"]
    assert {values[-1] for values in found.values()} == {"940.6 kB/940.6 kB"}


def test_measurements_have_a_bar(small, bars, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    argv = ("bench", "mlp", "--data", small, "--rounds", 2, "--seconds", 0.01)
    assert bars(*argv)["bench"] == [f"{k}/6" for k in range(1, 7)]


def test_tuning_has_a_bar(routes, bars, monkeypatch):  # noqa: F811 - the fixture
    monkeypatch.setattr(tuning, "_WORTH", np.inf)
    drawn = bars("tune", "lenet", "--input-shape", "1,8,8", "--batch-size", "2")["tune"]
    assert drawn == [f"{k}/{len(drawn)}" for k in range(1, len(drawn) + 1)]


def test_a_rate_is_found_with_a_bar(monkeypatch):
    monkeypatch.setattr("singanet.base.progress.DELAY", -1)
    monkeypatch.setattr("singanet.base.progress.INTERVAL", -1)
    net = singanet.models.build("mlp", (1, 8, 8), seed=0)
    net.compile(singanet.optimizer.SGD(lr=0.1))
    data = singanet.data.digits()
    with pseudo_terminal(80) as terminal, monkeypatch.context() as inside:
        inside.setattr("sys.stderr", terminal.stream)
        tried = net.find_lr(data.x_train, data.y_train, steps=20, high=0.1)
    drawn = [frame.split()[1] for frame in terminal.frames if frame.startswith("find_lr")]
    assert len(tried.rates) == 20
    assert drawn == [f"{k}/20" for k in range(1, 20)]


def test_sentences_are_embedded_with_a_bar(sentence_model, tmp_path, bars):
    (tmp_path / "lines.txt").write_text("to be\nor not\nto be\n")
    target = tmp_path / "rows.npy"
    argv = ("embed", sentence_model, tmp_path / "lines.txt", "--out", target, "--batch-size", 2)
    found = bars(*argv)
    assert found["encoding texts"] == ["1/3", "2/3", "3/3"]
    assert found["embed"] == ["1/2", "2/2"]


def test_all_parts_of_a_fine_tuning_have_a_bar(llama, tmp_path, bars):
    (tmp_path / "texts.txt").write_text(spoken()[:12000])
    argv = ("finetune", llama, "--data", tmp_path / "texts.txt", "--length", 64)
    found = bars(*argv, "--out", tmp_path / "run")
    assert {"reading model.safetensors", "counting batches", "evaluate", "sample"} <= {*found}
    assert {"epoch 1/1", "epoch 1/1, validation", "writing model"} <= {*found}
    # The batches were counted before, those of the validation in the first evaluation.
    (total,) = {drawn.partition("/")[2] for drawn in found["epoch 1/1"]}
    assert found["epoch 1/1"] == [f"{k}/{total}" for k in range(int(total) + 1)]
    assert "?" not in "".join(found["epoch 1/1, validation"])


@pytest.mark.few(2)
@pytest.mark.parametrize("model", ["mlp", "char_rnn", "autoencoder", "unet"])
def test_a_training_says_where_its_files_are_and_which_command_follows(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    argv = ["train", model, "--epochs", "1", "--steps-per-epoch", "2", "--out", "a run"]
    assert main(argv) == 0
    kept, page, following = capsys.readouterr().err.splitlines()[-3:]
    assert kept == "kept in a run: epoch-0001.npz (newest), best.npz"
    assert page == "page: singanet report 'a run'"
    assert following.startswith("next: singanet ")
    assert main(shlex.split(following)[2:]) == 0


def test_a_training_without_a_folder_says_that_nothing_was_kept(small, tmp_path, capsys):
    argv = ["train", "mlp", "--data", small, "--epochs", "1"]
    assert main(argv) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("nothing was kept: add --out")
    assert main([*argv, "--json", str(tmp_path / "figures.json")]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("the net was not kept: add --out")
    assert json.loads((tmp_path / "figures.json").read_text())
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
