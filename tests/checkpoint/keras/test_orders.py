"""Nets drawn at random, here and in Keras: a file of weights makes both the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet import layers as ours
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError
from singanet.keras import load_model
from singanet.net import FeedForwardNet

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
kl = keras.layers

SHAPE = (2, 4, 3)


@dataclass
class Pair:
    """A tensor of both: our symbol, Keras', and whether rows of images stand in it."""

    here: Any
    there: Any


def both(here: Any, there: Any, *inputs: Pair) -> Pair:
    """Call our layer and Keras' on the same inputs."""
    theirs = [x.there for x in inputs]
    return Pair(here(*(x.here for x in inputs)), there(theirs if len(theirs) > 1 else theirs[0]))


class Drawn:
    """The two nets as they grow."""

    def __init__(self, draw: Any, whole: bool) -> None:
        self.draw = draw
        self.whole = whole
        self.count = 0
        self.inputs: list[Pair] = []

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def image(self) -> Pair:
        c, h, w = SHAPE
        name = self.name()
        pair = Pair(ours.Input(name, SHAPE), keras.Input((h, w, c), name=name))
        self.inputs.append(pair)
        for _ in range(self.draw(st.integers(0, 2))):
            pair = self.on_images(pair)
        return pair

    def on_images(self, x: Pair) -> Pair:
        kind = self.draw(st.sampled_from(["conv", "pool", "norm", "relu", "both"]))
        name, large = self.name(), min(x.here.shape[1:]) > 1
        if kind == "conv":
            conv = ours.Conv2D(name, 3, 1 + large, border_mode="valid")
            return both(conv, kl.Conv2D(3, 1 + large, name=name), x)
        if kind == "pool" and large:
            pool = ours.MaxPooling2D(name, 2, 1, border_mode="valid")
            return both(pool, kl.MaxPooling2D(2, 1, name=name), x)
        if kind == "norm":
            return self.norm(x, name)
        if kind == "both":
            other = self.on_images(x)
            if other.here.shape[1:] != x.here.shape[1:]:
                return other
            return both(ours.Concat(name, 1), kl.Concatenate(name=name), x, other)
        return both(ours.Activation(name), kl.ReLU(name=name), x)

    def row(self, depth: int) -> Pair:
        kinds = ["flatten"] if self.whole else ["flatten", "reshape"]
        if depth:
            kinds = ["dense", "norm", "layer norm", "add", "multiply", "concat", "tanh"]
            kinds += [] if self.whole else ["prelu", "there and back"]
        kind, name = self.draw(st.sampled_from(kinds)), self.name()
        if kind == "flatten":
            return both(ours.Flatten(name), kl.Flatten(name=name), self.image())
        if kind == "reshape":
            return both(ours.Reshape(name, (-1,)), kl.Reshape((-1,), name=name), self.image())
        x = self.row(depth - 1)
        if kind == "dense":
            return self.dense(x, self.draw(st.integers(1, 6)))
        if kind == "norm":
            return self.norm(x, name)
        if kind == "layer norm":
            norm = ours.LayerNorm(name, epsilon=1e-3)
            return both(norm, kl.LayerNormalization(name=name), x)
        if kind == "prelu":
            return both(ours.PReLU(name), kl.PReLU(name=name), x)
        if kind == "tanh":
            return both(ours.Activation(name, "tanh"), kl.Activation("tanh", name=name), x)
        if kind == "there and back":
            c, h, w = SHAPE
            x = self.dense(x, c * h * w)
            image = both(ours.Reshape(name, SHAPE), kl.Reshape((h, w, c), name=name), x)
            image, name = self.on_images(image), self.name()
            return both(ours.Flatten(name), kl.Flatten(name=name), image)
        other = self.row(depth - 1)
        if kind == "concat":
            return both(ours.Concat(name, 1), kl.Concatenate(name=name), x, other)
        other = self.dense(other, x.here.shape[0])
        join, joined = (ours.Add, kl.Add) if kind == "add" else (ours.Multiply, kl.Multiply)
        return both(join(name), joined(name=name), x, other)

    def norm(self, x: Pair, name: str) -> Pair:
        norm = ours.BatchNormalization(name, epsilon=1e-3)
        return both(norm, kl.BatchNormalization(name=name), x)

    def dense(self, x: Pair, units: int) -> Pair:
        name = self.name()
        return both(ours.Dense(name, units), kl.Dense(units, name=name), x)


def samples(drawn: Drawn) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(1)
    here, there = {}, []
    for pair in drawn.inputs:
        x = rng.uniform(-1, 1, (2, *SHAPE)).astype("f4")
        here[pair.there.name] = x
        there.append(np.moveaxis(x, 1, -1))
    return here, there


def randomise(model: Any) -> None:
    rng = np.random.default_rng(2)
    model.set_weights([rng.uniform(0.2, 0.9, w.shape).astype("f4") for w in model.get_weights()])


def some(examples: int) -> Any:
    """A test of ``examples`` random nets."""
    unhealthy = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, suppress_health_check=unhealthy)


def weights_there_and_back(tmp_path: Any, data: Any) -> None:
    drawn = Drawn(data.draw, whole=False)
    last = drawn.dense(drawn.row(3), 3)
    net = FeedForwardNet(inputs=[p.here for p in drawn.inputs], outputs=[last.here], seed=0)
    model = keras.Model([p.there for p in drawn.inputs], last.there)
    randomise(model)
    file = tmp_path / "m.weights.h5"
    # By name, since layers are not added in one order here and there.
    order = [layer.name for layer in model.layers if layer.weights]
    assert sorted(order) == sorted(layer.name for layer in net.layers if layer.params)
    here, there = samples(drawn)
    legacy = pytest.importorskip("keras.src.legacy.saving.legacy_h5_format")
    import h5py

    with h5py.File(file, "w") as f:
        legacy.save_weights_to_hdf5_group(f, model)
    net.load(file)
    expected = np.asarray(model(there).detach())
    scale = max(1.0, float(abs(expected).max()))
    np.testing.assert_allclose(net.forward(False, here) / scale, expected / scale, atol=1e-5)
    before = [param.value.copy() for param in net.params()]
    net.save(tmp_path / "back.h5", format="keras-legacy")
    for param in net.params():
        param.value[...] = 0
    net.load(tmp_path / "back.h5")
    assert all(map(np.array_equal, before, net.param_values()))


