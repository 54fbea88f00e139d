"""Callbacks that write lines: CSV, JSON, statistics of layers, memory and times."""

import csv
import io
import json
import re
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from singanet.layers import Activation
from singanet.optimizer import SGD
from singanet.training import callbacks as cb
from singanet.training.callbacks import CSVLogger, JSONLinesLogger, LayerStatistics, ModelCheckpoint
from singanet.training.display import History
from tests.interrupts import struck_at
from tests.kit.callbacks import at, stop_at
from tests.kit.nets import words_net


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_an_epoch_with_the_same_floats(build, data, tmp_path):
    path, counts = tmp_path / "new folder" / "log.csv", []
    look = at("on_epoch_end", lambda *_: counts.append(len(rows_of(path))), _runs_last=True)
    given = {"validation_data": data, "callbacks": [CSVLogger(path), look]}
    history = build().fit(*data, epochs=3, verbose=False, **given)
    rows = rows_of(path)
    assert counts == [1, 2, 3]
    assert list(rows[0]) == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    for name, values in history.items():
        assert [float(row[name]) for row in rows] == values


def test_a_resumed_training_keeps_what_came_before(build, data, tmp_path):
    path, run = tmp_path / "log.csv", tmp_path / "run"
    for epochs, left in enumerate(("{}2,9.9,0.9\n", "", "epoch,loss\n0,1\n1", ""), 2):
        history = build().fit(
            *data, epochs=epochs, callbacks=[CSVLogger(path), ModelCheckpoint(run)],
            resume=run if epochs > 2 else None, verbose=False,
        )  # fmt: skip
        assert [float(row["loss"]) for row in rows_of(path)] == history["loss"]
        path.write_text(left.format(path.read_text()))
    build().fit(*data, epochs=1, callbacks=[CSVLogger(path)], verbose=False)
    assert len(rows_of(path)) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_interrupt_takes_a_line_of_the_epochs_before(tmp_path):
    path, history, line = tmp_path / "log.csv", History(), 0
    for epoch in range(3):
        history.record(epoch, {"loss": 1 / (epoch + 1)})
    before = ["epoch,loss", "0,1.0", "1,0.5"]
    path.write_text("\n".join([*before, f"2,{1 / 3}\n"]), "utf-8")
    more = True
    while more:
        line += 1
        logger = CSVLogger(path)
        logger._session = SimpleNamespace(history=history, resumed=True)
        more = struck_at(line, partial(logger.on_epoch_end, 2, {"loss": 1 / 3}))
        logger.on_train_end()
        assert path.read_text("utf-8").splitlines()[:3] == before
    assert line > 50
    assert len(path.read_text("utf-8").splitlines()) == 4


def test_lines_of_steps_and_epochs(build, data, feign, tmp_path):
    path = tmp_path / "log.jsonl"
    log = JSONLinesLogger(path, every_steps=3)
    watched = feign(mine=[1.0, float("nan")])
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[watched, log], verbose=False)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [
        ("step", 3), ("epoch", 4), ("step", 6), ("epoch", 8),
    ]  # fmt: skip
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert [line["loss"] for line in epochs] == history["loss"]
    assert [line["mine"] for line in epochs] == [1.0, None]
    assert lines[0]["seconds"] <= lines[-1]["seconds"]


def test_norms_are_those_of_the_gradients(build, data, tmp_path):
    x, y = data
    net, other = build(), build()
    path = tmp_path / "new" / "stats.jsonl"
    watch = LayerStatistics(path)
    net.fit(x, y, batch_size=20, shuffle=False, callbacks=[watch], clip=1e-6, verbose=False)
    # Clipped to nothing, the parameters stand still: both batches see the first ones.
    norms = {name: [] for name in other.param_names()}
    for part in (slice(0, 20), slice(20, 40)):
        grads, _ = other.train(x[part], y[part])
        for name, grad in zip(other.param_names(), grads, strict=True):
            norms[name].append(np.sqrt(np.sum(np.float64(grad) ** 2)))
    assert len(watch.epochs) == 1
    figures = watch.epochs[0]["parameters"]
    for name, value in zip(other.param_names(), other.param_values(), strict=True):
        assert figures[name]["gradient_norm"] == pytest.approx(np.mean(norms[name]), rel=1e-4)
        assert figures[name]["gradient_norm_max"] == pytest.approx(max(norms[name]), rel=1e-4)
        weight = np.sqrt(np.sum(np.float64(value) ** 2))
        assert figures[name]["weight_norm"] == pytest.approx(weight, rel=1e-4, abs=1e-6)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == watch.epochs


