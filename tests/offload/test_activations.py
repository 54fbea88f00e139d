"""What layers keep for backward may lie in the folder: the same bits, and nothing is left there."""

import errno
import gc
import os
import tracemalloc
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import singanet
from singanet import layers as nn
from singanet.errors import FileAccessError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout, Layer
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.offload.generation import PassFile
from singanet.optimizer import SGD, Adam
from tests.offload.twins import Twins, arrays_of, expect_same

SAMPLES, WIDTH, DEPTH, KEEP = 256, 160, 6, 1_500_000
"""An activation has 164 kB, parameters of a layer with the state of Adam 307 kB."""


def dense_net(extra=()) -> singanet.FeedForwardNet:
    layers = [Dense("in", WIDTH, input_sample_shape=(WIDTH,))]
    for k in range(DEPTH):
        layers += [Dense(f"fc{k}", WIDTH), BatchNormalization(f"norm{k}"), Dropout(f"drop{k}", 0.2)]
    return singanet.FeedForwardNet([*layers, *extra], loss=SquaredError(), seed=3)


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(seed).standard_normal((2, SAMPLES, WIDTH), np.float32)
    return x, y


def image_net() -> singanet.FeedForwardNet:
    """One convolution in three places, with skips, dropout and statistics of the batch."""
    x = nn.Input("x", (3, 16, 16))
    first, shared = nn.Conv2D("c0", 8, 3, pad=1)(x), nn.Conv2D("shared", 8, 3, pad=1)
    at = Activation("r0")(first)
    for k in range(3):
        y = Dropout(f"d{k}", 0.3)(BatchNormalization(f"b{k}")(shared(at)))
        at = Activation(f"r{k + 1}")(nn.Add(f"a{k}")(y, at))
    parts = [nn.MaxPooling2D(f"p{k}", 2, 2)(each) for k, each in enumerate((at, first))]
    out = Dense("top", 10)(nn.Flatten("flat")(nn.Concat("both", axis=1)(*parts)))
    return singanet.FeedForwardNet(inputs=x, outputs=out, loss=SoftmaxCrossEntropy(), seed=1)


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if name == "images":
        return rng.standard_normal((16, 3, 16, 16), np.float32), rng.integers(0, 10, 16)
    ids = rng.integers(0, 90, (8, *singanet.models.find(name).input_shape))
    return ids, ids if singanet.models.find(name).task == "text" else rng.integers(0, 2, 8)


def is_clean(net: singanet.FeedForwardNet, folder) -> bool:
    """Whether nothing of a pass is left in the folder, where it has no name, nor open."""
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, PassFile)]
    names = {path.name for path in folder.iterdir() if path.suffix != ".lock"}
    return all(file.raw.closed for file in left if file.path == folder) and names <= {
        "a.safetensors",
        "b.safetensors",
        "latest",
        singanet.base.files.NAME,
    }


@pytest.mark.parametrize("name", ["images", "lstm", "transformer"])
def test_steps_are_those_in_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr("singanet.program.loads.SMALL", 1000)
    make = image_net if name == "images" else partial(singanet.models.build, name, seed=0)
    keep, batch = 250_000 if name == "images" else "4MB", data_of(name)
    twins = Twins(make, tmp_path / "net", keep, activations=True)
    for _ in range(2):
        twins.step(*batch)
        assert is_clean(twins.net, tmp_path / "net")
    twins.expect_same()
    twins.net.onload()
    twins.step(*batch)


def test_a_fit_is_that_in_memory(tmp_path):
    nets = dense_net(), dense_net()
    for each in nets:
        each.compile(Adam(lr=0.01))
    nets[1].offload(tmp_path / "net", KEEP, activations=True)
    more = {"clip": 0.5, "clip_by": "global", "accumulate": 2}
    wanted, found = (each.fit(*batch(), 64, 1, verbose=False, **more) for each in nets)
    assert found == wanted
    expect_same(arrays_of(nets[1]), arrays_of(nets[0]))
    assert nets[1].executor.shelf.peak <= KEEP


def test_most_of_the_activations_are_not_in_memory(tmp_path):
    x, y = batch()
    peaks = []
    for activations in (False, True):
        net, rule = dense_net(), SGD(lr=0.1)
        net.offload(tmp_path / f"{activations}", 500_000, activations=activations)
        tracemalloc.start()
        try:
            for _ in range(2):
                net.step(x, y, rule)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert net.executor.shelf.peak <= 500_000
    assert peaks[0] > 2 * DEPTH * x.nbytes
    # What is kept, what the layer at work has and makes, and the program's calls in Python.
    assert peaks[1] < 500_000 + 11 * x.nbytes


