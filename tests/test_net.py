"""FeedForwardNet: each clause of the promises has its test."""

import gc
import inspect
import itertools
import pydoc
import tracemalloc
import weakref

import numpy as np
import pytest

from singanet.base.arguments import kEval, kTrain
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    GraphError,
    ShapeError,
    SignatureError,
    UnknownNameError,
)
from singanet.layers import (
    Activation,
    BatchNormalization,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    Dummy,
    Flatten,
    Input,
    Layer,
    Merge,
    Slice,
    Split,
    Subtract,
)
from singanet.loss import SquaredError
from singanet.net import FeedForwardNet, load_model
from singanet.optimizer import SGD, clip_by_global_norm
from singanet.params.grads import LayerGradients
from singanet.testing import check_net_gradients
from singanet.training.options import FitOptions


def mlp(sizes=(5, 4, 3), seed=0, **given):
    """Dense layers fc0, fc1, ... with tanh between them."""
    net = FeedForwardNet(seed=seed, **given)
    for k, (size, out) in enumerate(itertools.pairwise(sizes)):
        shape = {"input_sample_shape": (size,)} if k == 0 else {}
        if k:
            net.add(Activation(f"tanh{k}", "tanh"))
        net.add(Dense(f"fc{k}", out, **shape))
    return net


def batch(*shape, seed=7):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- what backward yields ------------------------------------------------------------------------


def test_backward_is_a_generator_of_three_item_tuples():
    net = mlp()
    y = net.forward(kTrain, batch(2, 5))
    walk = net.backward(np.ones_like(y))
    assert inspect.isgenerator(walk)
    seen = []
    for item in walk:
        assert isinstance(item, tuple)
        assert len(item) == 3
        names, values, grads = item
        assert len(names) == len(values) == len(grads)
        assert (item.names, item.values, item.grads) == (names, values, grads)
        seen.append((item.layer, names))
    assert seen == [
        ("fc1", ["fc1/weight", "fc1/bias"]), ("tanh1", []), ("fc0", ["fc0/weight", "fc0/bias"])
    ]  # fmt: skip


def test_gradients_equal_the_formula():
    net = mlp()
    w0, b0, w1, _ = (value.astype(np.float64) for value in net.param_values())
    x, dy = batch(6, 5), batch(6, 3, seed=8)
    net.forward(True, x)
    grads = {n: g for item in net.backward(dy) for n, g in zip(item[0], item[2], strict=True)}
    hidden = np.tanh(x @ w0 + b0)
    d_hidden = (dy @ w1.T) * (1 - hidden**2)
    for name, expected in {
        "fc1/weight": hidden.T @ dy,
        "fc1/bias": dy.sum(0),
        "fc0/weight": x.T @ d_hidden,
        "fc0/bias": d_hidden.sum(0),
    }.items():
        assert grads[name].dtype == np.float32
        np.testing.assert_allclose(grads[name], expected, rtol=1e-4, atol=1e-5)


def test_values_are_the_live_arrays_and_may_be_updated_at_once():
    x, dy = batch(4, 5), batch(4, 3, seed=9)
    nets = [mlp(), mlp()]
    together = {}
    nets[0].forward(True, x)
    for names, _, grads in nets[0].backward(dy):
        together.update(zip(names, grads, strict=True))
    nets[1].forward(True, x)
    for names, values, grads in nets[1].backward(dy):
        for name, value, grad in zip(names, values, grads, strict=True):
            np.testing.assert_array_equal(grad, together[name])
            value -= 100.0 * grad
    before = dict(zip(nets[0].param_names(), nets[0].param_values(), strict=True))
    for name, value in zip(nets[1].param_names(), nets[1].param_values(), strict=True):
        np.testing.assert_array_equal(value, before[name] - 100.0 * together[name])


