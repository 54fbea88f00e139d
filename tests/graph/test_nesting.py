"""Nets inside nets: one graph, names with the nested net's before them, shared arrays."""

import copy
import json
import pickle
import re
import tempfile
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import FeedForwardNet, Input
from singanet.errors import CallOrderError, ShapeError
from singanet.layers import Activation, BatchNormalization, Concat, Dense, Dropout, Merge, Slice
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.testing import check_net_gradients


def batch(*shape, seed=7):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def block(name="block", size=3, out=4):
    return FeedForwardNet(
        [Dense("a", out, input_sample_shape=(size,)), Activation("t", "tanh"), Dense("b", size)],
        name=name,
    )


def two_in_two_out(name="pair"):
    """(x, y) → (x - 2 y, x + y), which needs its ports in order."""
    x, y = Input("x", (2,)), Input("y", (2,))
    low = Dense("low", 2, use_bias=False)(Concat("both", 1)(x, y))
    high = Merge("high")(x, y)
    net = FeedForwardNet(inputs=[x, y], outputs=[low, high], name=name)
    net["low"].params["weight"].value = np.vstack([np.eye(2), -2 * np.eye(2)]).astype(np.float32)
    return net


def test_a_nested_net_is_inlined_under_its_name():
    net = FeedForwardNet(SquaredError(), seed=0)
    inner = net.add(block())
    net.add(Dense("top", 2))
    assert [layer.name for layer in net.layers] == ["block/a", "block/t", "block/b", "block", "top"]
    assert net.param_names()[:2] == ["block/a/weight", "block/a/bias"]
    assert inner.param_names()[:2] == ["a/weight", "a/bias"]
    assert list(net.nested) == ["block"]
    assert net.nested["block"] is inner
    x = batch(5, 3)
    hidden = np.tanh(x @ inner["a"].params["weight"].value) @ inner["b"].params["weight"].value
    np.testing.assert_allclose(
        net.forward(False, x), hidden @ net["top"].params["weight"].value, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(inner.forward(False, x), hidden, rtol=1e-5, atol=1e-6)


def test_backward_hands_out_each_inner_layer_on_its_own():
    net = FeedForwardNet([block(), Dense("top", 2)], seed=0)
    net.forward(True, batch(5, 3))
    items = [(item.layer, item.names) for item in net.backward(batch(5, 2))]
    assert items == [
        ("top", ["top/weight", "top/bias"]),
        ("block", []),
        ("block/b", ["block/b/weight", "block/b/bias"]),
        ("block/t", []),
        ("block/a", ["block/a/weight", "block/a/bias"]),
    ]
    check_net_gradients(net, batch(5, 3))


def test_arrays_are_shared_with_the_nested_net():
    net = FeedForwardNet([block(), Dense("top", 2)], loss=SquaredError(), seed=0)
    inner, x = net.nested["block"], batch(4, 3)
    before = inner.forward(False, x)
    net.step(x, batch(4, 2), SGD(lr=0.5))
    assert np.abs(inner.forward(False, x) - before).max() > 1e-4
    for own, shared in zip(inner.params(), net.params(), strict=False):
        assert own.value is shared.value
    inner["a"].params["weight"].value = np.zeros((3, 4), np.float32)
    assert not net["block/a"].params["weight"].value.any()


def test_one_net_used_twice_shares_and_yields_once():
    left, right = Input("left", (3,)), Input("right", (3,))
    tower = block()
    net = FeedForwardNet(inputs=[left, right], outputs=Concat("c", 1)(tower(left), tower(right)))
    assert [name for name in net.param_names() if "@" in name] == []
    assert list(net.nested) == ["block", "block@2"]
    x = {"left": batch(4, 3), "right": batch(4, 3, seed=8)}
    y = net.forward(True, x)
    assert [i.layer for i in net.backward(batch(*y.shape)) if i.names] == ["block/b", "block/a"]
    check_net_gradients(net, x)


def test_two_nets_built_alike_start_apart():
    net = FeedForwardNet([block("one"), block("two")], seed=0)
    one, two = (net[f"{name}/a"].params["weight"].value for name in ("one", "two"))
    assert np.abs(one - two).max() > 0.1
    again = FeedForwardNet([block("one"), block("two")], seed=0)
    np.testing.assert_array_equal(again["two/a"].params["weight"].value, two)


def test_several_inputs_and_outputs_keep_their_order():
    a, b = Input("a", (2,)), Input("b", (2,))
    pair = two_in_two_out()
    low, high = pair(b, a)
    net = FeedForwardNet(inputs=[a, b], outputs=[Merge("again")(high, high), low])
    x = {"a": batch(3, 2), "b": batch(3, 2, seed=1)}
    y = net.forward(True, x)
    np.testing.assert_allclose(y["again"], 2 * (x["a"] + x["b"]), rtol=1e-6)
    found = y["pair_0"]
    np.testing.assert_allclose(found, x["b"] - 2 * x["a"], rtol=1e-6)


def test_inputs_may_be_declared_in_another_order_than_made():
    first, second = Input("first", (2,)), Input("second", (3,))
    joined = Concat("c", 1)(first, second)
    net = FeedForwardNet(inputs=[second, first], outputs=joined, name="n")
    made = net(Input("three", (3,)), Input("two", (2,)))
    assert made.shape == (5,)
    with pytest.raises(ShapeError, match=r"net 'n'.*\(3,\), \(2,\).*\[\(2,\), \(3,\)\]"):
        net(Input("x", (2,)), Input("y", (3,)))


def test_an_output_that_is_used_inside_as_well_is_an_output():
    x = Input("x", (3,))
    hidden = Dense("hidden", 4)(x)
    net = FeedForwardNet(inputs=x, outputs=[hidden, Dense("top", 2)(hidden)], seed=0, name="n")
    y = net.forward(True, batch(5, 3))
    assert {name: part.shape for name, part in y.items()} == {"hidden": (5, 4), "top": (5, 2)}
    dy = {"hidden": batch(5, 4), "top": batch(5, 2)}
    grads = {n: g for item in net.backward(dy) for n, g in zip(item[0], item[2], strict=True)}
    total = dy["hidden"] + dy["top"] @ net["top"].params["weight"].value.T
    np.testing.assert_allclose(grads["hidden/weight"], batch(5, 3).T @ total, rtol=1e-4, atol=1e-5)
    assert [s.shape for s in net(Input("z", (3,)))] == [(4,), (2,)]


def test_outputs_of_an_added_net_go_to_consumers_in_turn_or_by_index():
    net = FeedForwardNet(seed=0)
    cut = FeedForwardNet([Slice("cut", 1, [1], input_sample_shape=(3,))], name="n")
    net.add(cut)
    net.add(Dense("one", 2), cut)
    net.add(Dense("two", 2), cut)
    net.add(Dense("again", 2), (cut, 0))
    shapes = {name: net[name].params["weight"].shape for name in ("one", "two", "again")}
    assert shapes == {"one": (1, 2), "two": (2, 2), "again": (1, 2)}


def test_layers_inside_can_be_read_from_outside():
    net = FeedForwardNet([block()], seed=0)
    net.add(Dense("skip", 2), "block/a")
    y = net.forward(False, batch(5, 3), output="block/t")
    assert {name: part.shape[1] for name, part in y.items()} == {
        "block": 3,
        "block/t": 4,
        "skip": 2,
    }


NESTING = st.recursive(
    st.just("layer"), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6
)


def layer_of(k, name):
    """Any of four kinds, one with running state and one that draws."""
    kinds = (
        lambda: Dense(name, 2 + k % 3),
        lambda: Activation(name, "tanh"),
        lambda: BatchNormalization(name),
        lambda: Dropout(name, 0.3),
    )
    return kinds[k % 4]()


def nested_and_flat(shape):
    """A net nested as ``shape`` says, and the same layers in one list."""
    flat = []

    def build(part, path):
        if part == "layer":
            flat.append(f"{path}l{len(flat)}")
            return layer_of(len(flat) - 1, f"l{len(flat) - 1}")
        name = f"n{len(path)}_{len(flat)}"
        return FeedForwardNet([build(each, f"{path}{name}/") for each in part], name=name)

    nested = FeedForwardNet([build(shape, "")], loss=SquaredError(), seed=0)
    net = FeedForwardNet(list(map(layer_of, count(), flat)), loss=SquaredError(), seed=0)
    assert nested.build((3,)) == net.build((3,))
    return nested, net


@given(NESTING, st.sampled_from(["float32", "float64"]))
def test_any_nesting_is_the_flat_net(shape, kind):
    """By name and seed alone, so that both start alike: passes, steps, files, types."""
    nested, flat = nested_and_flat(shape)
    for net in (nested, flat):
        net.as_type(kind)
    inner = nested
    while inner.nested:
        (inner, *_) = inner.nested.values()
        assert all(param.value.dtype == kind for param in inner.params())
    assert nested.param_names() == flat.param_names()
    x = batch(4, 3).astype(kind)
    y = flat.forward(True, x)
    np.testing.assert_array_equal(nested.forward(True, x), y)
    dy = batch(*y.shape, seed=1).astype(kind)
    walks = [[item for item in net.backward(dy) if item.names] for net in (flat, nested)]
    for one, two in zip(*walks, strict=True):
        assert one.names == two.names
        for a, b in zip(one.grads, two.grads, strict=True):
            np.testing.assert_array_equal(a, b)
    flat.programs.enabled = False
    rules = [SGD(lr=0.1, momentum=0.9) for _ in range(2)]
    for _ in range(3):
        one, two = (net.step(x, dy, rule) for net, rule in zip((flat, nested), rules, strict=True))
        assert one == two
    again = through_json(nested)
    again.as_type(kind)
    with tempfile.TemporaryDirectory() as folder:
        nested.save(f"{folder}/nested.npz")
        assert again.load(f"{folder}/nested.npz").complete
        for name, part in nested.nested.items():
            part.save(f"{folder}/part.npz")
            assert part.load(f"{folder}/part.npz").complete, name
    for net in (flat, again):
        for a, b in zip(net.params(), nested.params(), strict=True):
            assert a.name == b.name
            np.testing.assert_array_equal(a.value, b.value)


def test_a_source_may_be_a_net_added_later():
    net = FeedForwardNet(seed=0)
    net.add(Dense("top", 2), "block")
    net.add(block(), [])
    assert net.forward(False, batch(5, 3)).shape == (5, 2)


# -- a list without a shape ----------------------------------------------------------------------


def shapeless(name="head"):
    return FeedForwardNet([Dense("a", 4), Dense("b", 2)], name=name)


def test_a_list_without_a_shape_takes_that_of_its_place():
    head = shapeless()
    net = FeedForwardNet([Dense("fc", 6, input_sample_shape=(3,)), head], seed=0)
    assert net["head/a"].params["weight"].shape == (6, 4)
    assert head.forward(False, batch(2, 6)).shape == (2, 2)


def test_a_list_without_a_shape_can_be_built():
    net = FeedForwardNet([shapeless()])
    with pytest.raises(CallOrderError, match=r"layer, 'head', has none.*build\(sample_shape\)"):
        net.summary(batch_size=2)
    assert re.search(r"^head/a +Dense +not built", net.summary(width=0), re.M)
    for use in (lambda: net.add(Dense("c", 1)), lambda: net["head/a"], net.to_config, net.ports):
        with pytest.raises(CallOrderError, match="a known input shape"):
            use()
    assert net.build((5,)) == (2,)
    assert net.build((5,)) == (2,)
    assert net.forward(False, batch(2, 5)).shape == (2, 2)
    with pytest.raises(ShapeError, match=r"\(5,\).*received \(4,\)"):
        net.build((4,))


@pytest.mark.parametrize("shape", [(), [(2,), (2,)], "wide", None, 5])
def test_a_shape_that_does_not_fit_leaves_the_list_waiting(shape):
    inner = shapeless()
    net = FeedForwardNet([inner])
    with pytest.raises(ShapeError):
        net.build(shape)
    assert net.build((5,)) == (2,)
    assert inner.forward(False, batch(1, 5)).shape == (1, 2)


# -- settings of nested nets ---------------------------------------------------------------------


def test_trainable_is_shared():
    net = FeedForwardNet([block(), Dense("top", 2)], seed=0)
    inner = net.nested["block"]
    inner.trainable = False
    assert not inner.trainable
    assert net.trainable
    net.forward(True, batch(2, 3))
    assert [i.layer for i in net.backward(batch(2, 2))] == ["top"]
    net["block/b"].trainable = True
    assert inner["b"].trainable


def test_freezing_before_a_nested_net_leaves_it_trained():
    first = Dense("first", 3, input_sample_shape=(3,))
    net = FeedForwardNet([first, block(), Dense("top", 2)], seed=0)
    net.freeze(net.nested["block"])
    assert net.frozen() == ["first"]
    net.unfreeze("block")
    net.freeze("block/b")
    assert net.frozen() == ["first", "block/a", "block/t"]
    net.unfreeze()
    net.freeze("top")
    assert net.frozen() == ["first", "block/a", "block/t", "block/b", "block"]


def test_a_shared_parameter_has_one_name_in_the_net():
    """Drawn before the net around exists, the layer can only name the inner parameter."""
    x = Input("x", (3,))
    tower = block()
    tied = Dense("tied", 4, W_specs=tower["b"].params["weight"], W_transpose=True)
    net = FeedForwardNet(inputs=x, outputs=tied(tower(x)), seed=0)
    assert net.param_names() == [
        "block/a/weight", "block/a/bias", "block/b/weight", "block/b/bias", "tied/bias",
    ]  # fmt: skip
    net.forward(True, batch(2, 3))
    names = [name for item in net.backward(batch(2, 4)) for name in item.names]
    assert sorted(names) == sorted(net.param_names())
    check_net_gradients(net, batch(2, 3))
    assert tower.param_names() == ["a/weight", "a/bias", "b/weight", "b/bias"]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
def test_a_copied_net_shares_within_itself_alone(copied):
    net = FeedForwardNet([block(), Dense("top", 3)], seed=0, name="whole")
    x = batch(2, 3)
    y = net.forward(False, x)
    other = copied(net)
    np.testing.assert_array_equal(other.forward(False, x), y)
    other["block/a"].params["weight"].value[...] = 0
    assert not other.nested["block"]["a"].params["weight"].value.any()
    np.testing.assert_array_equal(net.forward(False, x), y)
    other._add_node(other.nested["block"], [("top", None)], "block@2")
    assert other.param_names() == net.param_names()


def test_the_summary_and_the_picture_show_the_inner_layers():
    net = FeedForwardNet([block(), Dense("top", 2)], seed=0)
    assert "block/a" in net.summary()
    assert "block/a" in net.plot()
    assert net.summary(batch_size=4)


# -- files and descriptions ----------------------------------------------------------------------


def through_json(net):
    return FeedForwardNet.from_config(json.loads(json.dumps(net.to_config())), seed=net.seed)


def test_descriptions_keep_the_nesting():
    left, right = Input("left", (2,)), Input("right", (2,))
    pair, tower = two_in_two_out(), FeedForwardNet([block("in", 2)], name="tower")
    low, high = pair(right, left)
    outputs = [Concat("c", 1)(tower(low), tower(high)), tower(left)]
    net = FeedForwardNet(inputs=[right, left], outputs=outputs, seed=4, name="all")
    net.freeze("c")
    net["pair/low"].trainable = False
    other = through_json(net)
    assert other.to_config() == net.to_config()
    assert other.name == "all"
    assert list(other.nested) == ["pair", "tower", "tower@2", "tower@3"]
    assert other.nested["tower"] is other.nested["tower@3"]
    assert other.param_names() == net.param_names()
    assert other.frozen() == net.frozen()
    assert not other["pair/low"].trainable
    for a, b in zip(net.params(), other.params(), strict=True):
        b.value[...] = a.value
    x = {"left": batch(3, 2), "right": batch(3, 2, seed=2)}
    for name, part in net.forward(False, x).items():
        np.testing.assert_array_equal(other.forward(False, x)[name], part)


def test_a_description_keeps_a_parameter_shared_with_a_nested_net():
    x, tower = Input("x", (3,)), block()
    tied = Dense("tied", 4, W_specs=tower["b"].params["weight"], W_transpose=True)
    net = FeedForwardNet(inputs=x, outputs=tied(tower(x)), seed=0)
    other = through_json(net)
    assert other.param_names() == net.param_names()
    assert other.to_config() == net.to_config()


def test_a_shape_that_differs_is_refused_and_the_net_is_as_it_was():
    net = FeedForwardNet([Dense("fc", 5, input_sample_shape=(3,))], seed=0)
    inner = block()
    with pytest.raises(ShapeError, match=r"layer 'block/a'.*\(3,\).*\(5,\)"):
        net.add(inner)
    assert list(net.nested) == []
    net.add(Dense("top", 2))
    assert net.forward(False, batch(1, 3)).shape == (1, 2)
    inner.add(Dense("more", 1))
