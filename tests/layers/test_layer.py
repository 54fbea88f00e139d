"""What every layer has, nets drawn with symbols, and TimeDistributed."""

import inspect

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.errors import ArgumentError, DataError, GraphError, ShapeError, UnknownNameError
from singanet.layers import Concat, Dense, Dummy, Flatten, Input, Merge, Slice, TimeDistributed
from singanet.testing import LayerCase, check_net_gradients
from singanet.types import RowSparse
from tests.kit.layers import case, cases


@pytest.mark.parametrize("kinds", [
    (layers.Conv1D, layers.Conv2D, layers.Conv3D),
    (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
    (layers.DepthwiseConv1D, layers.DepthwiseConv2D),
    (layers.SeparableConv1D, layers.SeparableConv2D),
    (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D),
    (layers.AvgPooling1D, layers.AvgPooling2D, layers.AvgPooling3D),
], ids=lambda kinds: kinds[1].__name__)  # fmt: skip
def test_what_nobody_gives_is_the_same_along_however_many_axes(kinds):
    defaults = [
        {key: each.default for key, each in inspect.signature(kind).parameters.items()}
        for kind in kinds
    ]
    shared = set.intersection(*map(set, defaults))
    (size,) = {"kernel_size", "pool_size"} & shared
    assert {"strides", "padding"} <= shared
    for found in defaults:
        assert {key: found[key] for key in shared} == {key: defaults[0][key] for key in shared}
        assert found[size] == 3


# -- parameters from the beginning ----------------------------------------------------------------


def test_a_layer_that_knows_its_input_has_parameters_as_soon_as_it_is_made():
    layer = Dense("fc", 3, input_sample_shape=(4,))
    assert layer.param_names() == ["fc/weight", "fc/bias"]
    assert [spec.name for spec in layer.param_specs] == layer.param_names()
    for value in layer.param_values():
        value[...] = 2.0
    net = FeedForwardNet([layer, Dense("top", 2)], seed=0)
    rows = np.ones((1, 4), np.float32)
    assert net.forward(False, rows, ["fc"])["fc"].tolist() == [[10.0, 10.0, 10.0]]


def test_values_that_nobody_has_read_are_drawn_by_the_net():
    def made(shape, seed):
        net = FeedForwardNet(seed=seed)
        net.add(Dense("fc", 3, input_sample_shape=shape) if shape else Dense("fc", 3), src="x")
        net.add(Dummy("x", input_sample_shape=(4,)), src=[])
        return net.param_values()[0]

    np.testing.assert_array_equal(made((4,), 3), made(None, 3))
    assert (made((4,), 3) != made((4,), 4)).any()


def test_a_net_that_gives_another_shape_is_refused_by_name():
    net = FeedForwardNet([Dense("first", 5, input_sample_shape=(4,))], seed=0)
    layer = Dense("second", 2, input_sample_shape=(3,))
    with pytest.raises(ShapeError, match=r"layer 'second': expected input sample shape \(3,\)"):
        net.add(layer)
    assert list(layer.params) == ["weight", "bias"]
    assert "second" not in net
    layer(Input("a", (3,)))
    with pytest.raises(ShapeError, match=r"layer 'second'.*\(3,\).*\(4,\)"):
        layer(Input("b", (4,)))


def test_what_is_drawn_wrongly_is_refused():
    a, b = Input("a", (2,)), Input("b", (2,))
    assert Merge("m1")([a, b]).shape == Merge("m2")(a, b).shape == (2,)
    y, fc = Merge("m")(a, b), Dense("fc", 2)
    for draw, error, words in (
        (lambda: fc(np.zeros((2, 3))), ArgumentError, "layer 'fc': expected symbols.*ndarray"),
        (lambda: fc(), ArgumentError, "at least one symbol"),
        (lambda: FeedForwardNet(inputs=a, outputs=y), GraphError,
         r"inputs=\[a, b\].*inputs=\[a\]"),
        (lambda: FeedForwardNet(inputs=[a, b], outputs=Dense("fc", 1)(a)), GraphError,
         r"inputs=\[a\].*inputs=\[a, b\]"),
        (lambda: FeedForwardNet(inputs=a, outputs=Dense("fc", 2)(fc(a))), GraphError,
         "layer 'fc'"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            draw()


class Filled(layers.Layer):
    """A layer whose parameter begins by the name of an initializer."""

    def __init__(self, name, init):
        super().__init__(name)
        self.init = init

    def setup(self, in_shape):
        self.add_param("eye", (3, 3), default=self.init)
        return in_shape

    def forward(self, ctx, x):
        return x


def test_a_parameter_begins_by_the_name_of_an_initializer():
    net = FeedForwardNet([Filled("one", "eye")], seed=0)
    net.build((3,))
    np.testing.assert_array_equal(net["one"].params["eye"].value, np.eye(3))
    for wrong, words in (("ey", "did you mean 'eye'"), (np.eye(3), r"net\.set_params")):
        with pytest.raises((ArgumentError, UnknownNameError), match=words):
            FeedForwardNet([Filled("one", wrong)]).build((3,))


class Later(layers.Layer):
    """Its setup needs an attribute that the user assigns after construction."""

    def setup(self, in_shapes):
        self.add_param("factor", (self.size,))
        return in_shapes

    def forward(self, ctx, x):
        return x


def test_a_setup_that_cannot_run_yet_runs_where_the_layer_is_added():
    layer = Later("later", (4,))
    assert not layer.params
    layer.size = 3
    assert FeedForwardNet([layer], seed=0)["later"].params["factor"].shape == (3,)
    with pytest.raises(AttributeError, match="size"):
        FeedForwardNet([Later("again", (4,))])


@pytest.mark.parametrize("shape", [(2,), [(2,)]])
def test_the_shape_of_a_sum_is_known_before_its_inputs(shape):
    layer = Merge("both", input_sample_shape=shape)
    assert layer.get_output_sample_shape() == (2,)
    net = FeedForwardNet(seed=0)
    parts = [net.add(Dense(name, 2, input_sample_shape=(3,)), []) for name in "ab"]
    other = net.add(Dense("c", 4, input_sample_shape=(3,)), [])
    with pytest.raises(ShapeError, match=r"'both': expected at least two inputs.*, \(2,\)"):
        net.add(layer, [other, other])
    net.add(layer, parts)
    assert layer.get_output_sample_shape() == (2,)


def test_a_chain_of_calls_is_a_net():
    image = Input("image", (1, 4, 4))
    y = Dense("fc", 10)(Flatten("flat")(image))
    assert y.shape == (10,)
    net = FeedForwardNet(inputs=image, outputs=y, seed=0)
    assert [layer.name for layer in net.layers] == ["image", "flat", "fc"]
    x = np.random.default_rng(0).random((3, 1, 4, 4), np.float32)
    by_array = net.forward(False, x)
    np.testing.assert_array_equal(by_array, net.forward(False, {"image": x}))
    weight, bias = net.param_values()
    np.testing.assert_allclose(by_array, x.reshape(3, 16) @ weight + bias, rtol=1e-6)


def test_a_layer_with_several_outputs_returns_a_tuple():
    x = Input("x", (5,))
    head, tail = Slice("cut", 1, [2])(x)
    assert (head.shape, tail.shape) == ((2,), (3,))
    net = FeedForwardNet(inputs=x, outputs=Concat("swap", 1)(tail, head))
    y = net.forward(False, np.arange(5, dtype=np.float32)[None])
    assert y.tolist() == [[2, 3, 4, 0, 1]]


def test_a_layer_called_twice_shares_its_parameters():
    left, right = Input("left", (3,)), Input("right", (3,))
    fc = Dense("fc", 2)
    net = FeedForwardNet(inputs=[left, right], outputs=Concat("both", 1)(fc(left), fc(right)))
    assert net.param_names() == ["fc/weight", "fc/bias"]
    rng = np.random.default_rng(1)
    x = {name: rng.standard_normal((4, 3)).astype(np.float32) for name in ("left", "right")}
    y = net.forward(True, x)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    items = [item for item in net.backward(dy) if item.names]
    assert len(items) == 1
    by_hand = x["left"].T @ dy[:, :2] + x["right"].T @ dy[:, 2:]
    np.testing.assert_allclose(items[0].grads[0], by_hand, rtol=1e-5)
    check_net_gradients(net, x)


class Chosen(layers.Layer):
    """The rows of (T, F) that the first input says."""

    traits = layers.Traits(input_kinds=("integers", "floats"))

    def setup(self, in_shapes):
        indices, rows = in_shapes
        return (*indices, rows[1])

    def forward(self, ctx, x):
        indices, rows = x
        ctx.save(indices=indices, shape=rows.shape)
        return np.take_along_axis(rows, indices[:, :, None], 1)

    def backward(self, ctx, dy):
        dx = np.zeros(ctx.saved["shape"], dy.dtype)
        np.add.at(dx, (np.arange(len(dy))[:, None], ctx.saved["indices"]), dy)
        return [None, dx], {}


@pytest.mark.parametrize("dtype", [None, "int32"])
def test_one_input_of_a_layer_is_of_integers(dtype):
    where, rows = Input("where", (1, 2), dtype), Input("rows", (5, 3))
    indices = Flatten("flat")(where)
    y = Chosen("chosen")(indices, TimeDistributed("each", Dense("fc", 4))(rows))
    net = FeedForwardNet(inputs=[where, rows], outputs=y, seed=0)
    net.as_type("float64")
    rng = np.random.default_rng(0)
    feed = {"where": np.array([[[4, 0]], [[1, 1]]]).astype("int32")}
    feed["rows"] = rng.standard_normal((2, 5, 3))
    weight, bias = net.param_values()
    wanted = (feed["rows"] @ weight + bias)[[[0], [1]], feed["where"][:, 0]]
    np.testing.assert_allclose(net.forward(False, feed), wanted, rtol=1e-12)
    check_net_gradients(net, feed)
    dy = rng.standard_normal((2, 2, 4))
    found = net.gradients("chosen", ["rows"], feed, dys=dy)["rows"]
    assert found.shape == (2, 5, 3)
    assert found.any()
    for name in ("where", "flat"):
        with pytest.raises(DataError, match="indices, which are integers"):
            net.gradients("chosen", [name], feed, dys=dy)
    assert "chosen" in net.summary(batch_size=2)


def test_kinds_that_do_not_fit_are_refused_when_drawn():
    whole, plain = Input("whole", (2,), "int64"), Input("plain", (2, 3))
    computed = Dense("fc", 2)(Input("x", (3,)))
    for draw, words in (
        (lambda: Dense("it", 1)(whole), "floats to compute with; received outputs of 'whole'"),
        (lambda: layers.Add("it")(computed, whole), "input 1: expected floats"),
        (
            lambda: layers.Embedding("it", 3, 2)(computed),
            "whole numbers or booleans; received .* 'fc'",
        ),
        (lambda: Chosen("it")(computed, plain), "input 0: expected whole numbers"),
        (lambda: Concat("it", 1)(whole, computed), "input 0: expected floats"),
        (lambda: Dense("it", 1)(Flatten("flat")(whole)), "floats to compute with"),
    ):
        with pytest.raises(ArgumentError, match=f"layer 'it'.*{words}"):
            draw()
    assert layers.StopGradient("kept")(whole).kind == Flatten("flat")(whole).kind == "integers"
    assert Concat("both", 1)(Input("open", (2,)), whole).kind == "integers"


def each(make, shape, expected):
    return case(lambda: TimeDistributed("steps", make()), shape, expected)


def normed(p, x):
    return p["gamma"] * (x - p["mean"]) / np.sqrt(p["var"] + 1e-5) + p["beta"]


CASES = {
    "Dense": each(lambda: Dense("fc", 3), (4, 5), lambda p, x:
                  np.einsum("ntd,do->nto", x, p["weight"]) + p["bias"]),
    "images": each(lambda: layers.Conv2D("conv", 2, 3, border_mode="valid", use_bias=False),
                   (2, 1, 3, 3),
                   lambda p, x: np.einsum("ntcp,fp->ntf", x.reshape(len(x), 2, 1, 9), p["weight"])
                   [..., None, None]),
    # Running statistics of the wrapped layer are the wrapper's.
    "state": each(lambda: layers.BatchNormalization("bn"), (4, 5), normed),
    # Steps without axes of their own.
    "numbers": each(lambda: Dummy("same"), (4,), lambda p, x: x),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_parameters_are_the_layers_own():
    layer = Dense("fc", 3)
    wrapper = TimeDistributed("steps", layer, input_sample_shape=(4, 5))
    assert wrapper.get_output_sample_shape() == (4, 3)
    assert wrapper.param_names() == ["fc/weight", "fc/bias"]
    assert wrapper.params["weight"] is layer.params["weight"]
    drops = TimeDistributed("steps", layers.Dropout("drop"), input_sample_shape=(2, 50))
    drops.get_output_sample_shape()
    _, y = LayerCase().run(drops, np.ones((1, 2, 50), np.float32), train=True)
    assert (y[0, 0] != y[0, 1]).any()


def test_a_layer_shared_with_the_net_is_trained_once(rng):
    net = FeedForwardNet(seed=0)
    layer = Dense("fc", 4)
    net.add(TimeDistributed("steps", layer, input_sample_shape=(3, 4)))
    net.add(Slice("cut", 1, [1]))
    net.add(Flatten("first"), src="cut")
    net.add(Flatten("rest"), src="cut")
    net.add(layer, src="first")
    net.add(Dense("fold", 4), src="rest")
    net.add(Merge("sum"), src=["fc", "fold"])
    x = rng.standard_normal((2, 3, 4))
    check_net_gradients(net, x)
    y = net.forward(True, x)
    names = [name for item in net.backward(np.ones_like(y)) for name in item.names]
    assert sorted(names) == ["fc/bias", "fc/weight", "fold/bias", "fold/weight"]


def test_indices_reach_a_wrapped_embedding():
    net = FeedForwardNet(seed=0)
    net.add(Dummy("words", input_sample_shape=(3, 2)))
    net.add(TimeDistributed("steps", layers.Embedding("table", 2**24 + 2, 1)))
    net.forward(True, np.full((1, 3, 2), 2**24 + 1))
    (item, _) = list(net.backward(np.ones((1, 3, 2, 1), np.float32), output="words"))
    assert isinstance(item.grads[0], RowSparse)
    assert item.grads[0].indices.tolist() == [2**24 + 1]
    assert item.grads[0].rows.tolist() == [[6.0]]


def test_refuses_what_it_cannot_wrap():
    with pytest.raises(ArgumentError, match=r"'steps', argument layer: expected a Layer"):
        TimeDistributed("steps", "fc")
    with pytest.raises(ShapeError, match=r"'steps': expected samples of shape \(steps"):
        TimeDistributed("steps", Dense("fc", 3)).build(())
    with pytest.raises(ShapeError, match=r"'conv': expected .*\(channels, length\)"):
        TimeDistributed("steps", layers.Conv1D("conv", 3)).build((4, 5, 6, 7))
    cut = Slice("cut", 1, [1])
    with pytest.raises(ShapeError, match=r"'steps': expected a layer of one output"):
        TimeDistributed("steps", cut).build((4, 5))
    assert cut.out_shapes is None


@pytest.mark.parametrize("built_before", [False, True])
def test_an_add_that_fails_leaves_the_wrapped_layer_as_it_was(built_before):
    net = FeedForwardNet(seed=0)
    layer = Dense("fc", 3, input_sample_shape=(4,) if built_before else None)
    net.add(TimeDistributed("steps", layer), src="x")
    net.add(layers.Conv2D("late", 2), src="x")
    with pytest.raises(ShapeError, match="'late'"):
        net.add(Dummy("x", input_sample_shape=(2, 4)), src=[])
    assert layer.out_shapes == ((3,) if built_before else None)
    assert list(layer.params) == (["weight", "bias"] if built_before else [])