def test_output_grads_hold_the_layers_asked_for_and_passed():
    net = FeedForwardNet(seed=1)
    net.add(Dummy("image", input_sample_shape=(5,)))
    net.add(Dense("a", 4))
    net.add(Dense("b", 3))
    x, dy = batch(2, 5), batch(2, 3, seed=3)
    net.forward(True, x)
    steps = [(item.layer, sorted(item.output_grads)) for item in
             _copying(net.backward(dy, output=["image", "a"]))]  # fmt: skip
    assert steps == [("b", []), ("a", ["a"]), ("image", ["a", "image"])]
    net.forward(True, x)
    *_, last = net.backward(dy, output=["image", "a"])
    wa, wb = net["a"].params["weight"].value, net["b"].params["weight"].value
    np.testing.assert_allclose(last.output_grads["a"], dy @ wb.T, rtol=1e-5)
    np.testing.assert_allclose(last.output_grads["image"], dy @ wb.T @ wa.T, rtol=1e-5)


def _copying(walk):
    """Items whose ``output_grads`` no longer grow."""
    for item in walk:
        yield LayerGradients(*item, item.layer, dict(item.output_grads))


def test_an_unknown_name_in_output_is_refused_before_anything_runs():
    net = mlp()
    y = net.forward(True, batch(2, 5))
    with pytest.raises(UnknownNameError, match=r"'fc9'; did you mean 'fc"):
        net.backward(np.ones_like(y), output=["fc9"])
    assert len(list(net.backward(np.ones_like(y)))) == 3
    with pytest.raises(UnknownNameError, match="'fcx'"):
        net.forward(True, batch(2, 5), output="fcx")


# -- what is released, and when ------------------------------------------------------------------


class Spy(Layer):
    """Passes on, keeps a marker array, and remembers weak references to what went through."""

    def __init__(self, name, log):
        super().__init__(name)
        self.log = log

    def setup(self, in_shapes):
        self.add_param("gain", (1,))
        return in_shapes

    def forward(self, ctx, x):
        kept = x + 1.0
        self.log[self.name, "kept"] = weakref.ref(kept)
        ctx.save(kept=kept)
        return x * 1.0

    def backward(self, ctx, dy):
        self.log[self.name, "dy"] = weakref.ref(dy)
        grad = np.full((1,), dy.sum())
        self.log[self.name, "grad"] = weakref.ref(grad)
        return dy * 1.0, {"gain": grad}


def spied():
    log = {}
    net = FeedForwardNet(seed=0)
    net.add(Dummy("in", input_sample_shape=(3,)))
    for name in ("a", "b", "c"):
        net.add(Spy(name, log))
    return net, log


def test_before_each_yield_context_and_incoming_gradient_are_released():
    net, log = spied()
    net.forward(True, batch(2, 3))
    gc.disable()
    try:
        walk = net.backward(batch(2, 3, seed=2))
        for name in ("c", "b", "a"):
            assert log[name, "kept"]() is not None
            item = next(walk)
            assert item.layer == name
            assert log[name, "kept"]() is None
            assert log[name, "dy"]() is None
    finally:
        gc.enable()


def test_the_net_keeps_no_reference_to_gradients():
    net, log = spied()
    net.forward(True, batch(2, 3))
    gc.disable()
    try:
        for item in net.backward(batch(2, 3, seed=2)):
            name = item.layer
            assert log[name, "grad"]() is not None
            del item
            assert log[name, "grad"]() is None
    finally:
        gc.enable()


