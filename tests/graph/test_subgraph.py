"""A part of a net as a net of its own: the head is changed."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import Activation, Add, Concat, Conv2D, Dense, Flatten, GlobalAvgPooling2D
from singanet.loss import SquaredError
from singanet.optimizer import SGD

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
    with pytest.raises(ArgumentError, match=r"net.nested\['inner'\].upto\('conv'\)"):
        net.upto("inner/conv")


def test_what_cannot_be_cut(tmp_path):
    net = graph()
    with pytest.raises(ArgumentError, match="at least one layer"):
        net.upto()
    with pytest.raises(UnknownNameError, match="did you mean 'pool'"):
        net.upto("pol")
    large = FeedForwardNet([Dense("large", 200, input_sample_shape=(200,)), Dense("out", 2)])
    large.offload(tmp_path, 1 << 20)
    with pytest.raises(CallOrderError, match="onload"):
        large.upto("large")
