"""Losses as layers: their gradients, and what their symbols refuse."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, CallOrderError, GraphError, ShapeError
from singanet.layers import Add, Dense, StopGradient
from singanet.loss import Hinge, Huber, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("loss", "labels"),
    [(SoftmaxCrossEntropy(), True), (SigmoidCrossEntropy(), False), (Huber(), False)],
)
def test_numbers_and_gradients_are_those_of_the_loss(loss, labels, weighted, half):
    x, w = Input("x", (5,)), Input("w", ())
    y = Input("y", (), dtype="int64") if labels else Input("y", (5,))
    out = loss(x, y, w if weighted else None)
    net = FeedForwardNet(inputs=[x, y, w] if weighted else [x, y], outputs=out)
    feed = {
        "x": RNG.standard_normal((6, 5)).astype(np.float32),
        "y": RNG.integers(0, 5, 6) if labels else RNG.random((6, 5)).astype(np.float32),
    }
    weights = RNG.random(6).astype(np.float32)
    if weighted:
        feed["w"] = weights
    if half:
        net.as_type("float16")
        feed = {k: v.astype(np.float16).astype(v.dtype) for k, v in feed.items()}
        weights = weights.astype(np.float16).astype(np.float32)
    wanted = loss.forward(True, feed["x"], feed["y"], *[weights] * weighted)
    (name,) = [layer.name for layer in net.layers if layer.name not in feed]
    found = net.forward(False, feed)
    assert np.allclose(found, wanted, rtol=1e-3 if half else 1e-6)
    dys = np.full(6, 0.5 / 6, net.dtype)
    grad = net.gradients(name, "x", feed, dys=dys)["x"]
    assert np.allclose(grad, loss.backward() / 2, rtol=1e-2 if half else 1e-5, atol=1e-4 * half)


def test_weights_of_positions():
    loss, x, y, w = SquaredError(), Input("x", (5,)), Input("y", (5,)), Input("w", (5,))
    net = FeedForwardNet(inputs=[x, y, w], outputs=loss(x, y, w, name="it"))
    feed = {name: RNG.random((6, 5), np.float32) for name in "xyw"}
    wanted = loss.forward(True, feed["x"], feed["y"], feed["w"])
    assert np.allclose(net.forward(False, feed), wanted)
    grad = net.gradients("it", "x", feed, dys=np.full(6, 1 / 6, np.float32))["x"]
    assert np.allclose(grad, loss.backward(), atol=1e-7)


@pytest.mark.parametrize("ignored", [0, 2, 3, 6])
def test_labels_that_are_ignored_weigh_nothing(ignored):
    loss, x = SoftmaxCrossEntropy(ignore_index=-1), Input("x", (5,))
    y = Input("y", (), dtype="int64")
    net = FeedForwardNet(inputs=[x, y], outputs=loss(x, y, name="it"))
    feed = {"x": RNG.standard_normal((6, 5)).astype(np.float32), "y": RNG.integers(0, 5, 6)}
    feed["y"][:ignored] = -1
    wanted = loss.forward(True, feed["x"], feed["y"])
    assert np.allclose(net.forward(False, feed).mean(), wanted.mean())
    grad = net.gradients("it", "x", feed, dys=np.full(6, 1 / 6, np.float32))["x"]
    assert np.allclose(grad, loss.backward(), atol=1e-7)


def test_two_of_one_class_stand_in_one_net():
    x, y = Input("x", (2,)), Input("y", (2,))
    total = Add("total")(SquaredError()(x, y), SquaredError()(y, x), Hinge()(x, y))
    net = FeedForwardNet(inputs=[x, y], outputs=total)
    names = [node.name for node in net.nodes()]
    assert names == ["x", "y", "squared_error", "squared_error_1", "hinge", "total"]


def test_symbols_of_losses_refuse_what_would_train_wrongly():
    x, y = Input("x", (2,)), Input("y", (2,))

    class DoubledError(SquaredError):
        def backward(self):
            return super().backward() * 2

    for kind, words, make in (
        (ArgumentError, "mean", lambda: SquaredError("sum")(x, y)),
        (CallOrderError, "compute and gradient", lambda: DoubledError()(x, y)),
        (GraphError, "StopGradient", lambda: SquaredError()(x, Dense("t", 2)(x))),
        (
            GraphError,
            "StopGradient",
            lambda: SquaredError()(
                x, FeedForwardNet([Dense("u", 2, input_sample_shape=(2,))], name="n")(x)
            ),
        ),
        (ArgumentError, "symbols", lambda: SquaredError()(np.ones((1, 2)), np.ones((1, 2)))),
        (ShapeError, "one weight a sample", lambda: SquaredError()(x, y, Input("w", (3,)))),
    ):
        with pytest.raises(kind, match=words):
            make()
    SquaredError()(x, StopGradient("s")(Dense("v", 2)(x)), name="fine")
