"""The graph of a net: its order, how it is built, and parts of it."""

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, CallOrderError, GraphError, ShapeError, UnknownNameError
from singanet.graph.nodes import Graph
from singanet.layers import (
    Activation,
    Add,
    Concat,
    Conv1D,
    Conv2D,
    Dense,
    Dummy,
    Embedding,
    Flatten,
    GlobalAvgPooling2D,
    Merge,
    Slice,
    Split,
)
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD


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


def test_outputs_go_to_consumers_in_the_order_of_adding():
    net = FeedForwardNet()
    net.add(Slice("cut", 1, [1, 3], input_sample_shape=(6,)))
    for name, width in [("first", 1), ("second", 2), ("third", 3)]:
        assert net.add(Dummy(name), "cut").get_output_sample_shape() == (width,)
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


@pytest.mark.parametrize("depth", [3000])
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


def layers():
    return [Flatten("flat", input_sample_shape=(2, 3)), Dense("fc", 4), Activation("r")]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_is_a_chain(kind):
    made = FeedForwardNet(kind(layers()), loss=SoftmaxCrossEntropy(), metric=Accuracy(), seed=1)
    added = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=1)
    for layer in layers():
        added.add(layer)
    x = np.random.default_rng(0).random((5, 2, 3), np.float32)
    np.testing.assert_array_equal(made.forward(False, x), added.forward(False, x))
    assert made.to_config() == added.to_config()
    made.add(Dense("top", 2))
    assert made.forward(False, x).shape == (5, 2)


def test_a_list_may_begin_with_an_input_as_in_keras():
    ids = np.array([[1, 2, 0]])
    listed = FeedForwardNet(
        [Input((3,), dtype="int64"), Embedding("e", 4, 2), Dense("d", 5)], seed=0
    )
    added = FeedForwardNet(seed=0)
    for part in (Input((3,), dtype="int64"), Embedding("e", 4, 2), Dense("d", 5)):
        assert added.add(part) is part
    np.testing.assert_array_equal(listed.forward(False, ids), added.forward(False, ids))
    assert listed.forward(False, ids).shape == (1, 3, 5)
    assert FeedForwardNet.from_config(listed.to_config()).to_config() == listed.to_config()


def test_singas_order_of_arguments_stays():
    loss, metric = SquaredError(), Accuracy()
    for net in (FeedForwardNet(loss, metric), FeedForwardNet(loss=loss, metric=metric)):
        assert (net.loss, net.metric) == (loss, metric)
    several = MultiLoss({"a": SquaredError()})
    assert FeedForwardNet(several).loss is several
    assert FeedForwardNet(None, metric).metric is metric
    assert FeedForwardNet([]).add(layers()[0])


def test_a_list_that_does_not_fit_leaves_its_layers_as_they_were():
    parts = layers()
    parts.append(Flatten("again"))
    parts.append(Dense("fc", 3))
    with pytest.raises(GraphError, match="layer 'fc'"):
        FeedForwardNet(parts)
    assert all(layer.out_shapes is None for layer in parts if not layer.input_sample_shape)
    wrong = [Dense("fc", 4, input_sample_shape=(2,)), Dense("b", 2), Flatten("f", axis=9)]
    with pytest.raises((ShapeError, ArgumentError)):
        FeedForwardNet(wrong)
    assert list(wrong[0].params) == ["weight", "bias"], "as it was made"
    assert all(layer.out_shapes is None and not layer.params for layer in wrong[1:])


def test_layers_stand_in_topological_order_whatever_the_order_of_adding():
    net = FeedForwardNet()
    net.add(Dense("last", 2), src="first")
    net.add(Dense("first", 3, input_sample_shape=(4,)), src=[])
    net.add(Dense("other", 2), src="first")
    assert [layer.name for layer in net.layers] == ["first", "last", "other"]


X = np.random.default_rng(0).standard_normal((3, 1, 6, 6)).astype(np.float32)
SIZE = np.arange(6, dtype=np.float32).reshape(3, 2)


def graph():
    """Two inputs, the later one named first, and a layer that two others read."""
    image, size = Input("image", (1, 6, 6)), Input("size", (2,))
    low = Activation("low")(Conv2D("conv", 4, 3)(image))
    seen = GlobalAvgPooling2D("pool")(Add("add")(low, Conv2D("more", 4, 3)(low)))
    both = Concat("both", 1)(size, seen)
    return FeedForwardNet(inputs=[size, image], outputs=Dense("old", 5)(both), seed=0)


