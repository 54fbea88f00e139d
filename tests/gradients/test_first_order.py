"""Gradients of anything by anything: against differences, PyTorch, and by the layers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet, Input, layers, models
from singanet.device import Device
from singanet.engine.backward import ones
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    ShapeError,
    UnknownNameError,
)
from singanet.layers import Activation, Add, BatchNormalization, Dense, Split, StopGradient
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops import ops_for
from singanet.testing.device_like import DeviceArray, device_like
from singanet.types import RowSparse
from tests.models.test_registry import FORMS

RNG = np.random.default_rng


class Cube(layers.Layer):
    """A user's layer, which no program records."""

    calls = 0

    def setup(self, in_shapes):
        self.add_param("gain", in_shapes)
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x**3 + ctx.params["gain"]

    def backward(self, ctx, dy):
        Cube.calls += 1
        # The same array for both, which the library has to copy.
        return 3 * ctx.saved["x"] ** 2 * dy, {"gain": dy.sum(axis=0)}


def chain(**given):
    return FeedForwardNet(
        [
            Dense("a", 5, input_sample_shape=(4,)), Activation("relu", "relu"),
            BatchNormalization("bn"), layers.Dropout("drop", 0.4), Dense("b", 3),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=1,
        **given,
    )  # fmt: skip


X, Y = RNG(0).standard_normal((6, 4)).astype(np.float32), np.arange(6) % 3
FEED = {"input": X, "targets": Y}


def same(one, two):
    assert one.keys() == two.keys()
    for name, array in one.items():
        parts = (array, two[name]) if isinstance(array, list) else ([array], [two[name]])
        for a, b in zip(*parts, strict=True):
            assert a.dtype == b.dtype, name
            assert a.tobytes() == b.tobytes(), name


# -- against differences --------------------------------------------------------------------

READY = ["mlp", "lenet", "alexnet", "resnet20", "lstm", "char_rnn", "transformer", "wide_deep",
         "deepfm", "autoencoder"]  # fmt: skip


CASES = [
    *(pytest.param(name, (), {}, 1e-6) for name in READY),
    *(
        pytest.param(name, (shape, 3), options, 1e-5, marks=marks)
        for name, (shape, options, marks) in FORMS.items()
    ),
]


@pytest.mark.parametrize(("name", "given", "options", "near"), CASES)
def test_ready_nets_agree_with_differences(name, given, options, near):
    net = models.build(name, *given, seed=3, **options)
    net.as_type(np.float64)
    rng = RNG(1)
    feed = ones(net._execution_plan(), 2, net.device, 5)
    inputs = [key for key, array in feed.items() if array.dtype.kind == "f" and array.ndim > 1]
    for key in inputs:
        feed[key] = rng.standard_normal(feed[key].shape)
    params = {p.name: p for p in net.params() if not p.is_state}
    for p in params.values():
        # Factors of zero put what is behind them on the kink of a relu.
        p.value += 0.1 * rng.standard_normal(p.shape) * (p.value.ndim == 1)
    # What is fed to a layer that is no `Input` has a name of its own.
    fed = {k if net.layers[0].__class__ is layers.Dummy else f"{k}/input": k for k in inputs}
    along = {name: rng.standard_normal(feed[key].shape) for name, key in fed.items()}
    along |= {key: rng.standard_normal(p.shape) for key, p in params.items()}
    # Of length one, so that few units come over their kinks.
    length = np.sqrt(sum((v**2).sum() for v in along.values()))
    along = {key: v / length for key, v in along.items()}
    y = net._execution_plan().outputs[0]
    dy = rng.standard_normal(net.forward(False, feed, [y])[y].shape)
    found = net.gradients(y, list(along), feed, dy)
    starts = {key: p.value.copy() for key, p in params.items()}

    def value(step):
        for key, p in params.items():
            p.value[...] = starts[key] + step * along[key]
        moved = {**feed, **{k: feed[k] + step * along[name] for name, k in fed.items()}}
        return float((net.forward(False, moved, [y])[y] * dy).sum())

    slope = sum(float((found[key] * along[key]).sum()) for key in along)
    numerical = (value(1e-6) - value(-1e-6)) / 2e-6
    assert slope == pytest.approx(numerical, rel=near, abs=1e-6)


def test_the_gradient_of_an_inner_layer_leaves_the_upper_layers_out():
    net = FeedForwardNet([Dense("a", 5, input_sample_shape=(4,)), Cube("top")], seed=1)
    Cube.calls = 0
    found = net.gradients("a", ["input"], X, RNG(1).standard_normal((6, 5)))
    weight = net.param_values()[0]
    np.testing.assert_allclose(
        found["input"], RNG(1).standard_normal((6, 5)) @ weight.T, rtol=1e-5, atol=1e-6
    )
    assert Cube.calls == 0


def test_what_lies_below_no_x_keeps_nothing_and_is_not_run_back(monkeypatch):
    saved, backs = [], []
    forward, backward = Dense.forward, Dense.backward

    def told_forward(layer, ctx, x):
        saved.append((layer.name, ctx.keep))
        return forward(layer, ctx, x)

    def told_backward(layer, ctx, dy):
        backs.append((layer.name, ctx.needs_input_grad, ctx._needs_param_grads))
        return backward(layer, ctx, dy)

    monkeypatch.setattr(Dense, "forward", told_forward)
    monkeypatch.setattr(Dense, "backward", told_backward)
    names = ["one", "two", "three", "four"]
    net = FeedForwardNet([Dense(n, 4, input_sample_shape=(4,)) for n in names], seed=0)
    net.programs.enabled = False
    net.gradients("three", ["two", "three/weight"], X)
    assert saved == [("one", False), ("two", False), ("three", True)]
    assert backs == [("three", True, True)]
    backs.clear()
    net.gradients("four", ["input"], X)
    assert backs == [(name, True, False) for name in reversed(names)]


def test_a_users_subclass_finds_the_gradients_that_its_base_makes():
    """Nobody asks for them, but the layer that it overrides gave them whenever it ran."""
    norms = []

    class Watched(Dense):
        def backward(self, ctx, dy):
            dx, grads = super().backward(ctx, dy)
            norms.append(float(np.linalg.norm(np.asarray(grads["weight"]))))
            return dx, grads

    net = FeedForwardNet([Watched("a", 3, input_sample_shape=(4,)), Dense("b", 2)], seed=0)
    for _ in range(3):
        net.gradients("b", ["input"], X)
    assert len(norms) >= 3  # once more where it is recorded
    assert len(set(norms)) == 1
    assert norms[0] > 0


# -- random graphs --------------------------------------------------------------------------

OPS = ("dense", "tanh", "relu", "norm", "add", "multiply", "stop", "cube", "shared", "split")


@st.composite
def graphs(draw):
    nodes = []
    for k in range(draw(st.integers(2, 8))):
        op = draw(st.sampled_from(OPS))
        back = st.integers(0, k)
        nodes.append((op, draw(back), draw(back)))
    names = [f"n{k}" for k in range(len(nodes))]
    ys = draw(st.lists(st.sampled_from([*names, "loss"]), min_size=1, max_size=3))
    xs = draw(st.lists(st.sampled_from(["image", *names, "params"]), min_size=1, max_size=4))
    return nodes, ys, xs, draw(st.booleans())


def built(nodes):
    shared = Dense("shared", 4)
    values = [Input("image", (4,))]
    for k, (op, i, j) in enumerate(nodes):
        one, two, name = values[i], values[j], f"n{k}"
        make = {
            "dense": lambda n=name, x=one: Dense(n, 4)(x),
            "tanh": lambda n=name, x=one: Activation(n, "tanh")(x),
            "relu": lambda n=name, x=one: Activation(n, "relu")(x),
            "norm": lambda n=name, x=one: BatchNormalization(n)(x),
            "add": lambda n=name, x=one, y=two: Add(n)(x, y),
            "multiply": lambda n=name, x=one, y=two: layers.Multiply(n)(x, y),
            "stop": lambda n=name, x=one: StopGradient(n)(x),
            "cube": lambda n=name, x=one: Cube(n)(x),
            "shared": lambda n=name, x=one: Activation(n, "tanh")(shared(x)),
            "split": lambda n=name, x=one: Add(n)(*Split(n + "s", 2)(x)),
        }[op]
        values.append(make())
    net = FeedForwardNet(inputs=values[0], outputs=values[-1], loss=SquaredError(), seed=4)
    for param in net.params():
        if not param.is_state:
            param.value[...] = RNG(len(param.name)).standard_normal(param.shape) * 0.4
    return net


def by_torch(net, nodes, ys, xs, feed, dys):
    torch = pytest.importorskip("torch")
    tensors = {p.name: torch.tensor(p.value, requires_grad=not p.is_state) for p in net.params()}
    values = {"image": torch.tensor(feed["image"], requires_grad=True)}
    listed = ["image", *(f"n{k}" for k in range(len(nodes)))]

    def dense(name, x):
        return x @ tensors[f"{name}/weight"] + tensors[f"{name}/bias"]

    def norm(name, x):
        p = {s: tensors[f"{name}/{s}"] for s in ("gamma", "beta", "mean", "var")}
        layer = next(layer for layer in net.layers if layer.name == name)
        return p["gamma"] * (x - p["mean"]) / torch.sqrt(p["var"] + layer.epsilon) + p["beta"]

    made = {
        "dense": lambda name, x, z: dense(name, x),
        "tanh": lambda name, x, z: torch.tanh(x),
        "relu": lambda name, x, z: torch.relu(x),
        "norm": lambda name, x, z: norm(name, x),
        "add": lambda name, x, z: x + z,
        "multiply": lambda name, x, z: x * z,
        "stop": lambda name, x, z: x.detach(),
        "cube": lambda name, x, z: x**3 + tensors[f"{name}/gain"],
        "shared": lambda name, x, z: torch.tanh(dense("shared", x)),
        "split": lambda name, x, z: x + x,
    }
    for k, (op, i, j) in enumerate(nodes):
        name, x, z = f"n{k}", values.get(listed[i]), values.get(listed[j])
        if name not in net._execution_plan().by_name:
            continue
        y = made[op](name, x, z)
        values[name] = y if y.requires_grad else y.requires_grad_()
    total = 0.0
    for y, dy in zip(ys, dys, strict=True):
        if y == "loss":
            last = values[f"n{len(nodes) - 1}"]
            total = total + float(dy) * ((last - torch.tensor(feed["targets"])) ** 2).sum() / (
                2 * last.numel()
            )
        else:
            total = total + (values[y] * torch.tensor(dy)).sum()
    wanted = [tensors[x] if x in tensors else values[x] for x in xs]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return {
        x: np.zeros(t.shape) if g is None else g.numpy()
        for x, t, g in zip(xs, wanted, found, strict=True)
    }


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_are_as_by_layers_and_as_by_torch(drawn):
    nodes, ys, xs, train = drawn
    twins = [built(nodes) for _ in range(2)]
    twins[1].programs.enabled = False
    here = set(twins[0]._execution_plan().by_name)
    ys = [y for y in ys if y in here or y == "loss"] or ["loss"]
    params = [p.name for p in twins[0].params() if not p.is_state]
    xs = [x for x in xs if x in here]
    xs = list(dict.fromkeys([*xs, *(params if "params" in drawn[2] else [])])) or ["image"]
    for net in twins:
        net.as_type(np.float64)
    rng = RNG(7)
    for call in range(3):
        x = rng.standard_normal((3, 4))
        feed = {"image": x, "targets": rng.standard_normal((3, 4))}
        dys = [rng.standard_normal(() if y == "loss" else (3, 4)) for y in ys]
        beside = feed if "loss" in ys else {"image": x}
        one, two = (net.gradients(ys, xs, beside, dys, train, "zeros") for net in twins)
        same(one, two)
        assert twins[0].rng.bit_generator.state == twins[1].rng.bit_generator.state
        owners = list(one.values())
        assert not any(np.shares_memory(a, b) for k, a in enumerate(owners) for b in owners[:k])
        if call == 2 and not train:
            expected = by_torch(twins[0], nodes, ys, xs, feed, dys)
            for name, array in one.items():
                np.testing.assert_allclose(
                    array,
                    expected[name],
                    rtol=1e-9,
                    atol=1e-9 * np.abs(expected[name]).max() + 1e-12,
                )


# -- recorded -------------------------------------------------------------------------------


def convolutions(**given):
    parts = [
        layers.Conv2D("c1", 8, 3, input_sample_shape=(3, 9, 9), pad=1), BatchNormalization("bn"),
        Activation("r", "relu"), layers.Conv2D("c2", 4, 3), layers.Flatten("f"),
    ]  # fmt: skip
    return FeedForwardNet(parts, seed=0, **given)


ASKED = {
    # A net, the ys, the xs and the factors of the gradients of ys.
    "inner outputs": (chain, ["b", "loss"], ["input", "relu", "a/weight", "b/bias", ("b", 0)],
                      {"b": None, "loss": 2.0}),
    "the loss": (chain, ["loss"], ["input", "a/weight"], None),
    "the loss, weighted": (chain, ["loss"], ["input", "a/weight"], None),
    "convolutions": (convolutions, ["f"], ["input", "bn", "r", "c1/weight"], None),
}  # fmt: skip


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_the_second_call_is_recorded_and_later_ones_replayed(name, train):
    """By the layers, recorded and on a device; evaluation leaves the net as it was."""
    make, ys, xs, dys = ASKED[name]
    net, other, there = make(), make(), make()
    other.programs.enabled = False
    there.to_device(Device("like", ops_for(device_like.zeros(1))))
    before, draws = [v.copy() for v in net.param_values()], net.rng.bit_generator.state
    for call in range(4):
        rng = RNG(call)
        feed = {"input": rng.standard_normal((6, *net.layers[0].in_shapes)).astype(np.float32)}
        if "loss" in ys:
            feed["targets"] = np.roll(Y, call)
        if "weighted" in name:
            feed["sample_weight"] = rng.random(6).astype(np.float32)
        found, expected, far = (
            each.gradients(ys, xs, feed, dys, train) for each in (net, other, there)
        )
        same(found, expected)
        assert len(net.programs.reports()) == (call > 0)
        assert all(isinstance(array, DeviceArray) for array in far.values())
        for key, array in expected.items():
            near = 1e-6 * max(1.0, np.abs(array).max())
            np.testing.assert_allclose(far[key].get(), array, rtol=1e-5, atol=near)
    assert not other.programs.reports()
    assert train or len(there.programs.reports()) == 1
    for mine, theirs, was in zip(net.param_values(), other.param_values(), before, strict=True):
        assert mine.tobytes() == theirs.tobytes()
        assert train or np.array_equal(mine, was)
    assert (net.rng.bit_generator.state == draws) == (not train or make is convolutions)


def test_a_walk_back_gives_the_same_gradients():
    net, rng = convolutions(), RNG(0)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 9, 9), (2, 324)))
    net.forward(True, x, ["bn"])
    items = list(net.backward(dy, ["bn"]))
    found = net.gradients("f", ["bn", "c1/weight"], x, dy, True)
    np.testing.assert_array_equal(items[-1].output_grads["bn"], found["bn"])
    np.testing.assert_array_equal(items[-1].grads[0], found["c1/weight"])


