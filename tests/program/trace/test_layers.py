"""Layers of users' classes in recorded programs: recorded where that is right, else run."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import singanet
from singanet.layers import (
    Activation,
    AvgPooling2D,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GlobalAvgPooling2D,
    GroupNorm,
    Layer,
    LayerNorm,
    Softmax,
    Split,
    TimeDistributed,
    Traits,
)
from singanet.loss import SquaredError
from singanet.optimizer import Adam
from singanet.types import RowSparse
from tests.program.twins import Twins


class Doubles(Layer):
    """y = 2 x, in a class that does not say that it is pure."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return 2.0 * x

    def backward(self, ctx, dy):
        return 2.0 * dy, {}


class PureDoubles(Doubles):
    pure = True


class Counts(Doubles):
    """Another factor at each call."""

    calls = 0

    def forward(self, ctx, x):
        self.calls += 1
        self.factor = np.float32(self.calls)
        return x * self.factor

    def backward(self, ctx, dy):
        return dy * self.factor, {}


class DrawsByItself(Doubles):
    """Noise of its own, not from the net's generator."""

    def __init__(self, name):
        super().__init__(name)
        self.source = np.random.RandomState(5)

    def forward(self, ctx, x):
        ctx.save(mask=self.source.random_sample(x.shape) < 0.5)
        return x * ctx.saved["mask"] if ctx.keep else x

    def backward(self, ctx, dy):
        return (dy * ctx.saved["mask"]).astype(dy.dtype), {}


class DrawsFromAll(Doubles):
    """Noise from the generator that NumPy has for all."""

    def forward(self, ctx, x):
        return x + np.random.standard_normal(x.shape).astype(x.dtype)


class DrawsFromTheNet(Doubles):
    """Noise by a method of the generator that kernels do not have."""

    pure = True

    def forward(self, ctx, x):
        return x + ctx.rng.standard_normal(x.shape).astype(x.dtype)


class Branches(Doubles):
    """Python that looks at values."""

    def forward(self, ctx, x):
        ctx.save(up=bool(x.sum() > 0))
        return x * 3.0 if x.sum() > 0 else -x

    def backward(self, ctx, dy):
        return dy * 3.0 if ctx.saved["up"] else -dy, {}


class LiesAndBranches(Branches):
    pure = True


class LiesInBackward(Doubles):
    pure = True

    def backward(self, ctx, dy):
        return 2.0 * dy if float(dy.max()) > 0.5 else 0.5 * dy, {}


class LeavesTheKernels(Doubles):
    """What it makes by itself, no recording sees being made."""

    pure = True

    def forward(self, ctx, x):
        return x + np.asarray(x).mean(axis=0)


class FillsItsOwn(Doubles):
    """An array of NumPy's, filled from the input, without the kernels."""

    pure = True

    def forward(self, ctx, x):
        y = np.empty(x.shape, x.dtype)
        np.multiply(x, 2.0, out=y)
        return y


class AssignsItsOwn(Doubles):
    pure = True

    def forward(self, ctx, x):
        y = np.empty(x.shape, x.dtype)
        y[...] = x
        return 2.0 * y


class GivesItsOwn(Doubles):
    """Nothing that is recorded reads what it returns, but the next layer."""

    pure = True

    def forward(self, ctx, x):
        return np.asarray(x) * np.float32(2.0)

    def backward(self, ctx, dy):
        return np.asarray(dy) * np.float32(2.0), {}


class Table(Layer):
    """w x element by element, with a constant and a state beside."""

    pure = True

    def setup(self, in_shapes):
        self.add_param("weight", in_shapes)
        self.table = np.linspace(0.5, 1.5, in_shapes[0], dtype=np.float32)
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * ctx.params["weight"] + self.table

    def backward(self, ctx, dy):
        grads = {"weight": (dy * ctx.saved["x"]).sum(axis=0)}
        return dy * ctx.params["weight"] if ctx.needs_input_grad else None, grads


class ImpureTable(Table):
    pure = False


