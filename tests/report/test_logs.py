"""The files that a run writes, and how they are read."""

from __future__ import annotations

import json
import math
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.errors import ArgumentError, BackendError, DataError, FileAccessError
from singanet.loss import SquaredError
from singanet.metric import ConfusionMatrix
from singanet.optimizer import SGD, Accumulator, ClipByLayerNorm, Wrapper
from singanet.optimizer.schedules import Step
from singanet.report import (
    ConfusionLog,
    MemoryLog,
    RunNotes,
    pages,
    plot_confusion,
    read_run,
    recorders,
    write_comparison,
    write_report,
)
from singanet.report.reading import best_epoch
from singanet.report.recording import write_confusion
from singanet.training import Callback, History
from singanet.training.callbacks import EarlyStopping, ModelCheckpoint
from tests.base.test_charts import cells
from tests.charts import NEEDED, SVG, groups, texts


def json_of(path):
    return json.loads(path.read_text("utf-8"))


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# -- Confusion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["none", "one", "both"], ()])
def test_counts_the_validation_data_with_the_trained_net(fit, net, data, tmp_path, labels):
    path = tmp_path / "confusion.json"
    fit([ConfusionLog(path, labels)])
    x, y = data[0][40:], data[1][40:]
    taken = net.predict(x).argmax(axis=1)
    expected = [[int(((y == i) & (taken == j)).sum()) for j in range(3)] for i in range(3)]
    assert json_of(path) == {"labels": labels or ["0", "1", "2"], "counts": expected}