def test_a_program_holds_no_gradient_of_a_parameter_that_nobody_asked_for():
    net = FeedForwardNet([Dense("wide", 512, input_sample_shape=(512,)), Dense("out", 512)], seed=0)
    x = np.ones((2, 512), np.float32)
    for _ in range(2):
        net.gradients("out", "input", x)
    (report,) = net.programs.reports()
    assert report.layout.nbytes < 512 * 512


def test_changes_of_the_net_are_seen():
    net = chain()
    for _ in range(3):
        net.gradients("loss", "input", FEED)
    net.params()[0].value[...] *= 2
    again = net.gradients("loss", "input", FEED)
    net.programs.enabled = False
    same(again, net.gradients("loss", "input", FEED))
    net.programs.enabled = True
    net.loss = SquaredError()
    one_hot = {"input": X, "targets": np.eye(3, dtype=np.float32)[Y]}
    found = [net.gradients("loss", "input", one_hot) for _ in range(3)]
    same(found[0], found[2])


def test_a_waiting_pass_is_not_disturbed():
    net, other = chain(), chain()
    for _ in range(3):
        for one in (net, other):
            out = one.forward(True, X)
            if one is net:
                net.gradients("loss", "input", FEED)
            items = [list(item.grads) for item in one.backward(out)]
            if one is net:
                mine = items
        for a, b in zip(mine, items, strict=True):
            assert [g.tobytes() for g in a] == [g.tobytes() for g in b]