def test_gradients_and_own_loops_are_those_in_memory(tmp_path):
    x, y = batch()
    plain, net = dense_net(), dense_net()
    net.offload(tmp_path / "net", KEEP, activations=True)
    feed = {"in": x, "targets": y}
    for wanted in (["fc0/weight", "fc4"], ["in"]):
        found = net.gradients("loss", wanted, feed, train=True)
        expect_same(found, plain.gradients("loss", wanted, feed, train=True))
    for each in (plain, net):
        each.forward(True, x)  # no backward comes
        walk = each.backward(each.forward(True, x) - y)
        next(walk)
        walk.close()
        each.backward(each.forward(True, x) - y)  # none is begun
        for _, values, grads in each.backward(each.forward(True, x, ["fc3"])["drop5"] - y, ["fc3"]):
            for value, grad in zip(values, grads, strict=True):
                value -= np.float32(0.01) * grad
    expect_same(arrays_of(net), arrays_of(plain))
    assert is_clean(net, tmp_path / "net")


def test_an_output_that_backward_reads_comes_back(tmp_path):
    twins = Twins(
        lambda: dense_net([Activation("s", "sigmoid")]), tmp_path / "net", 500_000, activations=True
    )
    x, y = batch()
    for _ in range(2):
        for net, rule in twins.each():
            for item in net.backward(net.forward(True, x) - y):
                rule.update(*item)
        twins.expect_same()
    assert not twins.net.executor.programs.refusals


class Pair(NamedTuple):
    first: np.ndarray
    second: object


class Odd(Layer):
    """A user's layer that works in place, and keeps all kinds of things."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        self.log = ["forward"]
        ctx.save(
            x=x.copy()[:, ::-1], pair=Pair(x.T, {"half": [x[::2, 1:], 7]}), log=self.log,
            text=np.array(["a", {}], object), masked=np.ma.masked_less(x, 0.5),
            function=lambda array: array * 2,
        )  # fmt: skip
        return x * np.abs(x)

    def backward(self, ctx, dy):
        saved = ctx.saved
        saved["log"].append("backward")
        assert self.log == ["forward", "backward"]
        assert saved["text"].tolist() == ["a", {}]
        assert type(saved["masked"]) is np.ma.MaskedArray
        pair = saved["pair"]
        assert type(pair) is Pair
        assert pair.second["half"][1] == 7
        np.testing.assert_array_equal(pair.first[1:, ::2], pair.second["half"][0].T)
        np.testing.assert_array_equal(pair.first.T[:, ::-1], saved["x"])
        dx = saved["function"](dy * np.abs(pair.first.T))
        saved["x"][...] = 0  # its own to write on
        return dx, {}


class InPlace(Layer):
    """Halves what it is given, where it is."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        x *= 0.5
        return x

    def backward(self, ctx, dy):
        return dy * 0.5, {}


@pytest.mark.parametrize("kind", [Odd, InPlace])
def test_layers_of_the_users_own(tmp_path, kind):
    def make():
        return dense_net([Activation("s", "sigmoid"), kind("own"), Dense("last", WIDTH)])

    twins = Twins(make, tmp_path / "net", 400_000, activations=True)
    # In a program such a layer has arrays of its own.
    twins.plain.programs.enabled, twins.plain.programs.at_once = kind is InPlace, True
    twins.step(*batch(), times=2)
    twins.expect_same()


@pytest.mark.parametrize("at", range(0, 60, 20))
def test_a_full_disk_undoes_the_step(tmp_path, monkeypatch, at):
    twins = Twins(dense_net, tmp_path / "net", 400_000, activations=True)
    twins.expect_a_full_disk_undoes_a_step(batch(), at, monkeypatch)
    assert is_clean(twins.net, tmp_path / "net")


def test_a_forward_of_ones_own_that_fails_changes_nothing(tmp_path, monkeypatch):
    (x, _), net = batch(), dense_net()
    net.offload(tmp_path / "net", 400_000, activations=True)
    before, draws = arrays_of(net), net.rng.bit_generator.state

    def full(**options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(FileAccessError, match="No space"):
            net.forward(True, x)
    expect_same(arrays_of(net), before)
    assert net.rng.bit_generator.state == draws
    assert net.forward(True, x).shape == x.shape