def test_a_graph_from_a_file_gets_another_head(tmp_path):
    singanet.onnx.save(graph(), tmp_path / "old.onnx")
    loaded = singanet.onnx.load(tmp_path / "old.onnx")
    last = loaded.layers[-2].name
    want = loaded.forward(False, [SIZE, X], last)[last]
    made = loaded.upto(last, seed=3)
    np.testing.assert_array_equal(made.predict([SIZE, X]), want)
    made.add(Dense("new", 2))
    assert made.ports() == (["size", "image"], [("new", 0)])
    new = made["new"].params
    np.testing.assert_allclose(
        made.predict([SIZE, X]), want @ new["weight"].value + new["bias"].value, rtol=1e-6
    )
    made.compile(SGD(lr=0.1), SquaredError())
    made.fit([SIZE, X], np.ones((3, 2), np.float32), epochs=3, verbose=False)
    made.save_model(tmp_path / "new.singanet")
    again = singanet.load_model(tmp_path / "new.singanet")
    np.testing.assert_array_equal(again.predict([SIZE, X]), made.predict([SIZE, X]))
    assert "old" not in made
    assert loaded.predict([SIZE, X]).shape == (3, 5)


def test_both_nets_share_their_layers():
    net = graph()
    made = net.upto("pool")
    assert made.ports() == (["image"], [("pool", 0)])
    assert made["conv"] is net["conv"]
    assert "more" in made
    assert "size" not in made
    before = net["conv"].params["weight"].value.copy()
    made.loss = SquaredError()
    made.step(X, np.ones((3, 4), np.float32), SGD(lr=0.1))
    assert not np.array_equal(before, net["conv"].params["weight"].value)
    np.testing.assert_array_equal(
        made.predict(X), net.forward(False, {"image": X, "size": SIZE}, "pool")["pool"]
    )


def test_several_ends_and_what_is_added_behind_the_last():
    made = graph().upto("pool", "conv")
    assert made.ports().outputs == [("pool", 0), ("conv", 0)]
    made.add(Flatten("flat"))
    assert made.build((1, 6, 6)) == [(4,), (144,)]


def test_nested_nets_are_kept_whole():
    inner = FeedForwardNet([Conv2D("conv", 2, 3), Flatten("flat")], name="inner", seed=1)
    net = FeedForwardNet([Activation("in", input_sample_shape=(1, 6, 6)), inner, Dense("out", 2)])
    made = net.upto("inner")
    assert made.nested["inner"] is inner
    assert made.param_names() == ["inner/conv/weight", "inner/conv/bias"]
    np.testing.assert_array_equal(made.predict(X), net.forward(False, X, "inner")["inner"])


# -- what is refused ------------------------------------------------------------------------


def dense(name="fc", size=3):
    return Dense(name, 3, input_sample_shape=(size,))


def block(name="block"):
    return FeedForwardNet([Dense("a", 4, input_sample_shape=(3,)), Dense("b", 3)], name=name)


def net_of(*added):
    """A net of layers, each with the sources after it or alone."""
    net = FeedForwardNet()
    for each in added:
        net.add(*each) if isinstance(each, tuple) else net.add(each)
    return net


def cut():
    net = net_of(Slice("cut", 1, [1, 3], input_sample_shape=(6,)))
    for name in ("first", "second", "third"):
        net.add(Dummy(name), "cut")
    return net


def chained():
    return net_of(Flatten("flat", input_sample_shape=(2, 3)), Dense("fc", 4))


def nested():
    return FeedForwardNet([block(), Dense("top", 2)])


def offloaded(net):
    with tempfile.TemporaryDirectory() as folder:
        net.offload(folder, 1 << 20)
        net.upto("large")


def drawn(net):
    net(Input("x", (3,)))
    net.add(Dense("more", 1))


def pair():
    x, y = Input("x", (2,)), Input("y", (2,))
    return FeedForwardNet(inputs=[x, y], outputs=Merge("sum")(x, y), name="pair")


def run(net):
    return net.forward(False, np.zeros((1, 2), np.float32))


