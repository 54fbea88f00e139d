"""FeedForwardNet: each clause of the promises has its test."""

import gc
import inspect
import pydoc
import tracemalloc
import weakref

import numpy as np
import pytest

from singanet import errors
from singanet import layers as nn
from singanet.base.arguments import kEval, kTrain
from singanet.errors import ArgumentError, CallOrderError, ShapeError, UnknownNameError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout, Dummy, Input, Merge
from singanet.loss import SquaredError
from singanet.net import FeedForwardNet, load_model
from singanet.optimizer import SGD, clip_by_global_norm
from singanet.testing import check_net_gradients
from singanet.training.options import FitOptions


def named(walk):
    """The gradients of a walk by the name of the parameter."""
    return {n: g for item in walk for n, g in zip(item.names, item.grads, strict=True)}


def mlp(sizes=(5, 4, 3), seed=0, loss=None):
    """Dense layers fc0, fc1, ... with tanh between them."""
    parts = [Dense("fc0", sizes[1], input_sample_shape=sizes[:1])]
    for k, out in enumerate(sizes[2:], 1):
        parts += [Activation(f"tanh{k}", "tanh"), Dense(f"fc{k}", out)]
    return FeedForwardNet(parts, loss=loss, seed=seed)


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
    grads = named(net.backward(dy))
    hidden = np.tanh(x @ w0 + b0)
    d_hidden = (dy @ w1.T) * (1 - hidden**2)
    wanted = {"fc1/weight": hidden.T @ dy, "fc1/bias": dy.sum(0), "fc0/weight": x.T @ d_hidden,
              "fc0/bias": d_hidden.sum(0)}  # fmt: skip
    for name, expected in wanted.items():
        assert grads[name].dtype == np.float32
        np.testing.assert_allclose(grads[name], expected, rtol=1e-4, atol=1e-5)


def test_values_are_the_live_arrays_and_may_be_updated_at_once():
    x, dy, nets = batch(4, 5), batch(4, 3, seed=9), [mlp(), mlp()]
    nets[0].forward(True, x)
    together = named(nets[0].backward(dy))
    nets[1].forward(True, x)
    for names, values, grads in nets[1].backward(dy):
        for name, value, grad in zip(names, values, grads, strict=True):
            np.testing.assert_array_equal(grad, together[name])
            value -= 100.0 * grad
    before = dict(zip(nets[0].param_names(), nets[0].param_values(), strict=True))
    for name, value in zip(nets[1].param_names(), nets[1].param_values(), strict=True):
        np.testing.assert_array_equal(value, before[name] - 100.0 * together[name])


def test_output_grads_hold_the_layers_asked_for_and_passed():
    image = Dummy("image", input_sample_shape=(5,))
    net = FeedForwardNet([image, Dense("a", 4), Dense("b", 3)], seed=1)
    x, dy = batch(2, 5), batch(2, 3, seed=3)
    net.forward(True, x)
    # A dict that grows with the walk.
    steps = [(item.layer, sorted(item.output_grads)) for item in net.backward(dy, ["image", "a"])]
    assert steps == [("b", []), ("a", ["a"]), ("image", ["a", "image"])]
    net.forward(True, x)
    *_, last = net.backward(dy, output=["image", "a"])
    wa, wb = net["a"].params["weight"].value, net["b"].params["weight"].value
    np.testing.assert_allclose(last.output_grads["a"], dy @ wb.T, rtol=1e-5)
    np.testing.assert_allclose(last.output_grads["image"], dy @ wb.T @ wa.T, rtol=1e-5)


def test_an_unknown_name_in_output_is_refused_before_anything_runs():
    net = mlp()
    y = net.forward(True, batch(2, 5))
    with pytest.raises(UnknownNameError, match=r"'fc9'; did you mean 'fc"):
        net.backward(np.ones_like(y), output=["fc9"])
    assert len(list(net.backward(np.ones_like(y)))) == 3
    with pytest.raises(UnknownNameError, match="'fcx'"):
        net.forward(True, batch(2, 5), output="fcx")


# -- what is released, and when ------------------------------------------------------------------


class Spy(nn.Layer):
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
    spies = [Spy(name, log) for name in ("a", "b", "c")]
    return FeedForwardNet([Dummy("in", input_sample_shape=(3,)), *spies], seed=0), log


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
            assert log[name, "kept"]() is log[name, "dy"]() is None
            # Nor does the net keep gradients.
            assert log[name, "grad"]() is not None
            del item
            assert log[name, "grad"]() is None
    finally:
        gc.enable()


def test_an_output_is_dropped_after_its_last_reader():
    first = Dummy("in", input_sample_shape=(200_000,))
    net = FeedForwardNet([first, *(Activation(f"relu{k}") for k in range(20))], seed=0)
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