def test_a_users_loss_runs_in_python():
    class Own:
        link = "none"

        def forward(self, flag, x, y):
            assert type(x) is np.ndarray
            self.d = x - y
            return (self.d**2).sum(axis=1)

        def backward(self):
            return 2 * self.d / len(self.d)

    net = FeedForwardNet([Dense("a", 2, input_sample_shape=(4,))], seed=0)
    net.loss = Own()
    y = np.zeros((6, 2), np.float32)
    for call in range(3):
        x = RNG(call).standard_normal((6, 4)).astype(np.float32)
        found = net.gradients("loss", "a", {"input": x, "targets": y})["a"]
        np.testing.assert_allclose(found, 2 * net.forward(False, x) / 6, rtol=1e-5)


# -- what may be asked ----------------------------------------------------------------------


def test_dropout_in_training_has_the_draw_of_its_forward():
    net = FeedForwardNet([layers.Dropout("drop", 0.5, input_sample_shape=(4,))], seed=0)
    x = np.ones((50, 4), np.float32)
    for _ in range(3):
        state = net.rng.bit_generator.state
        found = net.gradients("drop", "input", x, train=True)["input"]
        after = net.rng.bit_generator.state
        net.rng.bit_generator.state = state
        np.testing.assert_array_equal(found, net.forward(True, x))
        assert net.rng.bit_generator.state == after
    np.testing.assert_array_equal(net.gradients("drop", "input", x)["input"], x)