def test_another_number_of_labels_is_refused_before_the_first_step(fit, net, tmp_path):
    before = net.param_values()[0].copy()
    with pytest.raises(ArgumentError, match=r"expected 3 names, one per class; received 2"):
        fit([ConfusionLog(tmp_path / "confusion.json", ["a", "b"])])
    assert (net.param_values()[0] == before).all()
    with pytest.raises(ArgumentError, match=r"expected 2 names"):
        write_confusion(tmp_path / "confusion.json", np.eye(2, dtype=int), ["a"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_without_classes_to_count(fit, net, data, tmp_path):
    log = ConfusionLog(tmp_path / "confusion.json")
    net.fit(*data, callbacks=[log], verbose=False)  # no validation data

    class Fails(ConfusionLog):
        def on_epoch_end(self, epoch, logs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit([Fails(tmp_path / "confusion.json")])
    net.compile(SGD(lr=0.1), SquaredError())
    x, targets = data[0], np.eye(3, dtype=np.float32)[data[1]]
    net.fit(x, targets, validation_data=(x, targets), callbacks=[log], verbose=False)
    assert list(tmp_path.iterdir()) == []


def counts(svg):
    return {k: "".join(g.itertext()).strip() for k, g in groups(svg, "count").items()}


@NEEDED
def test_a_metric_becomes_a_picture(rng, tmp_path):
    scores, y, metric = rng.standard_normal((60, 3)), rng.integers(0, 3, 60), ConfusionMatrix()
    metric.update(scores, y)
    svg = plot_confusion(metric.result(), tmp_path / "matrix.svg", ["cat", "dog", "<b>"])
    assert (tmp_path / "matrix.svg").read_text("utf-8") == svg
    found, strong, taken = counts(svg), cells(svg, 3, 3)[..., 3] / 255, scores.argmax(axis=1)
    for i, j in np.ndindex(3, 3):
        count = int(((y == i) & (taken == j)).sum())
        assert int(found[f"{i} {j}"]) == count
        assert strong[i, j] == pytest.approx(0.03 + 0.45 * count / (y == i).sum(), abs=5e-3)
    assert {"cat", "dog", "<b>"} <= {*texts(svg)}


@NEEDED
def test_pictures_of_weighted_counts_empty_rows_and_many_classes():
    svg = plot_confusion([[0.25, 1.5], [0, 0]])
    assert counts(svg) == {"0 0": "0.25", "0 1": "1.5", "1 0": "0", "1 1": "0"}
    assert cells(svg, 2, 2)[1, 0, 3] == int(0.03 * 255)
    svg = plot_confusion(np.eye(40, dtype=int) * 12345)
    assert cells(svg, 40, 40).shape == (40, 40, 4)
    assert cells(svg, 40, 40)[39, 39, 3] == 255
    assert not counts(svg)
    found = groups(plot_confusion([[123456789, 1], [2, 3]]), "count")
    left, right = (float(next(found[k].iter(f"{SVG}text")).get("x")) for k in ("0 0", "0 1"))
    assert right - left > 45  # points, of 0.75 pixels: as wide as the number


@NEEDED
@pytest.mark.parametrize(
    "wrong", [[], [1, 2], [[1, 2]], [[-1]], [[float("nan")]], [["x"]], np.eye(201)]
)
def test_other_matrices_labels_and_files_are_refused(wrong, tmp_path):
    with pytest.raises(ArgumentError, match=r"plot_confusion, counts.*\(C, C\)"):
        plot_confusion(wrong)
    with pytest.raises(ArgumentError, match="2 names, one per class; received 1"):
        plot_confusion(np.eye(2), labels=["a"])
    with pytest.raises(ArgumentError, match=r"\.svg"):
        plot_confusion(np.eye(2), tmp_path / "matrix.pdf")


# -- Memory ---------------------------------------------------------------------------------------


def test_memory_of_every_step_and_epoch(fit, tmp_path):
    fit([MemoryLog(tmp_path / "memory.jsonl", every_seconds=0.0)], epochs=2)
    found = lines(tmp_path / "memory.jsonl")
    steps = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 4), (1, 5), (1, 6), (1, 7), (1, 8), (1, 8)]
    assert [(line["epoch"], line["step"]) for line in found] == steps
    assert [line["seconds"] for line in found] == sorted(line["seconds"] for line in found)
    # fc1 has 4·8 + 8 parameters, fc2 8·3 + 3: the larger layer's, never both.
    assert {line["gradients"] for line in found} == {4 * 40, 0}
    for line in found:
        assert line["resident"] is None or 0 < line["resident"] <= line["peak"]


def test_memory_between_epochs_only_when_due(fit, tmp_path):
    fit([MemoryLog(tmp_path / "memory.jsonl", every_seconds=1e6)], epochs=2)
    found = lines(tmp_path / "memory.jsonl")
    assert [(line["epoch"], line["step"]) for line in found] == [(0, 1), (0, 4), (1, 8)]
    assert found[-1]["gradients"] == 160


def test_a_resumed_training_continues_the_seconds(fit, tmp_path):
    path = tmp_path / "memory.jsonl"
    log, checkpoint = MemoryLog(path, 1e6), ModelCheckpoint(tmp_path / "states")
    fit([log, checkpoint], epochs=1)
    text = path.read_text("utf-8")
    path.write_text(text.replace(text.splitlines()[-1], '{"seconds": 100.0, "epoch": 0}'))
    fit([log, checkpoint], epochs=2, resume=tmp_path / "states")
    found = lines(path)
    assert found[1]["seconds"] == 100.0
    assert found[-1]["epoch"] == 1
    assert 100.0 <= found[-1]["seconds"] < 200.0
    fit([log], epochs=1)
    assert len(lines(path)) == 2  # another training starts the file anew


def test_an_unwritable_folder_is_refused_before_the_first_step(fit, net, tmp_path):
    (tmp_path / "file").write_text("")
    before = net.param_values()[0].copy()
    with pytest.raises(FileAccessError, match="no step was taken"):
        fit([MemoryLog(tmp_path / "file" / "memory.jsonl")])
    assert (net.param_values()[0] == before).all()


# -- Notes ----------------------------------------------------------------------------------------


def test_the_configuration_is_written_before_the_first_step(fit, net, tmp_path):
    settings = {"data": "digits", "augment": True, "shape": (1, 8), "type": np.float16, "x": 1e999}
    fit([RunNotes(tmp_path / "run", settings)], epochs=2)
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"), parse_constant=float)
    wanted = {
        "epochs": 2, "learning_rate": 0.1, "seed": 0, "device": "cpu",
        "loss": {"class": "SoftmaxCrossEntropy", "arguments": {}},
        "optimizer": {"class": "SGD", "arguments": {"learning_rate": 0.1}},
        # Given settings replace known ones.
        "type": "<class 'numpy.float16'>", "shape": [1, 8], "augment": True, "x": "inf",
    }  # fmt: skip
    assert {key: config[key] for key in wanted} == wanted
    assert (tmp_path / "run" / "summary.txt").read_text("utf-8") == net.summary() + "\n"
    assert ElementTree.parse(tmp_path / "run" / "net.svg").getroot().tag.endswith("svg")


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
        # Files that this callback does not write are of the run before.
        fit([RunNotes(tmp_path / "run")])
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert sorted(there & {*kept, "report.html"}) == (kept if resumed else [])


def test_date_machine_and_duration_are_written(fit, tmp_path, monkeypatch):
    now, run, state = [100.0], tmp_path / "run", tmp_path / "state"
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Passing(Callback):
        def on_epoch_end(self, epoch, logs):
            now[0] += 2.5

    fit([Passing(), *recorders(run), ModelCheckpoint(state)], epochs=2)
    assert json_of(run / "outcome.json")["seconds"] == 5.0
    machine = json_of(run / "machine.json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", machine["started"])
    assert re.search(rf", \d+ cores, .*, NumPy {np.__version__}$", machine["machine"])
    # A resumed training continues the duration, any other starts anew.
    fit([Passing(), *recorders(run), ModelCheckpoint(state)], resume=state, epochs=3)
    assert json_of(run / "outcome.json")["seconds"] == 7.5
    fit([Passing(), *recorders(run)], epochs=1)
    assert json_of(run / "outcome.json")["seconds"] == 2.5


def test_the_optimizer_can_be_built_again_with_the_wrappers_of_fit(fit, net, tmp_path):
    net.compile(SGD(lr=Step(0.1, 5), momentum=0.9))
    fit([RunNotes(tmp_path)], epochs=1, clip=2.0, accumulate=2)
    config = json_of(tmp_path / "config.json")
    made = Wrapper.from_config(config["optimizer"])
    assert (type(made), made.every) == (Accumulator, 2)
    assert (type(made.optimizer), made.optimizer.max_norm) == (ClipByLayerNorm, 2.0)
    inner = made.optimizer.optimizer
    assert [inner.momentum, inner.lr(4), inner.lr(5)] == [0.9, 0.1, pytest.approx(0.01)]
    clipped = config["optimizer"]["arguments"]["optimizer"]["object"]
    plain = clipped["arguments"]["optimizer"]["object"]
    assert config["learning_rate"] == plain["arguments"]["learning_rate"]["object"]


def test_functions_are_written_as_python_shows_them(fit, net, tmp_path):
    net.compile(SGD(lr=abs, momentum=0.5))
    fit([RunNotes(tmp_path)], epochs=1)
    arguments = {"learning_rate": "<built-in function abs>", "momentum": 0.5}
    assert json_of(tmp_path / "config.json")["optimizer"] == {
        "class": "SGD",
        "arguments": arguments,
    }
    net.compiled.optimizer.lr = lambda step: 0.1
    fit([RunNotes(tmp_path)], epochs=1)
    assert json_of(tmp_path / "config.json")["learning_rate"] == "function"


def test_the_outcome_has_the_end_and_the_best_epoch(fit, tmp_path):
    class Late(Callback):
        def on_epoch_end(self, epoch, logs):
            if epoch == 2:
                raise ValueError("out of order")

    class Early(Callback):
        def on_batch_end(self, batch, logs):
            raise ValueError("in the first epoch")

    def outcome(*names):
        found = json_of(tmp_path / "outcome.json")
        return [found[name] for name in names]

    history = fit([RunNotes(tmp_path)])
    best = int(np.argmin(history["val_loss"]))
    found = json_of(tmp_path / "outcome.json")
    assert found.pop("seconds") >= 0
    assert found == {
        "epochs": 3, "of": 3, "stopped": None, "error": None, "monitor": "val_loss",
        "better": "min", "best_epoch": best, "best": min(history["val_loss"]),
    }  # fmt: skip
    with pytest.raises(ValueError, match="out of order"):
        fit([Late(), RunNotes(tmp_path)])
    assert outcome("error") == ["ValueError: out of order"]
    with pytest.raises(ValueError, match="in the first"):
        fit([Early(), RunNotes(tmp_path)])
    wanted = ["ValueError: in the first epoch", 0, None]
    assert outcome("error", "epochs", "best_epoch") == wanted
    fit([RunNotes(tmp_path), EarlyStopping("val_accuracy", patience=9)])
    assert outcome("monitor", "better") == ["val_accuracy", "max"]


def test_the_best_epoch_of_a_history():
    history = History()
    for epoch, score in enumerate([math.nan, 3.0, 2.0]):
        history.record(epoch, {"score": score})
    assert best_epoch(history)["best_epoch"] is None  # the direction is unknown
    lower = {"monitor": "score", "better": "min", "best_epoch": 2, "best": 2.0}
    assert best_epoch(history, mode="min") == lower
    assert best_epoch(history, "none such", "max")["best_epoch"] == 1
    history.record(3, {"loss": 5.0})
    assert best_epoch(history)["monitor"] == "loss"
    history.clear()
    history["score"] = [math.nan] * 4
    assert best_epoch(history)["best_epoch"] is None


# -- Reading --------------------------------------------------------------------------------------


def test_reads_the_files_of_the_recorders(fit, net, tmp_path):
    history = fit(recorders(tmp_path, {"data": "made up"}, ["a", "b", "c"]))
    (tmp_path / "figures.json").write_text('{"test_accuracy": 0.5}')
    run = read_run(tmp_path)
    assert run.history == history
    assert run.history.epochs == [line["epoch"] for line in run.layers] == [0, 1, 2]
    assert run.figures == {"test_accuracy": 0.5}
    assert run.config["data"] == "made up"
    assert run.summary == net.summary() + "\n"
    assert run.picture == net.plot()
    assert set(run.layers[0]["parameters"]) == set(net.param_names())
    assert run.memory[-1]["step"] == 12
    assert run.labels == ["a", "b", "c"]
    assert sum(map(sum, run.confusion)) == 20


@pytest.mark.parametrize("missing", ["matplotlib.figure", "jinja2"])
def test_without_the_extra_runs_are_recorded_and_pages_refused(fit, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    pages._template.cache_clear()
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        fit(recorders(folder), epochs=1)
    before = {path: path.read_bytes() for path in a.iterdir()}
    words = r"expected the package \w+; received .*; run: pip install 'singanet\[report\]'"
    for refused in (
        lambda: recorders(a, live=True),
        lambda: write_report(a),
        lambda: write_comparison([a, b], tmp_path / "page.html"),
    ):
        with pytest.raises(BackendError, match=words):
            refused()
    assert before == {path: path.read_bytes() for path in a.iterdir()}
    assert not (tmp_path / "page.html").exists()


def test_missing_files_are_empty(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1.5\n1,\n")
    run = read_run(tmp_path)
    assert run.history["loss"][0] == 1.5
    assert math.isnan(run.history["loss"][1])
    assert (run.config, run.layers, run.memory, run.confusion) == ({}, [], [], [])


@pytest.mark.parametrize(
    ("name", "text"),
    [("history.csv", "epoch,loss,accuracy\n0,1.5,0.5\n1,0.7"),
     ("layers.jsonl", '{"epoch": 0, "parameters": {}}\n{"epoch": 1, "para'),
     ("memory.jsonl", '{"seconds": 1.0}\n{"sec')],
)  # fmt: skip
def test_a_last_line_cut_short_is_skipped(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    run = read_run(tmp_path)
    assert len(run.history.epochs) + len(run.layers) + len(run.memory) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "expected text in JSON; received JSONDecodeError"),
        ("figures.json", "[1]", "expected a JSON object; received a list"),
        ("layers.jsonl", "{}\n", "an object with epoch, parameters in line 1"),
        ("layers.jsonl", 'x\n{"epoch": 0, "parameters": {}}\n', "text in JSON in line 1"),
        ("memory.jsonl", '{"seconds": 1}\nx\n', "text in JSON in line 2"),
        ("memory.jsonl", "[1]\n", "an object with seconds in line 1"),
        ("history.csv", "loss\n1\n", "a header that starts with epoch"),
        ("history.csv", "epoch,loss\n0,x\n1,2\n", "2 numbers in line 2"),
        ("confusion.json", '{"labels": ["a"], "counts": [[1, 2]]}', "C rows of C counts"),
        ("confusion.json", '{"labels": ["a"], "counts": [["1"]]}', "C rows of C counts"),
        ("confusion.json", '{"counts": []}', "C rows of C counts"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_run(tmp_path)
    assert name in str(error.value)
    assert "remove the file" in str(error.value)


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder, words in (
        (tmp_path, "none of them; train with"),
        (tmp_path / "x", "no such folder"),
    ):
        with pytest.raises(FileAccessError, match=f"received {words}"):
            read_run(folder)