def test_an_output_is_dropped_after_its_last_reader():
    net = FeedForwardNet(seed=0)
    net.add(Dummy("in", input_sample_shape=(200_000,)))
    for k in range(20):
        net.add(Activation(f"relu{k}"))
    x = batch(1, 200_000)
    net.forward(False, x)
    tracemalloc.start()
    try:
        net.forward(False, x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3.5 * x.nbytes


def test_closing_early_frees_everything_and_leaves_the_net_usable():
    net, log = spied()
    x, dy = batch(2, 3), batch(2, 3, seed=2)
    net.forward(True, x)
    walk = net.backward(dy.copy())
    next(walk)
    gc.disable()
    try:
        walk.close()
        del walk
        assert all(ref() is None for ref in log.values())
    finally:
        gc.enable()
    with pytest.raises(CallOrderError):
        net.backward(dy)
    net.forward(True, x)
    assert len(list(net.backward(dy))) == 3


# -- shared and untrained parameters -------------------------------------------------------------


def test_a_shared_parameter_is_yielded_once_complete_at_its_last_use():
    net = FeedForwardNet(seed=3)
    first = net.add(Dense("enc", 3, use_bias=False, input_sample_shape=(5,)))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("dec", 5, use_bias=False, W_specs=first.params["weight"], W_transpose=True))
    assert net.param_names() == ["enc/weight"]
    assert len(net.param_values()) == len(net.param_specs()) == 1
    x = batch(4, 5)
    y = net.forward(True, x)
    items = [(item.layer, item.names) for item in net.backward(np.ones_like(y))]
    assert items == [("dec", []), ("tanh", []), ("enc", ["enc/weight"])]
    check_net_gradients(net, x)


def test_a_shared_parameter_of_branches_is_summed():
    net = FeedForwardNet(seed=3)
    net.add(Dummy("in", input_sample_shape=(4,)))
    one = net.add(Dense("one", 4, use_bias=False), "in")
    net.add(Dense("two", 4, use_bias=False, W_specs=one.params["weight"]), "in")
    net.add(Dense("three", 4, use_bias=False, W_specs=one.params["weight"]), "two")
    net.add(Merge("sum"), ["one", "three"])
    check_net_gradients(net, batch(3, 4))


def test_untrained_parameters_are_not_yielded_and_the_walk_ends_above_them():
    net = mlp((5, 4, 4, 3))
    net["fc0"].trainable = False
    net["fc1"].params["weight"].trainable = False
    y = net.forward(True, batch(2, 5))
    items = [(item.layer, item.names) for item in net.backward(np.ones_like(y))]
    assert items == [("fc2", ["fc2/weight", "fc2/bias"]), ("tanh2", []), ("fc1", ["fc1/bias"])]


def test_the_walk_goes_as_far_as_it_was_asked():
    net = mlp((5, 4, 4, 3))
    net["fc0"].trainable = net["fc1"].trainable = False
    # Named in forward too, since nothing is kept below parameters none of which is trained.
    y = net.forward(True, batch(2, 5), output="fc0")["fc2"]
    items = [item.layer for item in net.backward(np.ones_like(y), output="fc0")]
    assert items == ["fc2", "tanh2", "fc1", "tanh1", "fc0"]


def test_nothing_to_train_yields_nothing():
    net = mlp()
    for layer in net.layers:
        layer.trainable = False
    y = net.forward(True, batch(2, 5))
    assert list(net.backward(np.ones_like(y))) == []


def test_running_state_is_a_parameter_that_no_backward_yields():
    net = FeedForwardNet(seed=0)
    net.add(BatchNormalization("bn", input_sample_shape=(3,)))
    assert net.param_names() == ["bn/gamma", "bn/beta", "bn/mean", "bn/var"]
    y = net.forward(True, batch(4, 3))
    (item,) = net.backward(np.ones_like(y))
    assert item.names == ["bn/gamma", "bn/beta"]
    net["bn"].trainable = False
    net["bn"].trainable = True
    assert not net["bn"].params["mean"].trainable
    with pytest.raises(ArgumentError, match=r"'bn/mean'.*running state"):
        net["bn"].params["mean"].trainable = True


# -- the order of calls --------------------------------------------------------------------------


def test_backward_needs_a_training_forward():
    net = mlp()
    dy = np.ones((2, 3), np.float32)
    with pytest.raises(CallOrderError, match="a training forward before each backward"):
        net.backward(dy)
    net.forward(kEval, batch(2, 5))
    with pytest.raises(CallOrderError):
        net.backward(dy)


def test_backward_twice_on_one_forward_is_refused():
    net = mlp()
    y = net.forward(True, batch(2, 5))
    net.backward(np.ones_like(y))
    with pytest.raises(CallOrderError, match="already taken"):
        net.backward(np.ones_like(y))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2,), (2, 3, 1), ()])