def test_frozen_and_untrained_parameters_that_are_named_get_gradients():
    net, free = chain(), chain()
    net.freeze("b")
    net.layers[0].trainable = False
    names = ["a/weight", "bn/gamma", "b/weight"]
    same(net.gradients("loss", names, FEED), free.gradients("loss", names, FEED))


def test_shared_parameters_are_summed_and_several_readers_too():
    dense, x = Dense("d", 4), Input("x", (4,))
    one = dense(x)
    net = FeedForwardNet(inputs=x, outputs=Add("sum")(dense(one), one, x, x), seed=0)
    net.as_type("float64")
    w, b = net.param_values()
    array = RNG(0).standard_normal((3, 4))
    h = array @ w + b
    dy = np.ones((3, 4))
    for _ in range(3):
        found = net.gradients("sum", ["x", "d/weight", "d/bias"], {"x": array})
        dh = dy @ w.T + dy
        np.testing.assert_allclose(found["x"], dh @ w.T + 2 * dy)
        np.testing.assert_allclose(found["d/weight"], h.T @ dy + array.T @ dh)
        np.testing.assert_allclose(found["d/bias"], (dy + dh).sum(axis=0))


def test_a_y_that_is_named_twice_counts_twice_and_one_x_once():
    net = chain()
    dy = RNG(1).standard_normal((6, 3)).astype(np.float32)
    twice = net.gradients(["b", "b"], ["input", "input"], X, [dy, dy])
    assert list(twice) == ["input"]
    np.testing.assert_array_equal(twice["input"], net.gradients("b", "input", X, 2 * dy)["input"])