def tied():
    net = FeedForwardNet(seed=3)
    first = net.add(Dense("enc", 3, use_bias=False, input_sample_shape=(5,)))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("dec", 5, use_bias=False, W_specs=first.params["weight"], W_transpose=True))
    return net


def test_a_shared_parameter_is_yielded_once_complete_at_its_last_use():
    net = tied()
    assert net.param_names() == ["enc/weight"]
    assert len(net.param_values()) == len(net.param_specs()) == 1
    y = net.forward(True, batch(4, 5))
    items = [(item.layer, item.names) for item in net.backward(np.ones_like(y))]
    assert items == [("dec", []), ("tanh", []), ("enc", ["enc/weight"])]


def test_untrained_parameters_are_not_yielded_and_the_walk_ends_above_them():
    def walked(output=()):
        y = net.forward(True, batch(2, 5), output=output)
        dy = np.ones_like(y["fc2"] if output else y)
        return [(item.layer, item.names) for item in net.backward(dy, output=output)]

    net = mlp((5, 4, 4, 3))
    net["fc0"].trainable = False
    net["fc1"].params["weight"].trainable = False
    items = [("fc2", ["fc2/weight", "fc2/bias"]), ("tanh2", []), ("fc1", ["fc1/bias"])]
    assert walked() == items
    net["fc1"].trainable = False
    # Named in forward too, since nothing is kept below parameters none of which is trained.
    assert [layer for layer, _ in walked("fc0")] == ["fc2", "tanh2", "fc1", "tanh1", "fc0"]
    net["fc2"].trainable = False
    assert walked() == []


def test_running_state_is_a_parameter_that_no_backward_yields():
    net = FeedForwardNet([BatchNormalization("bn", input_sample_shape=(3,))], seed=0)
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


def test_backward_needs_a_training_forward_each():
    net, dy = mlp(), np.ones((2, 3), np.float32)
    with pytest.raises(CallOrderError, match="a training forward before each backward"):
        net.backward(dy)
    net.forward(kEval, batch(2, 5))
    with pytest.raises(CallOrderError):
        net.backward(dy)
    net.forward(True, batch(2, 5))
    net.backward(dy)
    with pytest.raises(CallOrderError, match="whose backward has run"):
        net.backward(dy)
    with pytest.raises(ArgumentError):
        net.forward("train", batch(2, 5))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2,), (2, 3, 1), ()])
def test_a_gradient_of_the_wrong_shape_is_refused_and_the_forward_stays(shape):
    net = mlp()
    y = net.forward(True, batch(2, 5))
    with pytest.raises(ShapeError, match=r"gradient of layer 'fc1': expected shape \(2, 3\)"):
        net.backward(np.ones(shape, np.float32))
    assert len(list(net.backward(np.ones_like(y)))) == 3


def test_layers_added_later_are_seen_by_the_next_forward():
    net, x = mlp(), batch(2, 5)
    y = net.forward(True, x)
    walk = net.backward(np.ones_like(y))
    next(walk)
    net.add(Dense("fc9", 7))
    assert len(list(walk)) == 2
    assert net.forward(False, x).shape == (2, 7)
    assert net.param_names()[-1] == "fc9/bias"


# -- inputs and outputs --------------------------------------------------------------------------


def test_several_inputs_come_in_a_dict():
    a, b = Input("a", (2,)), Input("b", (2,))
    net = FeedForwardNet(inputs=[a, b], outputs=Merge("m")(a, b), seed=0)
    x = {"b": np.full((3, 2), 0.9, np.float32), "a": np.full((3, 2), 1.1, np.float32)}
    np.testing.assert_allclose(net.forward(False, x), 2.0)
    with pytest.raises(ArgumentError, match="a dict with the inputs 'a', 'b'"):
        net.forward(False, x["a"])
    with pytest.raises(UnknownNameError, match="keys without 'b'"):
        net.forward(False, {"a": x["a"]})
    with pytest.raises(UnknownNameError, match="extra key 'c'"):
        net.forward(False, x | {"c": x["a"]})


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
    net = FeedForwardNet([nn.Conv2D("conv", 2, input_sample_shape=(3, 8, 9))])
    with pytest.raises(ShapeError, match="images are NCHW"):
        net.forward(False, np.zeros((2, 8, 9, 3), np.float32))
    with pytest.raises(ShapeError, match="add the batch axis"):
        net.forward(False, np.zeros((3, 8, 9), np.float32))
    net = FeedForwardNet([Merge("m", input_sample_shape=[(2,), (2,)])])  # takes a list
    one = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(net.forward(False, [one, one]), 2 * one)
    with pytest.raises(ShapeError, match="a list of 2 arrays"):
        net.forward(False, [one])