class Rows(Layer):
    """A table whose gradient is row-sparse, not pure."""

    traits = Traits(input_kinds=("integers",))

    def setup(self, in_shapes):
        self.add_param("table", (9, 3))
        return (*in_shapes, 3)

    def forward(self, ctx, x):
        ctx.save(x=x)
        return ctx.params["table"][x]

    def backward(self, ctx, dy):
        indices = np.unique(ctx.saved["x"])
        rows = np.stack([dy[ctx.saved["x"] == k].sum(axis=0) for k in indices])
        return None, {"table": RowSparse(indices, rows.astype(dy.dtype))}


class Halves(Layer):
    """Two outputs, not pure."""

    def setup(self, in_shapes):
        return [(in_shapes[0] // 2,)] * 2

    def forward(self, ctx, x):
        half = x.shape[1] // 2
        return [x[:, :half].copy(), x[:, half:].copy()]

    def backward(self, ctx, dy):
        return np.concatenate(list(dy), axis=1), {}


class Mixes(Layer):
    """Two inputs, pure."""

    pure = True

    def setup(self, in_shapes):
        return in_shapes[0]

    def forward(self, ctx, xs):
        ctx.save(a=xs[0], b=xs[1])
        return xs[0] * xs[1]

    def backward(self, ctx, dy):
        return (dy * ctx.saved["b"], dy * ctx.saved["a"]), {}


def net_with(layer):
    def make():
        net = singanet.FeedForwardNet(SquaredError(), seed=4)
        net.add(Dense("in", 6, input_sample_shape=(5,)))
        net.add(layer("mine"))
        net.add(Activation("tanh", "tanh"))
        net.add(Dense("out", 2))
        return net

    return make


def trained(make, rng, rounds=6):
    twins = Twins(make, lambda: Adam(lr=lambda step: 0.05 / (1 + step)))
    for _ in range(rounds):
        x = rng.standard_normal((4, 5)).astype(np.float32)
        twins.step(x, rng.standard_normal((4, 2)).astype(np.float32))
        twins.forward(True, x)
        twins.walk(rng.standard_normal((4, 2)).astype(np.float32))
        twins.forward(False, x)
    return twins


@pytest.mark.parametrize("layer", [PureDoubles, Table])
def test_a_class_that_says_that_it_is_pure_is_recorded(layer, rng):
    assert trained(net_with(layer), rng).expect_recorded() == []


@pytest.mark.parametrize("layer", [Doubles, Counts, DrawsByItself, Branches, ImpureTable])
def test_other_classes_are_python_steps_and_said_to_be(layer, rng):
    notes = trained(net_with(layer), rng).expect_recorded(loops=False)
    assert notes
    assert all("layer 'mine'" in note and "does not say that it is pure" in note for note in notes)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (LiesAndBranches, "__bool__, which looks at values"),
        (LiesInBackward, "__float__, which looks at values"),
        (DrawsFromTheNet, "a draw by the layer itself, rng.standard_normal"),
    ],
)
def test_one_that_looks_at_values_though_it_says_so_falls_back(layer, why, rng):
    notes = trained(net_with(layer), rng).expect_recorded(loops=False)
    assert notes
    assert all("layer 'mine'" in note and why in note for note in notes)


@pytest.mark.parametrize("layer", [LeavesTheKernels, FillsItsOwn, AssignsItsOwn, GivesItsOwn])
def test_arrays_made_beside_the_kernels_are_no_constants(layer, rng):
    notes = trained(net_with(layer), rng).expect_recorded(loops=False)
    assert notes
    assert all("layer 'mine'" in note for note in notes)


def test_a_layer_whose_rows_are_others_each_time(rng):
    def make():
        net = singanet.FeedForwardNet(SquaredError(), seed=4)
        net.add(Rows("rows", input_sample_shape=(4,)))
        net.add(singanet.layers.Flatten("flat"))
        net.add(Dense("out", 2))
        return net

    twins = Twins(make, lambda: Adam(lr=0.01))
    for _ in range(6):
        x = rng.integers(0, 9, (3, 4))
        twins.step(x, rng.standard_normal((3, 2)).astype(np.float32))
        twins.forward(True, x)
        items = twins.walk(rng.standard_normal((3, 2)).astype(np.float32))
        assert isinstance(items[-1].grads[0], RowSparse)
    twins.expect_recorded(loops=False)