def test_one_output_of_several():
    x = Input("x", (4,))
    parts = Split("s", 2)(x)
    net = FeedForwardNet(inputs=x, outputs=layers.Concat("c", 1)(*parts), seed=0)
    for _ in range(3):
        found = net.gradients("c", [("s", 1), "s", "x"], X, np.tile(np.arange(8.0), (6, 1)))
        np.testing.assert_array_equal(found["s", 1][0], np.arange(4.0, 8.0))
        np.testing.assert_array_equal(found["s"][0][0], np.arange(4.0))
        np.testing.assert_array_equal(found["x"][0], 4.0 + 2 * np.arange(4.0))
        assert not np.shares_memory(found["s", 1], found["s"][1])
    np.testing.assert_array_equal(net.gradients(("s", 0), "x", X)["x"], np.ones((6, 4)))
    with pytest.raises(ArgumentError, match="gradients of ys reach: 'x', 's'"):
        net.gradients(("s", 0), [("s", 1)], X)


def test_tables_of_rows_are_dense_arrays_and_row_sparse_in_a_stream():
    words = Input("words", (5,))
    net = FeedForwardNet(
        inputs=words, outputs=layers.LSTM("l", 3)(layers.Embedding("e", 11, 4)(words)), seed=0
    )
    feed = {"words": RNG(0).integers(0, 11, (2, 5))}
    for _ in range(3):
        found = net.gradients("l", ["e/weight", "e"], feed)
        assert found["e/weight"].shape == (11, 4)
        table = np.zeros((11, 4), np.float32)
        np.add.at(table, feed["words"], found["e"])
        np.testing.assert_allclose(found["e/weight"], table, rtol=1e-5, atol=1e-6)
        (item,) = net.iter_gradients("l", ["e/weight"], feed)
        assert isinstance(item.grads[0], RowSparse)
    with pytest.raises(DataError, match="'words' of xs: expected an array of floats"):
        net.gradients("l", "words", feed)
    with pytest.raises(DataError, match="'words' of ys"):
        net.gradients("words", "words", feed)