def test_every_so_many_steps(build, data):
    seen = []

    class Spy(LayerStatistics):
        def on_layer_gradients(self, names, values, grads):
            before = {k: v[-1][0] for k, v in self._rows.items()}
            super().on_layer_gradients(names, values, grads)
            if (
                self.session.layer == "fc1"
                and {k: v[-1][0] for k, v in self._rows.items()} != before
            ):
                seen.append(self.session.step)

    build().fit(*data, batch_size=10, epochs=2, callbacks=[Spy(every_steps=3)], verbose=False)
    assert seen == [0, 3, 6]


def test_row_sparse_gradients(rng):
    net, watch = words_net(50, 4, 3, 2, seed=0), LayerStatistics()
    net.compile(SGD(lr=0.1))
    x, y = rng.integers(0, 50, (8, 3)), rng.integers(0, 2, 8)
    net.fit(x, y, callbacks=[watch], verbose=False)
    assert watch.epochs[0]["parameters"]["e/weight"]["gradient_norm"] > 0


@pytest.mark.parametrize("step", [3, 4, 6])
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumption_in_the_middle_of_an_epoch_goes_on_to_the_bit(
    build, data, tmp_path, step, every
):
    def run(name, folder, stop=None, **arguments):
        watch = LayerStatistics(tmp_path / name, every_steps=every)
        callbacks = [watch, ModelCheckpoint(tmp_path / folder), stop_at(stop)]
        build().fit(*data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False, **arguments)
        return watch.epochs

    whole = run("whole", "a")
    run("cut", "b", stop=step)
    with (tmp_path / "cut").open("a") as file:
        file.write('{"epoch": 2, "parameters": {}}\n{"epoch": 3, "par')  # of a process killed later
    assert run("cut", "b", resume=tmp_path / "b") == whole
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "cut").read_bytes()


def test_parameters_that_come_and_go_keep_their_epochs(build, data, tmp_path):
    def freeze(session, epoch):
        session.net["fc1"].trainable = epoch != 1

    def run(epochs, **given):
        watch = LayerStatistics()
        callbacks = [at("on_epoch_begin", freeze), watch, ModelCheckpoint(tmp_path / "run")]
        build().fit(*data, epochs=epochs, callbacks=callbacks, verbose=False, **given)
        return watch.epochs

    whole = run(4)
    assert ["fc1/weight" in each["parameters"] for each in whole] == [True, False, True, True]
    run(2)
    assert run(4, resume=tmp_path / "run" / "epoch-0002.npz") == whole


class Slow(Activation):
    """Sleeps in both directions."""

    def forward(self, ctx, x):
        time.sleep(0.002)
        return super().forward(ctx, x)

    def backward(self, ctx, dy):
        time.sleep(0.004)
        return super().backward(ctx, dy)


def test_time_is_put_down_to_the_layer_that_takes_it(build, data):
    net, timing = build(), cb.LayerTiming()
    net.add(Slow("slow", "tanh"))
    net.fit(*data, batch_size=10, callbacks=[timing], verbose=False)
    # Four steps; a sleep never ends early.
    assert timing.forward["slow"] >= 4 * 0.002
    assert timing.backward["slow"] >= 4 * 0.004
    assert list(timing.forward) == ["fc1", "relu", "fc2", "slow"]
    assert all(seconds > 0 for seconds in timing.backward.values())
    lines = timing.table().splitlines()
    assert [line.split()[0] for line in lines] == ["layer", *timing.forward]


def test_a_line_an_epoch_with_the_largest_layer(build, data):
    stream = io.StringIO()
    line = cb.MemoryLine(stream)
    build().fit(*data, epochs=2, callbacks=[line], verbose=False)
    # fc1: 5×8 weights and 8 biases of float32; fc2: 8×3 and 3.
    assert line.gradient_bytes == 4 * (5 * 8 + 8)
    _, second = stream.getvalue().splitlines()
    for word in ("resident", "peak"):
        assert float(re.search(rf"{word} ([\d.]+) MB", second)[1]) > 10
