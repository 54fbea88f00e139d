"""Losses as layers, and in float16."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet import loss as losses
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

    nested = FeedForwardNet([Dense("u", 2, input_sample_shape=(2,))], name="n")

    class DoubledError(SquaredError):
        def backward(self):
            return super().backward() * 2

    for kind, words, make in (
        (ArgumentError, "mean", lambda: SquaredError("sum")(x, y)),
        (CallOrderError, "compute and gradient", lambda: DoubledError()(x, y)),
        (GraphError, "StopGradient", lambda: SquaredError()(x, Dense("t", 2)(x))),
        (GraphError, "StopGradient", lambda: SquaredError()(x, nested(x))),
        (ArgumentError, "symbols", lambda: SquaredError()(np.ones((1, 2)), np.ones((1, 2)))),
        (ShapeError, "one weight a sample", lambda: SquaredError()(x, y, Input("w", (3,)))),
    ):
        with pytest.raises(kind, match=words):
            make()
    SquaredError()(x, StopGradient("s")(Dense("v", 2)(x)), name="fine")


# -- float16 --------------------------------------------------------------------------------------

HALVES = np.random.default_rng(0)
PIXELS = (2, 1, 200, 200)
# More elements than float16 can count.
LARGE = (HALVES.standard_normal(PIXELS) * 20000).clip(-60000, 60000)
SCORES = HALVES.standard_normal((4, 5)) * 300
CHANCES = HALVES.random(PIXELS)
SHARES = np.full((3, 5), 0.2)
LABELS = HALVES.integers(0, 5, 4)
YES = HALVES.integers(0, 2, PIXELS)
LOGS = -700 * HALVES.random((3, 3)) - 1
VECTORS, TARGETS = HALVES.standard_normal((2, 3, 500)).clip(-3, 3) * 20000

HALF = {
    "BinaryCrossEntropy": (CHANCES, YES),
    "CategoricalCrossEntropy": (SHARES, LABELS[:3]),
    "CosineSimilarity": (VECTORS, TARGETS),
    "CTC": (HALVES.standard_normal((2, 9, 5)) * 9, np.array([[1, 2], [3, 3]])),
    "DPO": (LOGS[:, :2], LOGS[::-1, :2].copy()),
    "Dice": (CHANCES, YES),
    "GaussianNLL": (HALVES.standard_normal((3, 400)), HALVES.standard_normal((3, 200))),
    "Hinge": (LARGE, 2 * YES - 1),
    "Huber": (LARGE, -LARGE / 3),
    "InfoNCE": (HALVES.standard_normal((3, 2, 500)) * 900, np.ones(3)),
    "KTO": (LOGS[:, :2], np.column_stack([LOGS[::-1, :2], [1, 0, 1]])),
    "KLDivergence": (SHARES, SHARES),
    "MarginRanking": (SCORES[:, :2] * 100, np.array([1, -1, -1, 1])),
    "MeanAbsoluteError": (LARGE, -LARGE / 3),
    "MeanSquaredError": (LARGE, -LARGE / 3),
    "MultipleNegativesRanking": (HALVES.standard_normal((3, 4, 500)) * 900, np.ones(3)),
    "ORPO": (LOGS, 100 + np.arange(9).reshape(3, 3)),
    "Poisson": (CHANCES + 1, 100 * YES),
    "RewardRanking": (LARGE.reshape(-1, 2), np.zeros(LARGE.size // 2)),
    "SigmoidCrossEntropy": (LARGE, YES),
    "SigmoidFocal": (LARGE / 1000, YES),
    "SmoothL1": (LARGE, -LARGE / 3),
    "SoftmaxCrossEntropy": (SCORES, LABELS),
    "SoftmaxFocal": (SCORES / 100, LABELS),
    "SquaredError": (LARGE, -LARGE / 3),
    "TripletMargin": (HALVES.standard_normal((3, 3, 500)) * 900,
        np.array([1, -1, 1])),
    "Tversky": (CHANCES, YES),
}  # fmt: skip


def test_every_loss_has_a_case_of_float16():
    assert {*HALF} == {*losses.__all__} - {
        "Loss",
        "MultiLoss",
        "HeadLoss",
        "from_function",
        "TokenLogProbabilities",
    }


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_float16_is_computed_in_float32(name, reduction):
    make, (x, y) = getattr(losses, name), HALF[name]
    x = x.astype(np.float16)
    y = y.astype(np.float16) if y.dtype.kind == "f" else y
    one, other = make(reduction=reduction), make(reduction=reduction)
    found = one.forward(True, x, y)
    wide = y.astype(np.float32) if y.dtype.kind == "f" else y
    exact = other.forward(True, x.astype(np.float32), wide)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, exact)
    dx = one.backward()
    assert dx.dtype == np.float16
    np.testing.assert_array_equal(dx, other.backward().astype(np.float16))