def test_streams_hand_out_layer_by_layer_and_let_parameters_change():
    net, other = chain(), chain()
    xs = ["b/weight", "a/weight", "input"]
    for _ in range(3):
        expected = other.gradients("loss", xs, FEED)
        parts = []
        for item in net.iter_gradients("loss", xs, FEED):
            parts.append(item.layer)
            for name, value, grad in zip(*item, strict=True):
                np.testing.assert_array_equal(grad, expected[name])
                value -= 0.1 * grad
            for name, grad in item.output_grads.items():
                np.testing.assert_array_equal(grad, expected[name])
        assert parts == ["b", "a", "a/input"]
        for param in other.params():
            if param.name in expected:
                param.value -= 0.1 * expected[param.name]
    assert len(net.programs.reports()) == 1


def test_streams_over_a_users_layer_do_not_mix():
    net = FeedForwardNet([Dense("a", 4, input_sample_shape=(4,)), Cube("c"), Dense("b", 4)], seed=0)
    other = np.full((6, 4), 2.0, np.float32)
    for _ in range(3):
        alone = net.gradients("b", ["a/weight"], X)["a/weight"]
        stream = net.iter_gradients("b", ["b/weight", "a/weight"], X)
        next(stream)
        net.gradients("b", ["b/weight", "a/weight"], other)
        list(net.iter_gradients("b", ["b/weight", "a/weight"], other))
        (item,) = stream
        np.testing.assert_array_equal(item.grads[0], alone)


def test_inputs_that_ys_do_not_need_may_be_left_out():
    a, b = Input("a", (4,)), Input("b", (4,))
    one = Dense("one", 3)(a)
    net = FeedForwardNet(inputs=[a, b], outputs=Add("sum")(one, Dense("two", 3)(b)), seed=0)
    found = net.gradients("one", ["a", "b"], {"a": X}, unreachable="zeros")
    assert not found["b"].any()
    assert found["b"].shape == (6, 4)
    same(found, net.gradients("one", ["a", "b"], {"a": X, "b": X}, unreachable="zeros"))
    with pytest.raises(UnknownNameError, match="keys without 'b'"):
        net.gradients("sum", "a", {"a": X})


def test_inputs_by_every_name():
    net = chain()
    found = net.gradients("b", ["input", "a/input"], {"a/input": X})
    np.testing.assert_array_equal(found["input"], found["a/input"])
    same(found, net.gradients("b", ["input", "a/input"], {"a": X}))
    same(found, net.gradients("b", ["input", "a/input"], X))


