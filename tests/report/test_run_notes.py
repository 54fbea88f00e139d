import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.optimizer import SGD, Accumulator, ClipByLayerNorm, Wrapper
from singanet.optimizer.schedules import Step
from singanet.report import RunNotes, recorders
from singanet.report.reading import best_epoch
from singanet.training import Callback, History
from singanet.training.callbacks import EarlyStopping, ModelCheckpoint


def test_says_before_the_first_step_what_is_trained(fit, net, tmp_path):
    settings = {"data": "digits", "augment": True, "shape": (1, 8), "type": np.float16, "x": 1e999}
    fit([RunNotes(tmp_path / "run", settings)], epochs=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"), parse_constant=float)
    assert config["epochs"] == 2
    assert config["learning_rate"] == 0.1
    assert config["loss"] == {"class": "SoftmaxCrossEntropy", "arguments": {}}
    assert config["optimizer"] == {"class": "SGD", "arguments": {"learning_rate": 0.1}}
    assert config["seed"] == 0
    assert config["device"] == "cpu"
    # The settings given stand over what is known.
    assert config["type"] == "<class 'numpy.float16'>"
    assert config["shape"] == [1, 8]
    assert config["augment"] is True
    assert config["x"] == "inf"
    assert (tmp_path / "run" / "summary.txt").read_text("utf-8") == net.summary() + "\n"
    root = ElementTree.parse(tmp_path / "run" / "net.svg").getroot()
    assert root.tag.endswith("svg")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_folder_has_one_run(fit, tmp_path, resumed):
    kept = ["confusion.json", "figures.json", "history.csv", "layers.jsonl", "memory.jsonl"]
    state = tmp_path / "state"
    fit([*recorders(tmp_path / "run"), ModelCheckpoint(state)], epochs=1)
    for name in ("figures.json", "report.html"):
        (tmp_path / "run" / name).write_text("{}")
    if resumed:
        fit([*recorders(tmp_path / "run"), ModelCheckpoint(state)], resume=state, epochs=2)
    else:
        # The first of the callbacks alone: what it does not write is of the run before.
        fit([RunNotes(tmp_path / "run")])
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert sorted(there & {*kept, "report.html"}) == (kept if resumed else [])


def test_date_machine_and_duration_are_written(fit, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Passing(Callback):
        def on_epoch_end(self, epoch, logs):
            now[0] += 2.5

    def written(name):
        return json.loads((tmp_path / "run" / name).read_text("utf-8"))

    state = tmp_path / "state"
    fit([Passing(), *recorders(tmp_path / "run"), ModelCheckpoint(state)], epochs=2)
    assert written("outcome.json")["seconds"] == 5.0
    machine = written("machine.json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", machine["started"])
    assert re.search(rf", \d+ cores, .*, NumPy {np.__version__}$", machine["machine"])
    # A resumed training continues the duration, any other starts anew.
    callbacks = [Passing(), *recorders(tmp_path / "run"), ModelCheckpoint(state)]
    fit(callbacks, resume=state, epochs=3)
    assert written("outcome.json")["seconds"] == 7.5
    fit([Passing(), *recorders(tmp_path / "run")], epochs=1)
    assert written("outcome.json")["seconds"] == 2.5


def test_the_optimizer_can_be_built_again_with_what_fit_put_around_it(fit, net, tmp_path):
    net.compile(SGD(lr=Step(0.1, 5), momentum=0.9))
    fit([RunNotes(tmp_path)], epochs=1, clip=2.0, accumulate=2)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    made = Wrapper.from_config(config["optimizer"])
    assert isinstance(made, Accumulator)
    assert made.every == 2
    assert isinstance(made.optimizer, ClipByLayerNorm)
    assert made.optimizer.max_norm == 2.0
    assert made.optimizer.optimizer.momentum == 0.9
    assert [made.optimizer.optimizer.lr(k) for k in (4, 5)] == [0.1, pytest.approx(0.01)]
    assert (
        config["learning_rate"]
        == config["optimizer"]["arguments"]["optimizer"]["object"]["arguments"]["optimizer"][
            "object"
        ]["arguments"]["learning_rate"]["object"]
    )


def test_what_is_no_data_is_shown_as_python_does(fit, net, tmp_path):
    net.compile(SGD(lr=abs, momentum=0.5))
    fit([RunNotes(tmp_path)], epochs=1)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config["optimizer"] == {
        "class": "SGD",
        "arguments": {"learning_rate": "<built-in function abs>", "momentum": 0.5},
    }


def test_schedules_are_named(fit, net, tmp_path):
    net.compiled.optimizer.lr = lambda step: 0.1
    fit([RunNotes(tmp_path)], epochs=1)
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["learning_rate"] == "function"


def test_the_outcome_tells_how_it_ended_and_the_best_epoch(fit, tmp_path):
    class Told(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["mine"] = [3.0, 1.0, 2.0][epoch]
            if epoch == 2:
                raise ValueError("out of order")

    def outcome():
        found = json.loads((tmp_path / "outcome.json").read_text("utf-8"))
        return {key: value for key, value in found.items() if key != "seconds"}

    history = fit([RunNotes(tmp_path)])
    best = int(np.argmin(history["val_loss"]))
    assert outcome() == {
        "epochs": 3, "of": 3, "stopped": None, "error": None,
        "monitor": "val_loss", "better": "min",
        "best_epoch": best, "best": min(history["val_loss"]),
    }  # fmt: skip
    with pytest.raises(ValueError, match="out of order"):
        fit([Told(), RunNotes(tmp_path)])
    assert outcome()["error"] == "ValueError: out of order"

    class Early(Callback):
        def on_batch_end(self, batch, logs):
            raise ValueError("in the first epoch")

    with pytest.raises(ValueError, match="in the first"):
        fit([Early(), RunNotes(tmp_path)])
    assert outcome()["error"] == "ValueError: in the first epoch"
    assert (outcome()["epochs"], outcome()["best_epoch"]) == (0, None)
    fit([RunNotes(tmp_path), EarlyStopping("val_accuracy", patience=9)])
    assert (outcome()["monitor"], outcome()["better"]) == ("val_accuracy", "max")


def test_the_best_epoch_of_what_was_measured():
    history = History()
    for epoch, score in enumerate([math.nan, 3.0, 2.0]):
        history.record(epoch, {"score": score})
    assert best_epoch(history)["best_epoch"] is None  # nobody says which scores are better
    lower = {"monitor": "score", "better": "min", "best_epoch": 2, "best": 2.0}
    assert best_epoch(history, mode="min") == lower
    assert best_epoch(history, "none such", "max")["best_epoch"] == 1
    history.record(3, {"loss": 5.0})
    assert best_epoch(history)["monitor"] == "loss"
    history.clear()
    history["score"] = [math.nan] * 4
    assert best_epoch(history)["best_epoch"] is None