@pytest.mark.parametrize("x", ["text", 3, None, np.full((2, 5), "x")])
def test_what_is_not_an_array_is_refused(x):
    words = "expected numbers" if isinstance(x, np.ndarray) else "input: expected an array"
    with pytest.raises(ArgumentError, match=words):
        mlp().forward(False, x)


def test_doubles_and_bytes_are_computed_in_the_type_of_the_net():
    net = mlp()
    x = np.arange(10, dtype=np.uint8).reshape(2, 5)
    y = net.forward(False, x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, net.forward(False, x.astype(np.float64)))
    assert net.as_type("float64") is net
    assert net.forward(False, x).dtype == np.float64
    with pytest.raises(ArgumentError, match="a float type"):
        net.as_type("int32")
    assert net.dtype == np.float64


def test_several_outputs_take_a_dict_of_gradients():
    x = Input("x", (3,))
    heads = [Dense(name, k, use_bias=False)(x) for name, k in (("a", 2), ("b", 4))]
    net, data = FeedForwardNet(inputs=x, outputs=heads), batch(5, 3)
    assert list(net.forward(True, data)) == ["a", "b"]
    da, db = batch(5, 2, seed=1), batch(5, 4, seed=2)
    grads = named(net.backward({"b": db, "a": da}))
    np.testing.assert_allclose(grads["a/weight"], data.T @ da, rtol=1e-5)
    np.testing.assert_allclose(grads["b/weight"], data.T @ db, rtol=1e-5)
    net.forward(True, data)
    for bad, words in ((da, "a dict with gradients"), ({"c": da}, "'c'"), ({}, "an empty dict")):
        with pytest.raises((ArgumentError, UnknownNameError), match=words):
            net.backward(bad)
    assert [item.layer for item in net.backward({"a": da})] == ["a"]


def test_a_gradient_may_enter_at_a_layer_named_in_forwards_output():
    net = mlp()
    y = net.forward(True, batch(2, 5), output="tanh1")
    assert list(y) == ["tanh1", "fc1"]
    dy = {name: np.ones_like(part) for name, part in y.items()}
    both, parts = named(net.backward(dy))["fc0/weight"], []
    for name in dy:
        net.forward(True, batch(2, 5), output="tanh1")
        parts.append(named(net.backward({name: dy[name]}))["fc0/weight"])
    np.testing.assert_allclose(both, parts[0] + parts[1], rtol=1e-5)


def test_a_layer_of_several_outputs_at_the_end_gives_and_takes_lists():
    fc, x = Dense("fc", 4, use_bias=False, input_sample_shape=(3,)), batch(2, 3)
    net = FeedForwardNet([fc, nn.Slice("cut", 1, [1])], seed=0)
    assert [part.shape for part in net.forward(True, x)] == [(2, 1), (2, 3)]
    dy = [batch(2, 1), batch(2, 3)]
    _, item = net.backward(dy)
    np.testing.assert_allclose(item.grads[0], x.T @ np.concatenate(dy, 1), rtol=1e-5)
    net.forward(True, x)
    with pytest.raises(ShapeError, match="list of 2 arrays"):
        net.backward(dy[:1])


def test_outputs_that_nobody_reads_get_a_zero_gradient():
    fc, x = Dense("fc", 4, use_bias=False, input_sample_shape=(3,)), batch(2, 3)
    net = FeedForwardNet([fc, nn.Slice("cut", 1, [1, 2])], seed=0)
    net.add(Dummy("middle"), ("cut", 1))
    y = net.forward(True, x)
    assert y.shape == (2, 1)
    *_, item = net.backward(np.ones_like(y))
    expected = np.zeros((3, 4))
    expected[:, 1] = x.sum(0)
    np.testing.assert_allclose(item.grads[0], expected, rtol=1e-6)


# -- graphs --------------------------------------------------------------------------------------


def stem(*layers, seed=2):
    """A Dense, and layers with the names of those that they read."""
    net = FeedForwardNet(seed=seed)
    net.add(Dense("stem", 4, input_sample_shape=(3,)))
    for layer, sources in layers:
        net.add(layer, sources)
    return net


def diamond(order, sources):
    widths = {"a": 2, "b": 5}
    sides = [(Dense(name, widths[name]), "stem") for name in order]
    return stem(*sides, (nn.Concat("both", 1), list(sources)), (Dense("out", 2), None))


def shared():
    one = Dense("one", 4, use_bias=False)
    net = stem((one, "stem"))
    weight = one.params["weight"]
    net.add(Dense("two", 4, use_bias=False, W_specs=weight), "stem")
    net.add(Dense("three", 4, use_bias=False, W_specs=weight), "two")
    net.add(Merge("sum"), ["one", "three"])
    return net


