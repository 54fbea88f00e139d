"""The graph: edges, the sort, and errors that name what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import ArgumentError, CallOrderError, GraphError, ShapeError
from singanet.graph.nodes import Graph
from singanet.layers import Activation, Concat, Conv1D, Conv2D, Dense, Dummy, Merge, Slice, Split
from singanet.net import FeedForwardNet


def dummy(name, shape=(2,)):
    return Dummy(name, input_sample_shape=shape)


def names(graph):
    return [node.name for node in graph.order()]


def test_the_sort_is_stable_in_the_order_of_adding():
    graph = Graph()
    for name, sources in [("c", ["a", "b"]), ("z", []), ("b", []), ("a", []), ("d", ["c"])]:
        layer = Merge(name) if name == "c" else dummy(name)
        graph.add(layer, [(source, None) for source in sources])
    assert names(graph) == ["z", "b", "a", "c", "d"]


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(
    st.permutations(range(n)),
    st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30),
)))  # fmt: skip
def test_any_acyclic_graph_added_in_any_order_is_sorted(case):
    order, pairs = case
    edges = {(a, b) for a, b in pairs if a < b}
    graph = Graph()
    for k in order:
        sources = sorted(a for a, b in edges if b == k)
        layer = Merge(str(k)) if len(sources) > 1 else dummy(str(k))
        graph.add(layer, [(str(a), None) for a in sources])
    position = {name: i for i, name in enumerate(names(graph))}
    assert len(position) == len(order)
    assert all(position[str(a)] < position[str(b)] for a, b in edges)
    assert all(node.settled for node in graph.nodes.values())


def test_a_cycle_is_named():
    net = FeedForwardNet()
    net.add(dummy("in"))
    net.add(Merge("a"), ["in", "c"])
    net.add(dummy("b"), "a")
    net.add(dummy("c"), "b")
    with pytest.raises(GraphError, match=r"cycle 'a' -> 'b' -> 'c' -> 'a'"):
        net.forward(False, np.zeros((1, 2), np.float32))


def test_a_layer_that_feeds_itself_is_a_cycle():
    net = FeedForwardNet()
    net.add(dummy("a"), "a")
    with pytest.raises(GraphError, match=r"cycle 'a' -> 'a'"):
        net.param_names()


def test_an_unknown_source_is_named_with_the_closest_name():
    net = FeedForwardNet()
    net.add(dummy("conv1"))
    net.add(dummy("relu"), "cnov1")
    with pytest.raises(GraphError, match=r"'relu'.*'cnov1'; did you mean 'conv1'"):
        net.forward(True, np.zeros((1, 2), np.float32))


def test_a_name_used_twice_is_refused_and_the_net_is_as_it_was():
    net = FeedForwardNet()
    net.add(dummy("a"))
    with pytest.raises(GraphError, match="layer 'a'.*the name of another layer"):
        net.add(dummy("a"))
    assert [layer.name for layer in net.layers] == ["a"]
    net.add(dummy("b"))
    assert [layer.name for layer in net.layers] == ["a", "b"]


def test_a_refused_shape_leaves_the_net_as_it_was():
    net = FeedForwardNet()
    net.add(dummy("in", (2, 3)))
    conv = Conv2D("conv", 4)
    with pytest.raises(ShapeError, match=r"layer 'conv'.*\(2, 3\)"):
        net.add(conv)
    assert "conv" not in net
    assert conv.out_shapes is None
    net.add(Dummy("next"))
    assert net["next"].get_output_sample_shape() == (2, 3)


def test_a_shape_refused_further_down_undoes_the_whole_addition():
    net = FeedForwardNet()
    net.add(Conv1D("late", 4), "middle")
    net.add(Activation("more"), "late")
    middle = Dummy("middle", input_sample_shape=(2, 2, 2))
    with pytest.raises(ShapeError, match="layer 'late'"):
        net.add(middle, [])
    assert middle.out_shapes == (2, 2, 2), "as it was made"
    assert "middle" not in net
    net.add(Dummy("middle", input_sample_shape=(5,)), [])
    assert [layer.name for layer in net.layers] == ["middle", "late", "more"]
    assert net["more"].get_output_sample_shape() == (4, 5)


def test_an_input_without_a_shape_is_refused():
    net = FeedForwardNet()
    with pytest.raises(GraphError, match="layer 'fc': expected input_shape"):
        net.add(Dense("fc", 3))


def test_an_empty_net_says_so():
    with pytest.raises(CallOrderError, match="at least one layer"):
        FeedForwardNet().forward(False, np.zeros((1, 1)))


@pytest.mark.parametrize("bad", [3, None, object()])
def test_add_takes_only_layers(bad):
    with pytest.raises(ArgumentError, match=r"net.add: expected a Layer"):
        FeedForwardNet().add(bad)


def test_a_source_of_another_type_is_refused():
    net = FeedForwardNet()
    net.add(dummy("a"))
    with pytest.raises(ArgumentError, match="argument src"):
        net.add(dummy("b"), [3.5])


def test_outputs_go_to_consumers_in_the_order_of_adding():
    net = FeedForwardNet()
    net.add(Slice("cut", 1, [1, 3], input_sample_shape=(6,)))
    for name, width in [("first", 1), ("second", 2), ("third", 3)]:
        assert net.add(Dummy(name), "cut").get_output_sample_shape() == (width,)
    with pytest.raises(
        GraphError, match="'fourth'.*output of 'cut', which has 3; received output 3"
    ):
        net.add(Dummy("fourth"), "cut")
    x = np.arange(6, dtype=np.float32)[None]
    y = net.forward(False, x)
    assert {name: part.tolist() for name, part in y.items()} == {
        "first": [[0]],
        "second": [[1, 2]],
        "third": [[3, 4, 5]],
    }


def test_the_turn_counts_additions_even_when_sources_come_later():
    net = FeedForwardNet()
    net.add(Dummy("second_output", input_sample_shape=(2,)), [])
    net.add(Concat("a", 1), ["cut", "late"])
    net.add(Dummy("b"), "cut")
    net.add(Slice("cut", 1, [1], input_sample_shape=(3,)), [])
    net.add(Dummy("late", input_sample_shape=(4,)), [])
    assert net["a"].get_output_sample_shape() == (5,)
    assert net["b"].get_output_sample_shape() == (2,)


def test_an_output_can_be_named():
    net = FeedForwardNet()
    net.add(Slice("cut", 1, [1], input_sample_shape=(3,)))
    net.add(Dummy("tail"), ("cut", 1))
    net.add(Merge("twice"), [("cut", 1), ("cut", 1)])
    assert net["tail"].get_output_sample_shape() == (2,)
    with pytest.raises(GraphError, match="output 2"):
        net.add(Dummy("none"), ("cut", 2))
    with pytest.raises(GraphError, match="output -1"):
        net.add(Dummy("none"), ("cut", -1))


def test_a_named_output_does_not_shift_the_turns():
    net = FeedForwardNet()
    net.add(Slice("cut", 1, [1], input_sample_shape=(3,)))
    net.add(Dummy("tail"), ("cut", 1))
    assert net.add(Dummy("head"), "cut").get_output_sample_shape() == (1,)


def test_src_takes_layers_names_tuples_and_lists():
    net = FeedForwardNet()
    a = net.add(dummy("a"), [])
    b = net.add(dummy("b"), [])
    net.add(Merge("m1"), [a, "b"])
    net.add(Merge("m2"), (a, b))
    net.add(Split("s", 2), a)
    x = {"a": np.full((1, 2), 1.1, np.float32), "b": np.full((1, 2), 0.9, np.float32)}
    y = net.forward(False, x)
    assert list(y) == ["m1", "m2", "s"]
    np.testing.assert_allclose(y["m1"], 2.0)
    assert len(y["s"]) == 2


@pytest.mark.parametrize("depth", [5000])
def test_a_graph_as_deep_as_this_needs_no_recursion(depth):
    net = FeedForwardNet()
    net.add(Dense("d0", 1, input_sample_shape=(1,)))
    for k in range(1, depth):
        net.add(Dummy(f"d{k}"))
    x = np.ones((2, 1), np.float32)
    y = net.forward(True, x)
    items = list(net.backward(np.ones_like(y)))
    assert len(items) == depth
    assert items[-1].names == ["d0/weight", "d0/bias"]
    np.testing.assert_array_equal(items[-1].grads[0], [[2.0]])