@pytest.mark.parametrize("several", [Halves, lambda name: Split(name, 2)])
def test_layers_of_several_inputs_and_outputs(several, rng):
    def make():
        x = singanet.Input("x", (5,))
        a, b = several("halves")(Dense("in", 6)(x))
        y = Mixes("mixes")([Activation("tanh", "tanh")(a), b])
        out = Dense("out", 2)(y)
        return singanet.FeedForwardNet(SquaredError(), inputs=x, outputs=out, seed=4)

    trained(make, rng)


@pytest.mark.parametrize("layer", [Counts, DrawsFromAll])
def test_a_layer_inside_one_of_singanets_is_seen(layer, rng):
    def make():
        net = singanet.FeedForwardNet(SquaredError(), seed=4)
        net.add(TimeDistributed("each", layer("mine"), input_sample_shape=(3, 5)))
        net.add(Flatten("flat"))
        net.add(Dense("out", 2))
        return net

    np.random.seed(3)
    twins = Twins(make)
    for _ in range(5):
        x = rng.standard_normal((4, 3, 5)).astype(np.float32)
        state = np.random.get_state()
        twins.nets[0].forward(False, x)
        seen = np.random.get_state()
        np.random.set_state(state)
        twins.nets[1].forward(False, x)
        np.testing.assert_array_equal(np.random.get_state()[1], seen[1])
    assert any("does not say that it is pure" in note for note in twins.expect_recorded())


def test_python_runs_once_a_call(rng):
    net = net_with(Counts)()
    counts = next(layer for layer in net.layers if layer.name == "mine")
    for number in range(1, 7):
        net.forward(False, rng.standard_normal((4, 5)).astype(np.float32))
        assert counts.calls == number


class CannotBeCopied(Doubles):
    def __init__(self, name):
        super().__init__(name)
        self.lock = threading.Lock()


def test_a_layer_that_cannot_be_copied_keeps_the_net_from_recording(rng):
    twins = Twins(net_with(CannotBeCopied))
    for _ in range(4):
        twins.forward(False, rng.standard_normal((4, 5)).astype(np.float32))
    assert twins.recorded.programs.reports() == []
    assert "cannot be copied" in twins.recorded.programs.refusals[0]


class Stumbles(Doubles):
    """It takes arrays of NumPy's own class only."""

    pure = True

    def forward(self, ctx, x):
        if type(x) is not np.ndarray:
            raise TypeError("another class")
        return 2.0 * x


def test_an_error_that_only_recording_makes_is_no_error(rng):
    assert "another class" in trained(net_with(Stumbles), rng).expect_recorded(loops=False)[0]


class BreaksLater(Doubles):
    broken = False

    def forward(self, ctx, x):
        if BreaksLater.broken:
            raise RuntimeError("broken")
        return 2.0 * x


def test_an_error_of_a_users_is_raised_and_the_next_step_works(rng, monkeypatch):
    twins = trained(net_with(BreaksLater), rng)
    x, y = rng.standard_normal((4, 5)), rng.standard_normal((4, 2))
    with monkeypatch.context() as patch:
        patch.setattr(BreaksLater, "broken", True)
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            with pytest.raises(RuntimeError, match="broken"):
                net.step(x, y, optimizer)
    twins.step(x, y)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: LayerNorm("n"),
        lambda: BatchNormalization("n"),
        lambda: GroupNorm("n", 2),
        lambda: AvgPooling2D("n", 2),
        lambda: GlobalAvgPooling2D("n"),
        lambda: Softmax("n"),
        lambda: Conv2D("n", 4, 3),
    ],
)
def test_layers_of_float16_are_recorded_as_they_run(layer, rng):
    """NumPy's mean of float16 ends in the type's constructor, which recordings did not see: NaN."""

    def made():
        net = singanet.FeedForwardNet(seed=0)
        net.add(Conv2D("c", 4, 3, input_sample_shape=(2, 8, 8)))
        net.add(layer())
        net.add(Flatten("f"))
        net.as_type("float16")
        return net

    twins = Twins(made)
    for _ in range(4):
        twins.forward(False, rng.standard_normal((3, 2, 8, 8)).astype(np.float16))
    twins.expect_recorded()