REFUSED = [
    # Graphs.
    (lambda: net_of(dummy("in"), (Merge("a"), ["in", "c"]), (dummy("b"), "a"), (dummy("c"), "b")),
     run, GraphError, "cycle 'a' -> 'b' -> 'c' -> 'a'"),
    (lambda: net_of((dummy("a"), "a")), lambda net: net.param_names(), GraphError,
     "cycle 'a' -> 'a'"),
    (lambda: net_of(dummy("conv1"), (dummy("relu"), "cnov1")), run, GraphError,
     r"'relu'.*'cnov1'; did you mean 'conv1'"),
    (lambda: net_of(dummy("a")), lambda net: net.add(dummy("a")), GraphError,
     "layer 'a'.*the name of another layer"),
    (net_of, lambda net: net.add(Dense("fc", 3)), GraphError,
     "layer 'fc': expected input_shape"),
    (net_of, run, CallOrderError, "at least one layer"),
    *((net_of, lambda net, bad=bad: net.add(bad), ArgumentError, "net.add: expected a Layer")
      for bad in (3, None, object())),
    (lambda: net_of(dummy("a")), lambda net: net.add(dummy("b"), [3.5]), ArgumentError,
     "argument src"),
    (lambda: net_of(dummy("in", (2, 3))), lambda net: net.add(Conv2D("conv", 4)), ShapeError,
     r"layer 'conv'.*\(2, 3\)"),
    (cut, lambda net: net.add(Dummy("fourth"), "cut"), GraphError,
     "'fourth'.*output of 'cut', which has 3; received output 3"),
    (cut, lambda net: net.add(Dummy("none"), ("cut", 3)), GraphError, "output 3"),
    (cut, lambda net: net.add(Dummy("none"), ("cut", -1)), GraphError, "output -1"),
    (chained, lambda net: net["fcc"], UnknownNameError, "did you mean 'fc'"),
    # What a net is made of.
    *((net_of, lambda net, given=given: FeedForwardNet(*given), ArgumentError, words)
      for given, words in [
        ((Dense("fc", 2),), r"list of layers, or a loss.*received a Dense.*put it into a list"),
        ((FeedForwardNet(name="n"),), "received a FeedForwardNet.*put it into a list"),
        ((3,), "received a int"),
        (("mse",), "received a str"),
        ((Dense,), "the class Dense"),
        ((SoftmaxCrossEntropy,), "the class SoftmaxCrossEntropy"),
        ((None, Accuracy), "the class Accuracy"),
        ((Accuracy(),), "list of layers, or a loss.*received a Accuracy"),
        (([dense()], SquaredError()), "argument metric.*by name"),
        (([dense(), 3],), "argument layers.*received int"),
        (([dense(), None],), "argument layers.*NoneType"),
        (((dense(), [Dense("b", 2)]),), "received list"),
        (([Dense("d", 2)(Input((3,)))],), "received Symbol"),
      ]),
    (net_of, lambda net: FeedForwardNet(SquaredError(), loss=SquaredError()), ArgumentError,
     "one loss"),
    (net_of, lambda net: FeedForwardNet([dense()], inputs=Input("x", (3,)), outputs=Input("y", ())),
     ArgumentError, "inputs= and outputs="),
    *((net_of, lambda net, name=name: FeedForwardNet(name=name), ArgumentError, "argument name")
      for name in ("", ".", "..", "a/b", 3, b"x")),
    # Parts.
    (graph, lambda net: net.upto(), ArgumentError, "at least one layer"),
    (graph, lambda net: net.upto("pol"), UnknownNameError, "did you mean 'pool'"),
    (nested, lambda net: net.upto("block/a"), ArgumentError,
     r"net.nested\['block'\].upto\('a'\)"),
    (lambda: net_of(Dense("large", 200, input_sample_shape=(200,)), Dense("out", 2)), offloaded,
     CallOrderError, "onload"),
    # Nested nets.
    *((net_of, lambda net, nest=nest: nest(FeedForwardNet([dense()])), ArgumentError,
       r"expected a name.*name='features'")
      for nest in (lambda n: FeedForwardNet().add(n), lambda n: FeedForwardNet([n]),
                   lambda n: n(Input("x", (3,))))),
    (lambda: net_of(dense("block")), lambda net: net.add(block()), GraphError,
     "layer 'block'.*name of another layer"),
    (lambda: net_of(dense("block/b")), lambda net: net.add(block()), GraphError,
     "layer 'block/b'.*name of another layer"),
    (nested, lambda net: net.add(net.nested["block"]), GraphError, "call it on symbols"),
    (net_of, lambda net: FeedForwardNet([block(), block()]), GraphError, "layer 'block'"),
    (block, lambda net: net.add(net), GraphError, "nested in itself"),
    (block, lambda net: net.add(FeedForwardNet([net], name="outer")), GraphError,
     "contains the net 'block'"),
    (lambda: net_of(Dense("fc", 5, input_sample_shape=(3,))), lambda net: net.add(block()),
     ShapeError, r"layer 'block/a'.*\(3,\).*\(5,\)"),
    (lambda: net_of(dense()), lambda net: net.add(pair()), ArgumentError,
     "expected 2 sources, for its inputs 'x', 'y'"),
    (nested, lambda net: net.nested["block"].add(Dense("more", 1)), CallOrderError,
     "net 'block'.*nested in another"),
    (block, drawn, CallOrderError, "net 'block'"),
    (block, lambda net: net(np.zeros((2, 3))), ArgumentError, "expected symbols.*ndarray"),
    (net_of, lambda net: net.add(FeedForwardNet([Dense("a", 4)], name="head"), "later"), GraphError,
     "net 'head': expected one source whose shape is known"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "act", "error", "words"), REFUSED)
def test_refusals_leave_the_net_as_it_was(make, act, error, words):
    net = make()
    before = sorted(net._graph.nodes), list(net.nested)
    with pytest.raises(error, match=words) as caught:
        act(net)
    assert len(str(caught.value)) < 400
    assert (sorted(net._graph.nodes), list(net.nested)) == before