def test_a_gradient_of_the_wrong_shape_is_refused_and_the_forward_stays(shape):
    net = mlp()
    y = net.forward(True, batch(2, 5))
    with pytest.raises(ShapeError, match=r"gradient of layer 'fc1': expected shape \(2, 3\)"):
        net.backward(np.ones(shape, np.float32))
    assert len(list(net.backward(np.ones_like(y)))) == 3


def test_an_unknown_flag_is_refused():
    with pytest.raises(ArgumentError):
        mlp().forward("train", batch(2, 5))


def test_layers_added_later_are_seen_by_the_next_forward():
    net = mlp()
    x = batch(2, 5)
    assert net.forward(False, x).shape == (2, 3)
    net.add(Dense("fc9", 7))
    assert net.forward(False, x).shape == (2, 7)
    assert net.param_names()[-1] == "fc9/bias"


def test_a_backward_under_way_survives_an_addition():
    net = mlp()
    y = net.forward(True, batch(2, 5))
    walk = net.backward(np.ones_like(y))
    next(walk)
    net.add(Dense("fc9", 7))
    assert len(list(walk)) == 2


# -- inputs and outputs --------------------------------------------------------------------------


def two_inputs(second=(2,)):
    net = FeedForwardNet(seed=0)
    net.add(Dummy("a", input_sample_shape=(2,)), [])
    net.add(Dummy("b", input_sample_shape=second), [])
    return net


def test_several_inputs_come_in_a_dict():
    net = two_inputs()
    net.add(Merge("m"), ["a", "b"])
    x = {"b": np.full((3, 2), 0.9, np.float32), "a": np.full((3, 2), 1.1, np.float32)}
    np.testing.assert_allclose(net.forward(False, x), 2.0)
    with pytest.raises(ArgumentError, match="a dict with the inputs 'a', 'b'"):
        net.forward(False, x["a"])


def test_a_missing_or_extra_key_is_named():
    net = two_inputs()
    net.add(Merge("m"), ["a", "b"])
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(UnknownNameError, match="keys without 'b'"):
        net.forward(False, {"a": x})
    with pytest.raises(UnknownNameError, match="extra key 'c'"):
        net.forward(False, {"a": x, "b": x, "c": x})


@pytest.mark.parametrize("shape", [(3, 4), (5,), (3, 5, 1), ()])
def test_a_wrong_shape_names_layer_and_both_shapes(shape):
    net = mlp()
    y = net.forward(True, batch(2, 5))
    message = r"layer 'fc0', input: expected an array of shape \(batch, 5\); received shape "
    for x in (np.zeros(shape, np.float32), {"fc0": np.zeros(shape, np.float32)}):
        with pytest.raises(ShapeError, match=message):
            net.forward(True, x)
    assert len(list(net.backward(np.ones_like(y)))) == 3


def test_wrong_shapes_are_explained():
    net = FeedForwardNet()
    net.add(Conv2D("conv", 2, input_sample_shape=(3, 8, 9)))
    with pytest.raises(ShapeError, match="images are NCHW"):
        net.forward(False, np.zeros((2, 8, 9, 3), np.float32))
    with pytest.raises(ShapeError, match="add the batch axis"):
        net.forward(False, np.zeros((3, 8, 9), np.float32))


@pytest.mark.parametrize("x", ["text", 3, None])
def test_what_is_not_an_array_is_refused(x):
    with pytest.raises(ArgumentError, match="layer 'fc0', input: expected an array"):
        mlp().forward(False, x)


def test_arrays_of_objects_are_refused():
    with pytest.raises(ArgumentError, match="expected numbers"):
        mlp().forward(False, np.full((2, 5), "x"))