def test_a_stop_keeps_gradients_and_contexts_from_what_lies_below():
    x = Input("x", (4,))
    below = Dense("below", 4)(x)
    stopped = StopGradient("stop")(below)
    net = FeedForwardNet(
        inputs=x,
        outputs=layers.Multiply("y")(Dense("side", 4)(x), stopped),
        loss=SquaredError(),
        seed=0,
    )
    with pytest.raises(ArgumentError, match="'below' of xs.*'stop'"):
        net.gradients("y", "below", X)
    found = net.gradients("y", ["stop", "x"], X)
    weight = net.params()[net.param_names().index("side/weight")].value
    kept = net.forward(False, X, ["stop"])["stop"]
    np.testing.assert_allclose(found["x"], kept @ weight.T, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        net.forward(True, X)
        walk = net.backward(np.ones((6, 4), np.float32))
        assert [item.layer for item in walk] == ["y", "side"]
    contexts = net._execution_plan().forward({"x": X}, ["y"], net.device.ops, net.rng, True)[1]
    kept = {
        s.name: bool(c.saved) for s, c in zip(net._execution_plan().steps, contexts, strict=True)
    }
    assert kept["side"]
    assert not kept["below"]
    grads, _ = net.train(X, np.zeros((6, 4), np.float32))
    named = dict(zip(net.param_names(), grads, strict=True))
    assert named["below/weight"] is None
    assert named["side/weight"] is not None


# -- jacobian -------------------------------------------------------------------------------


def test_what_is_fed_to_a_stop_gets_no_gradient():
    net = FeedForwardNet([StopGradient("stop", input_sample_shape=(4,)), Dense("y", 3)], seed=0)
    with pytest.raises(ArgumentError, match="'stop/input' of xs: .*reach"):
        net.gradients("y", "stop/input", X)
    found = net.gradients("y", ["stop", "stop/input"], X, unreachable="zeros")
    assert not found["stop/input"].any()
    want = np.broadcast_to(net.params()[0].value.sum(axis=1), (6, 4))
    np.testing.assert_allclose(found["stop"], want, rtol=1e-5, atol=1e-6)


def test_the_jacobian_of_a_chain_is_the_product_of_its_matrices():
    net = FeedForwardNet(
        [Dense("a", 5, input_sample_shape=(4,)), Activation("t", "tanh"), Dense("b", 3)], seed=0
    )
    net.as_type("float64")
    x = RNG(0).standard_normal((2, 4))
    w1, b1, w2, _ = net.param_values()
    found = net.jacobian("b", ["input", "t"], x)["b"]
    assert found["input"].shape == (2, 3, 2, 4)
    for n in range(2):
        inner = np.diag(1 - np.tanh(x[n] @ w1 + b1) ** 2)
        np.testing.assert_allclose(found["input"][n, :, n], (w1 @ inner @ w2).T, rtol=1e-10)
        np.testing.assert_allclose(found["t"][n, :, n], w2.T)
        assert not found["input"][n, :, 1 - n].any()


def test_the_jacobian_of_the_loss_is_its_gradient():
    net = chain()
    np.testing.assert_array_equal(
        net.jacobian("loss", "input", FEED)["loss"]["input"],
        net.gradients("loss", "input", FEED)["input"],
    )


# -- what is refused ------------------------------------------------------------------------

REFUSED = [
    ({"ys": "c"}, UnknownNameError, "argument ys: expected names among 'a', .*'loss'"),
    ({"xs": "c"}, UnknownNameError, "argument xs: .*received 'c'"),
    ({"ys": []}, ArgumentError, "at least one name"),
    ({"xs": []}, ArgumentError, "at least one name"),
    ({"ys": "a", "xs": "b"}, ArgumentError, "'b' of xs: .*reach: 'a'; received a name that no"),
    ({"ys": "a", "xs": "b/weight"}, ArgumentError, "reach: 'a/weight', 'a/bias'"),
    ({"xs": "bn/mean"}, ArgumentError, "received running state"),
    ({"ys": ("a", 1)}, ArgumentError, "an index from 0 to 0; received 1"),
    ({"dys": np.ones((6, 4))}, ShapeError, r"dys of 'b': expected shape \(6, 3\).*\(6, 4\)"),
    ({"dys": {"a": None}}, UnknownNameError, "one for 'a'"),
    ({"dys": "ones"}, ArgumentError, "received str"),
    ({"ys": ["a", "b"], "dys": [None]}, ArgumentError, "a list of 2, one for each of ys"),
    ({"ys": "loss"}, ArgumentError, "and the key 'targets'; received no targets"),
    ({"ys": "loss", "feed": FEED, "dys": np.ones(6)}, ArgumentError, "dys of 'loss': expected"),
    ({"unreachable": "zero"}, UnknownNameError, "'error' or 'zeros'"),
    ({"feed": {"x": X}}, UnknownNameError, "argument feed: .*received 'x'"),
    ({"feed": X[:, :2]}, ShapeError, r"shape \(batch, 4\)"),
]  # fmt: skip


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("changed", "kind", "match"), REFUSED)
def test_bad_questions(changed, kind, match, recorded):
    net = chain()
    given = {"ys": "b", "xs": "input", "feed": X, **changed}
    if recorded:
        for _ in range(2):
            net.gradients("b", "input", X)
    with pytest.raises(kind, match=match):
        net.gradients(**given)
    # Nothing is left behind.
    same(net.gradients("b", "input", X), chain().gradients("b", "input", X))


def test_a_net_with_a_forward_of_its_own_is_refused():
    class Own(FeedForwardNet):
        def forward(self, flag, x, output=()):
            return super().forward(flag, 2 * x, output)

    net = Own([Dense("a", 2, input_sample_shape=(4,))], seed=0)
    with pytest.raises(CallOrderError, match="Own that overrides"):
        net.gradients("a", "input", X)