def convolutional():
    parts = [nn.Conv2D("conv", 3, 3, input_sample_shape=(2, 5, 4)), BatchNormalization("bn")]
    parts += [Activation("gelu", "gelu"), Dropout("drop", 0.3), nn.Flatten("flat"), Dense("fc", 3)]
    return FeedForwardNet(parts, seed=2)


GRAPHS = {
    "tied": (tied, (5,)),
    "shared by branches": (shared, (3,)),
    "read by several": (lambda: stem(
        *((Dense(name, 4), "stem") for name in "abc"), (Merge("sum"), ["c", "a", "b", "stem"])),
        (3,)),
    "read twice": (lambda: stem((nn.Concat("twice", 1), ["stem", "stem"])), (3,)),
    "split": (lambda: stem(
        (nn.Split("split", 2), "stem"), (Dense("a", 2), "split"), (Dense("b", 2), "split"),
        (Merge("sum"), ["a", "b"])), (3,)),
    **{f"diamond {order} {sources}": (lambda o=order, s=sources: diamond(o, s), (3,))
       for order in ("ab", "ba") for sources in ("ab", "ba")},
    "convolutional": (convolutional, (2, 5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_go_by_edge(name):
    make, shape = GRAPHS[name]
    check_net_gradients(make(), batch(3, *shape))


def test_graph_errors_come_before_anything_runs():
    net = mlp()
    net.add(Dense("loose", 2), "nobody")
    with pytest.raises(errors.GraphError, match="'nobody'"):
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
    values, again, other = (mlp(seed=seed).param_values() for seed in (5, 5, 6))
    for a, b in zip(values, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (values[0] != other[0]).all()
    longer = mlp((5, 4, 3, 2), seed=5).param_values()
    np.testing.assert_array_equal(longer[0], values[0])
    assert (mlp(seed=None).param_values()[0] != mlp(seed=None).param_values()[0]).all()


def test_random_draws_come_from_the_seed():
    def run(seed):
        net = FeedForwardNet([Dropout("drop", input_sample_shape=(50,))], seed=seed)
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
    net.add(nn.Slice("cut", 1, [1]), "bn")
    net.add(nn.Concat("swap", 1), [("cut", 1), ("cut", 0)])
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
    norm = BatchNormalization("bn", input_sample_shape=(50,))
    net, x = FeedForwardNet([norm, Dropout("drop")], seed=4), batch(6, 50)
    with net.rehearsal():
        rehearsed = net.forward(True, x)
    np.testing.assert_array_equal(net["bn"].params["mean"].value, np.zeros(50))
    np.testing.assert_array_equal(net.forward(True, x), rehearsed)
    assert net["bn"].params["mean"].value.any()
    assert (net.forward(True, x) != rehearsed).any()


def test_exact_clipping_of_a_random_net_equals_clipping_all_gradients():
    def build():
        parts = [Dense("fc1", 8, input_sample_shape=(5,)), BatchNormalization("bn")]
        parts += [Dropout("drop"), Dense("fc2", 3)]
        return FeedForwardNet(parts, loss=SquaredError(), seed=4)

    def passes():
        net.loss.forward(True, net.forward(True, x), y)
        return net.backward(net.loss.backward())

    x, y, net, other = batch(6, 5), batch(6, 3, seed=1), build(), build()
    grads, _ = other.train(x, y)
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads if g is not None))
    found = clip_by_global_norm(SGD(lr=1.0), norm / 2, passes, rehearsal=net.rehearsal)
    assert found == pytest.approx(norm, rel=1e-5)
    for value, start, grad in zip(net.param_values(), build().param_values(), grads, strict=True):
        if grad is not None:
            np.testing.assert_allclose(value, start - grad / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(net["bn"].params["mean"].value, other["bn"].params["mean"].value)


# -- buckets -------------------------------------------------------------------------------------


def chain(*units):
    return mlp((5, *units), seed=4, loss=SquaredError())


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
    made = FeedForwardNet(inputs=order, outputs=nn.Subtract("d")(*order), loss=SquaredError())
    x = [np.full((3, 2), 5, np.float32), np.full((3, 2), 3, np.float32)]
    made.save_model(tmp_path / "net.singanet")
    predictor = made.predictor()
    for predict in (
        made.predict, predictor, lambda x: made.predict(x, batch_size=2),
        lambda x: made.forward(True, x), load_model(tmp_path / "net.singanet").predict
    ):  # fmt: skip
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
    with pytest.raises(CallOrderError, match=r"an offloaded net; call net\.onload"):
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
    with pytest.raises(errors.SignatureError, match=r"^net\.fit: .*received epoch=; .*epochs"):
        net.fit(x, y, epoch=3)
    with pytest.raises(errors.SignatureError, match="received nothing for x"):
        net.fit(y=y)
    with pytest.raises(ArgumentError, match="net.fit, accumulate"):
        net.fit(x, y, accumulate=0)