def test_doubles_and_bytes_are_computed_in_the_type_of_the_net():
    net = mlp()
    x = np.arange(10, dtype=np.uint8).reshape(2, 5)
    y = net.forward(False, x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, net.forward(False, x.astype(np.float64)))
    net.as_type("float64")
    assert net.forward(False, x).dtype == np.float64
    with pytest.raises(ArgumentError, match="a float type"):
        net.as_type("int32")
    assert net.dtype == np.float64


def test_an_input_layer_of_several_inputs_takes_a_list():
    net = FeedForwardNet()
    net.add(Merge("m", input_sample_shape=[(2,), (2,)]))
    one = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(net.forward(False, [one, one]), 2 * one)
    with pytest.raises(ShapeError, match="a list of 2 arrays"):
        net.forward(False, [one])


def test_several_outputs_take_a_dict_of_gradients():
    x = Input("x", (3,))
    net = FeedForwardNet(
        inputs=x, outputs=[Dense("a", 2, use_bias=False)(x), Dense("b", 4, use_bias=False)(x)]
    )
    data = batch(5, 3)
    y = net.forward(True, data)
    assert list(y) == ["a", "b"]
    da, db = batch(5, 2, seed=1), batch(5, 4, seed=2)
    grads = {item.layer: item.grads for item in net.backward({"b": db, "a": da})}
    np.testing.assert_allclose(grads["a"][0], data.T @ da, rtol=1e-5)
    np.testing.assert_allclose(grads["b"][0], data.T @ db, rtol=1e-5)
    net.forward(True, data)
    with pytest.raises(ArgumentError, match="a dict with gradients"):
        net.backward(da)
    with pytest.raises(UnknownNameError, match="'c'"):
        net.backward({"c": da})
    with pytest.raises(ArgumentError, match="an empty dict"):
        net.backward({})
    assert [item.layer for item in net.backward({"a": da})] == ["a"]


def test_a_gradient_may_enter_at_a_layer_named_in_forwards_output():
    net = mlp()
    y = net.forward(True, batch(2, 5), output="tanh1")
    assert list(y) == ["tanh1", "fc1"]
    dy = {name: np.ones_like(part) for name, part in y.items()}
    both = {n: g for item in net.backward(dy) for n, g in zip(item[0], item[2], strict=True)}
    parts = []
    for name in dy:
        net.forward(True, batch(2, 5), output="tanh1")
        parts.append({n: g for item in net.backward({name: dy[name]})
                      for n, g in zip(item[0], item[2], strict=True)})  # fmt: skip
    np.testing.assert_allclose(
        both["fc0/weight"], parts[0]["fc0/weight"] + parts[1]["fc0/weight"], rtol=1e-5
    )


def test_a_layer_of_several_outputs_at_the_end_gives_and_takes_lists():
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc", 4, use_bias=False, input_sample_shape=(3,)))
    net.add(Slice("cut", 1, [1]))
    x = batch(2, 3)
    y = net.forward(True, x)
    assert [part.shape for part in y] == [(2, 1), (2, 3)]
    dy = [batch(2, 1), batch(2, 3)]
    _, item = net.backward(dy)
    np.testing.assert_allclose(item.grads[0], x.T @ np.concatenate(dy, 1), rtol=1e-5)
    net.forward(True, x)
    with pytest.raises(ShapeError, match="list of 2 arrays"):
        net.backward(dy[:1])


def test_outputs_that_nobody_reads_get_a_zero_gradient():
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc", 4, use_bias=False, input_sample_shape=(3,)))
    net.add(Slice("cut", 1, [1, 2]))
    net.add(Dummy("middle"), ("cut", 1))
    x = batch(2, 3)
    y = net.forward(True, x)
    assert y.shape == (2, 1)
    *_, item = net.backward(np.ones_like(y))
    expected = np.zeros((3, 4))
    expected[:, 1] = x.sum(0)
    np.testing.assert_allclose(item.grads[0], expected, rtol=1e-6)


# -- graphs --------------------------------------------------------------------------------------


