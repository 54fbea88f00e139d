import json

import numpy as np
import pytest

import singanet
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training import Callback
from singanet.training.callbacks import LayerStatistics, ModelCheckpoint


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


def test_every_so_many_steps(build, data, monkeypatch):
    seen = []
    watch = LayerStatistics(every_steps=3)
    original = LayerStatistics.on_layer_gradients

    class Spy(LayerStatistics):
        def on_layer_gradients(self, names, values, grads):
            before = {k: v[-1][0] for k, v in self._rows.items()}
            original(self, names, values, grads)
            if {k: v[-1][0] for k, v in self._rows.items()} != before:
                seen.append((self.session.step, self.session.layer))

    watch = Spy(every_steps=3)
    build().fit(*data, batch_size=10, epochs=2, callbacks=[watch], verbose=False)
    assert [step for step, layer in seen if layer == "fc1"] == [0, 3, 6]


def test_row_sparse_gradients(rng):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Embedding("table", 50, 4, input_sample_shape=(3,)))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 2))
    net.compile(SGD(lr=0.1))
    watch = LayerStatistics()
    x, y = rng.integers(0, 50, (8, 3)), rng.integers(0, 2, 8)
    net.fit(x, y, callbacks=[watch], verbose=False)
    name = next(name for name in net.param_names() if name.startswith("table/"))
    assert watch.epochs[0]["parameters"][name]["gradient_norm"] > 0


class StopAt(Callback):
    """Ends the fit at the end of a step."""

    def __init__(self, step):
        self.step = step

    def on_batch_end(self, batch, logs):
        if self.session.step + 1 == self.step:
            self.session.stop("asked to")


@pytest.mark.parametrize("step", [3, 4, 6])
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumption_in_the_middle_of_an_epoch_goes_on_to_the_bit(
    build, data, tmp_path, step, every
):
    def run(name, folder, stop=None, **arguments):
        watch = LayerStatistics(tmp_path / name, every_steps=every)
        callbacks = [watch, ModelCheckpoint(tmp_path / folder), StopAt(stop)]
        build().fit(*data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False, **arguments)
        return watch.epochs

    whole = run("whole", "a")
    run("cut", "b", stop=step)
    with (tmp_path / "cut").open("a") as file:
        file.write('{"epoch": 2, "parameters": {}}\n{"epoch": 3, "par')  # of a process killed later
    assert run("cut", "b", resume=tmp_path / "b") == whole
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "cut").read_bytes()


def test_parameters_that_come_and_go_keep_their_epochs(build, data, tmp_path):
    class Freeze(Callback):
        def on_epoch_begin(self, epoch):
            self.session.net["fc1"].trainable = epoch != 1

    def run(epochs, resume=None):
        watch = LayerStatistics()
        build().fit(
            *data,
            epochs=epochs,
            callbacks=[Freeze(), watch, ModelCheckpoint(tmp_path / "run")],
            resume=resume,
            verbose=False,
        )
        return watch.epochs

    whole = run(4)
    assert ["fc1/weight" in each["parameters"] for each in whole] == [True, False, True, True]
    run(2)
    assert run(4, resume=tmp_path / "run" / "epoch-0002.npz") == whole