def whole_model(tmp_path: Any, data: Any) -> None:
    drawn = Drawn(data.draw, whole=True)
    row = drawn.row(3)
    model = keras.Model([p.there for p in drawn.inputs], [row.there, drawn.dense(row, 2).there])
    randomise(model)
    model.save(tmp_path / "m.keras")
    here, there = samples(drawn)
    expected = [np.asarray(made.detach()) for made in model(there)]
    found = load_model(tmp_path / "m.keras").forward(False, here)
    for ours_made, theirs in zip(found.values(), expected, strict=True):
        scale = max(1.0, float(abs(theirs).max()))
        np.testing.assert_allclose(ours_made / scale, theirs / scale, atol=1e-5)


@pytest.mark.parametrize("there_and_back", [weights_there_and_back, whole_model])
@some(4)
@given(st.data())
def test_random_nets(tmp_path: Any, there_and_back: Any, data: Any) -> None:
    there_and_back(tmp_path, data)


@pytest.mark.slow
@pytest.mark.parametrize("there_and_back", [weights_there_and_back, whole_model])
@some(150)
@given(st.data())
def test_many_random_nets(tmp_path: Any, there_and_back: Any, data: Any) -> None:
    there_and_back(tmp_path, data)


# Nets that no order of parameters makes those of Keras with channels last.
NO_ORDER = {
    "joined": lambda image, row, flat: ours.Dense("out", 2)(ours.Add("join")(flat, row)),
    "grouped": lambda image, row, flat: ours.GroupNorm("join", 4)(flat),
    "reshaped": lambda image, row, flat: ours.Conv2D("join", 2, 1)(
        ours.Reshape("r", (4, 2, 3))(row)),
    "columns": lambda image, row, flat: ours.Flatten("flat2")(ours.Dense("join", 3)(image)),
    "normed": lambda image, row, flat: ours.BatchNormalization("join", axis=-1)(image),
    "sequence": lambda image, row, flat: ours.LSTM("join", 2)(ours.Reshape("r", (6, 4))(flat)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*NO_ORDER, "shared"])
def test_what_no_order_makes_equal_is_refused_by_name(tmp_path: Any, kind: str) -> None:
    image, row = ours.Input("image", SHAPE), ours.Input("row", (24,))
    flat, shared = ours.Flatten("flat")(image), ours.Dense("join", 3)
    if kind == "shared":
        out = ours.Add("sum")(shared(flat), shared(row))
    else:
        out = NO_ORDER[kind](image, row, flat)
    inputs = {"joined": [image, row], "shared": [image, row], "reshaped": [row]}
    net = FeedForwardNet(inputs=inputs.get(kind, [image]), outputs=[out], seed=0)
    file = tmp_path / "m.weights.h5"
    with pytest.raises(ArgumentError, match=r"layer 'join.*', in Keras: .* same order"):
        net.save(file)
    assert not file.exists()
    net.save(file, data_format="channels_first")
    assert net.load(file, data_format="channels_first").complete
    with pytest.raises(ArgumentError, match="layer 'join"):
        net.load(file)
    net.save(tmp_path / "m.npz")


def test_units_that_meet_a_flattened_image_stand_as_its_rows(tmp_path: Any) -> None:
    """The columns of a kernel and the bias, by an independent permutation."""
    image, row = ours.Input("image", SHAPE), ours.Input("row", (5,))
    out = ours.Add("sum")(ours.Flatten("flat")(image), ours.Dense("d", 24)(row))
    net = FeedForwardNet(inputs=[image, row], outputs=[out], seed=0)
    net.params()[1].value[...] = np.arange(24)
    net.save(tmp_path / "m.weights.h5")
    order = np.moveaxis(np.arange(24).reshape(SHAPE), 0, -1).reshape(-1)
    with open_state(tmp_path / "m.weights.h5") as reader:
        np.testing.assert_array_equal(reader.read("layers/dense/vars/1"), order)
        kernel = reader.read("layers/dense/vars/0")
    np.testing.assert_array_equal(kernel, net.params()[0].value[:, order])


def test_signals_are_channels_first_where_a_layer_along_one_axis_reads_them(tmp_path: Any) -> None:
    here = [
        ours.Activation("r", input_sample_shape=(3, 8)),
        ours.MaxPooling1D("p", 2, 2), ours.Flatten("f"), ours.LayerNorm("n", epsilon=1e-3),
        ours.Dense("d", 2),
    ]  # fmt: skip
    model = keras.Sequential(
        [keras.Input((8, 3)), kl.ReLU(), kl.MaxPooling1D(2), kl.Flatten(),
         kl.LayerNormalization(), kl.Dense(2)]
    )  # fmt: skip
    randomise(model)
    net = FeedForwardNet(here, seed=0)
    model.save_weights(tmp_path / "m.weights.h5")
    net.load(tmp_path / "m.weights.h5")
    x = np.random.default_rng(1).uniform(-1, 1, (2, 3, 8)).astype("f4")
    expected = np.asarray(model(np.moveaxis(x, 1, -1)).detach())
    np.testing.assert_allclose(net.forward(False, x), expected, rtol=1e-4, atol=1e-5)