def test_an_output_feeds_several_layers_without_split():
    net = FeedForwardNet(seed=2)
    net.add(Dense("stem", 4, input_sample_shape=(3,)))
    for name in ("a", "b", "c"):
        net.add(Dense(name, 4), "stem")
    net.add(Merge("sum"), ["c", "a", "b", "stem"])
    check_net_gradients(net, batch(3, 3))


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("sources", [("a", "b"), ("b", "a")])
def test_gradients_of_a_diamond_go_by_edge_whatever_the_order(order, sources):
    net = FeedForwardNet(seed=2)
    net.add(Dummy("in", input_sample_shape=(3,)))
    widths = {"a": 2, "b": 5}
    for name in order:
        net.add(Dense(name, widths[name]), "in")
    net.add(Concat("both", 1), list(sources))
    net.add(Dense("out", 2))
    x = batch(3, 3)
    check_net_gradients(net, x)
    y = net.forward(True, x)
    shapes = {n: g.shape for item in net.backward(np.ones_like(y))
              for n, g in zip(item[0], item[2], strict=True)}  # fmt: skip
    assert shapes["a/weight"] == (3, 2)
    assert shapes["b/weight"] == (3, 5)


def test_a_layer_may_read_one_output_twice():
    net = FeedForwardNet(seed=2)
    net.add(Dense("stem", 4, input_sample_shape=(3,)))
    net.add(Concat("twice", 1), ["stem", "stem"])
    check_net_gradients(net, batch(3, 3))


def test_split_sums_its_gradients():
    net = FeedForwardNet(seed=2)
    net.add(Dense("stem", 4, input_sample_shape=(3,)))
    net.add(Split("split", 2))
    net.add(Dense("a", 2), "split")
    net.add(Dense("b", 2), "split")
    net.add(Merge("sum"), ["a", "b"])
    check_net_gradients(net, batch(3, 3))


def test_a_convolutional_net_has_the_right_gradients():
    net = FeedForwardNet(seed=2)
    net.add(Conv2D("conv", 3, 3, input_sample_shape=(2, 5, 4)))
    net.add(BatchNormalization("bn"))
    net.add(Activation("gelu", "gelu"))
    net.add(Dropout("drop", 0.3))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 3))
    check_net_gradients(net, batch(4, 2, 5, 4))


def test_graph_errors_come_before_anything_runs():
    net = mlp()
    net.add(Dense("loose", 2), "nobody")
    with pytest.raises(GraphError, match="'nobody'"):
        net.forward(True, batch(2, 5))


# -- parameters ----------------------------------------------------------------------------------


def test_parameters_stand_in_topological_order():
    net = FeedForwardNet()
    net.add(Dense("last", 2), "first")
    net.add(Dense("first", 3, input_sample_shape=(4,)), [])
    assert net.param_names() == ["first/weight", "first/bias", "last/weight", "last/bias"]
    assert [value.shape for value in net.param_values()] == [(4, 3), (3,), (3, 2), (2,)]
    assert [spec.name for spec in net.param_specs()] == net.param_names()


def test_a_seed_fixes_the_parameters_by_name():
    values = mlp(seed=5).param_values()
    again = mlp(seed=5).param_values()
    other = mlp(seed=6).param_values()
    for a, b in zip(values, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (values[0] != other[0]).all()
    longer = mlp((5, 4, 3, 2), seed=5).param_values()
    np.testing.assert_array_equal(longer[0], values[0])
    assert (mlp(seed=None).param_values()[0] != mlp(seed=None).param_values()[0]).all()


def test_random_draws_come_from_the_seed():
    def run(seed):
        net = FeedForwardNet(seed=seed)
        net.add(Dropout("drop", input_sample_shape=(50,)))
        return [net.forward(True, np.ones((1, 50), np.float32)) for _ in range(2)]

    first, second = run(1)
    assert (first != second).any()
    np.testing.assert_array_equal([first, second], run(1))
    assert (first != run(2)[0]).any()


def test_layers_are_found_by_name():
    net = mlp()
    assert net["fc0"].name == "fc0"
    assert "fc0" in net
    assert "fc7" not in net
    with pytest.raises(UnknownNameError, match=r"expected a layer of the net: 'fc0', 'tanh1'"):
        net["fc7"]


def test_the_summary_names_layers_shapes_counts_and_sources():
    net = FeedForwardNet()
    net.add(Dummy("in", input_sample_shape=(4,)))
    net.add(BatchNormalization("bn"), "in")
    net.add(Slice("cut", 1, [1]), "bn")
    net.add(Concat("swap", 1), [("cut", 1), ("cut", 0)])
    net.add(Dense("fc", 1000))
    lines = net.summary(width=0).splitlines()
    assert lines[2].split() == ["in", "Input", "(4,)", "0", "0"]
    assert lines[5].split() == ["swap", "Concat", "(4,)", "0", "0", "cut[1],", "cut[0]"]
    assert lines[6].split() == [
        "fc", "Dense", "(1000,)", "5,000", "20.0", "kB", "trained", "4,000", "swap",
    ]  # fmt: skip
    assert lines[-2] == "5,016 parameters (20.1 kB): 5,008 trained, 8 running statistics"


# -- rehearsal -----------------------------------------------------------------------------------


def test_a_rehearsal_leaves_draws_and_running_state_as_they_were():
    net = FeedForwardNet(seed=4)
    net.add(BatchNormalization("bn", input_sample_shape=(50,)))
    net.add(Dropout("drop"))
    x = batch(6, 50)
    with net.rehearsal():
        rehearsed = net.forward(True, x)
    np.testing.assert_array_equal(net["bn"].params["mean"].value, np.zeros(50))
    np.testing.assert_array_equal(net.forward(True, x), rehearsed)
    assert net["bn"].params["mean"].value.any()
    assert (net.forward(True, x) != rehearsed).any()


def test_exact_clipping_of_a_random_net_equals_clipping_all_gradients():
    def build():
        net = FeedForwardNet(SquaredError(), seed=4)
        net.add(Dense("fc1", 8, input_sample_shape=(5,)))
        net.add(BatchNormalization("bn"))
        net.add(Dropout("drop"))
        net.add(Dense("fc2", 3))
        return net

    x, y = batch(6, 5), batch(6, 3, seed=1)
    net, other = build(), build()
    grads, _ = other.train(x, y)
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads if g is not None))

    def passes():
        net.loss.forward(True, net.forward(True, x), y)
        return net.backward(net.loss.backward())

    limit = norm / 2
    found = clip_by_global_norm(SGD(lr=1.0), limit, passes, rehearsal=net.rehearsal)
    assert found == pytest.approx(norm, rel=1e-5)
    for value, start, grad in zip(net.param_values(), build().param_values(), grads, strict=True):
        if grad is not None:
            np.testing.assert_allclose(value, start - grad / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(net["bn"].params["mean"].value, other["bn"].params["mean"].value)


# -- buckets -------------------------------------------------------------------------------------


def chain(*units):
    net = FeedForwardNet(SquaredError(), seed=4)
    net.add(Dense("fc0", units[0], input_sample_shape=(5,)))
    for k, width in enumerate(units[1:], 1):
        net.add(Activation(f"tanh{k}", "tanh"))
        net.add(Dense(f"fc{k}", width))
    return net


def test_arrays_that_are_held_are_live_whatever_is_done(tmp_path):
    net = chain(8, 3)
    held = dict(zip(net.param_names(), net.param_values(), strict=True))
    net.save(tmp_path / "start.npz")
    optimizer = SGD(lr=0.1, momentum=0.9)
    for k in range(6):
        net.step(batch(6, 5), batch(6, 3, seed=1), optimizer)
        if k == 2:
            net.freeze("fc1")
        if k == 3:
            net.unfreeze()
            net["fc0"].trainable = False
        if k == 4:
            net.load(tmp_path / "start.npz")
    net.add(Dense("more", 3))
    net.step(batch(6, 5), batch(6, 3, seed=1), optimizer)
    for name, value in held.items():
        param = next(param for param in net.params() if param.name == name)
        assert param.value is value
    assert [bucket.names for bucket in net.buckets()][1] == (
        "fc1/weight", "fc1/bias", "fc0/weight", "fc0/bias",
    )  # fmt: skip


def test_all_of_a_net_is_summed_by_its_buckets():
    one, other = chain(8, 3), chain(8, 3)
    for net, seed in ((one, 1), (other, 2)):
        for k in range(4):
            net.step(batch(6, 5, seed=k), batch(6, 3, seed=seed), SGD(lr=0.1))
    means = [(a + b) / 2 for a, b in zip(one.param_values(), other.param_values(), strict=True)]
    for a, b in zip(one.buckets(), other.buckets(), strict=True):
        assert a.names == b.names
        mean = (a.array + b.array) / 2
        a.array[...] = b.array[...] = mean
    for net in (one, other):
        for value, mean in zip(net.param_values(), means, strict=True):
            np.testing.assert_array_equal(value, mean)
    one.step(batch(6, 5), batch(6, 3), SGD(lr=0.1))


def test_a_user_s_own_update_of_one_array_leaves_its_neighbours():
    net = chain(8, 3)
    before = [value.copy() for value in net.param_values()]
    net.param_values()[1][...] = 5.0
    for k, (value, old) in enumerate(zip(net.param_values(), before, strict=True)):
        np.testing.assert_array_equal(value, np.full_like(old, 5.0) if k == 1 else old)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_list_feeds_several_inputs_in_the_order_of_the_symbols(transposed, tmp_path):
    a, b = Input("a", (2,)), Input("b", (2,))
    order = [b, a] if transposed else [a, b]
    made = FeedForwardNet(inputs=order, outputs=Subtract("d")(*order), loss=SquaredError())
    x = [np.full((3, 2), 5, np.float32), np.full((3, 2), 3, np.float32)]
    made.save_model(tmp_path / "net.singanet")
    predictor = made.predictor()
    for predict in (
        made.predict,
        predictor,
        lambda x: made.predict(x, batch_size=2),
        lambda x: made.forward(True, x),
        load_model(tmp_path / "net.singanet").predict,
    ):
        np.testing.assert_array_equal(predict(x), np.full((3, 2), 2))
        np.testing.assert_array_equal(predict(tuple(x)), np.full((3, 2), 2))
    assert made.evaluate(x, np.full((3, 2), 2, np.float32)).loss == 0
    with pytest.raises(ShapeError, match="expected 2 arrays, .*pass a dict"):
        made.predict(x[:1])


def test_an_executor_states_what_it_can(tmp_path):
    net = mlp((200, 200, 3))
    assert net.executor is net.programs
    assert net.executor.can.records
    net.offload(tmp_path / "net")
    assert not net.executor.can.records
    assert net.executor.placed is None
    with pytest.raises(CallOrderError, match=r"one that is offloaded; call net\.onload"):
        _ = net.programs
    net.onload()
    assert net.programs.enabled


def test_the_arguments_of_fit_are_shown_to_who_asks_and_kept_to():
    signature, options = map(inspect.signature, (FeedForwardNet.fit, FitOptions))
    assert [*signature.parameters] == ["self", *options.parameters]
    assert [*signature.parameters.values()][1:] == [*options.parameters.values()]
    assert str(inspect.signature(mlp().fit)).startswith("(x: 'Any', y: 'Any' = None, batch_size:")
    assert "epochs: 'int' = 1" in pydoc.render_doc(FeedForwardNet.fit)
    net = mlp()
    net.compile("sgd", "mse")
    x, y = batch(4, 5), batch(4, 3)
    with pytest.raises(SignatureError, match=r"^net\.fit: .*received epoch=; .*epochs"):
        net.fit(x, y, epoch=3)
    with pytest.raises(SignatureError, match="received nothing for x"):
        net.fit(y=y)
    with pytest.raises(ArgumentError, match="net.fit, accumulate"):
        net.fit(x, y, accumulate=0)
