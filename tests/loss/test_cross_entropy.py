"""Cross-entropies of scores and of probabilities: their ends, peers and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import singanet
from singanet import Executor, Input
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import Activation, Dense, Softmax, StopGradient
from singanet.loss import (
    BinaryCrossEntropy,
    CategoricalCrossEntropy,
    Hinge,
    KLDivergence,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
    SoftmaxFocal,
)
from singanet.optimizer import SGD
from tests.kit.losses import beside_torch

rng = np.random.default_rng(1)


def formula(x, t):
    """The definition, in plain steps, for rows of targets."""
    return -(t * np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True))).sum(-1)


# -- peers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
def test_softmax_equals_pytorch(smoothing, soft):
    x, y = rng.normal(size=(7, 5)), rng.dirichlet(np.ones(5), 7) if soft else rng.integers(0, 5, 7)
    more = {} if soft else {"ignore_index": 2}
    beside_torch(SoftmaxCrossEntropy(label_smoothing=smoothing, **more), x, y, lambda torch, t:
                 torch.nn.functional.cross_entropy(t, torch.tensor(y), label_smoothing=smoothing,
                                                   **more))  # fmt: skip


@pytest.mark.parametrize("pos", [None, 3.0, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize("both", [None, [2.0, 0.0, 1.0]])
def test_sigmoid_equals_pytorch(pos, both):
    torch = pytest.importorskip("torch")
    x, y = rng.normal(size=(4, 3)) * 4, rng.integers(0, 2, (4, 3))
    weights = {name: None if value is None else torch.tensor(value, dtype=torch.float64)
               for name, value in (("pos_weight", pos), ("weight", both))}  # fmt: skip
    beside_torch(SigmoidCrossEntropy(pos_weight=pos, class_weight=both), x, y, lambda torch, t:
                 torch.nn.functional.binary_cross_entropy_with_logits(t, torch.tensor(y).double(),
                                                                      **weights))  # fmt: skip


def test_categorical_is_pytorchs_nll_of_logarithms():
    p, y = rng.dirichlet([1.0] * 7, 20), rng.integers(0, 7, 20)
    y[::4] = -1
    beside_torch(
        CategoricalCrossEntropy(ignore_index=-1), p, y,
        lambda torch, t: torch.nn.functional.nll_loss(t.log(), torch.tensor(y), ignore_index=-1),
    )  # fmt: skip


def test_labels_of_any_integers_in_any_order_and_rows_of_booleans():
    labels, x = np.array([0, 1, 2, 3, 1, 1]), rng.normal(size=(6, 4))
    hot, loss = np.eye(4)[labels], SoftmaxCrossEntropy()
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    kinds = [labels.astype(kind) for kind in (np.uint8, np.int32, np.uint64)]
    for y in (*kinds, labels[:, None], hot, hot.astype(int), hot > 0):
        for order in (x, np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]):
            np.testing.assert_allclose(loss.forward(True, order, y), formula(x, hot), rtol=1e-12)
            np.testing.assert_allclose(loss.backward(), (p - hot) / 6, atol=1e-15)
    np.testing.assert_allclose(loss.link(x), p)
    np.testing.assert_allclose(SigmoidCrossEntropy().link(x), 1 / (1 + np.exp(-x)))


# -- ends of ranges, ignored labels, nets ---------------------------------------------------------


def test_uniform_scores_give_singas_values():
    x = np.zeros((2, 4), np.float32)
    for y in (np.array([0, 2]), np.eye(4, dtype=int)[[0, 2]]):
        loss = SoftmaxCrossEntropy(reduction="sum")
        np.testing.assert_allclose(loss.forward(True, x, y), -math.log(0.25), rtol=1e-6)
        dx = np.full((2, 4), 0.25)
        dx[[0, 1], [0, 2]] = -0.75
        np.testing.assert_allclose(loss.backward(), dx, atol=1e-7)


def test_scores_that_would_overflow():
    x = np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32)
    loss = SoftmaxCrossEntropy()
    np.testing.assert_array_equal(loss.forward(True, x, np.array([0, 0])), [0, 1e4])
    np.testing.assert_array_equal(loss.backward(), [[0, 0], [-0.5, 0.5]])


def test_ignored_positions_cost_nothing():
    x, y = rng.normal(size=(3, 4, 5)), rng.integers(0, 5, (3, 4))
    y[0, 1:], y[2] = -1, -1
    loss, total = (SoftmaxCrossEntropy(ignore_index=-1, reduction=kind) for kind in ("mean", "sum"))
    values, counted = loss.forward(True, x, y), y != -1
    hot = np.eye(5)[y[counted]]
    assert values.mean() == pytest.approx(formula(x[counted], hot).mean())
    assert values[2] == 0
    dx = loss.backward()
    assert not dx[~counted].any()
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(dx[counted], (p[counted] - hot) / counted.sum())
    total.forward(True, x, y)
    np.testing.assert_allclose(total.backward(), dx * counted.sum())


@pytest.mark.parametrize("soft", [False, True])
def test_of_steps_that_are_there_those_with_another_label_count(soft):
    """A distribution is no label, whatever is ignored."""
    x, y = rng.normal(size=(2, 4, 5)), np.array([[1, 2, 0, 3], [2, 2, 1, 2]])
    there = np.array([[1, 1, 1, 0], [1, 0, 0, 1]])
    counted = (there > 0) & (soft | (y != 2))
    targets = rng.dirichlet(np.ones(5), (2, 4)) if soft else np.eye(5)[y]
    loss = SoftmaxCrossEntropy(ignore_index=2)
    values = loss.forward(True, x, targets if soft else y, mask=there)
    assert values.mean() == pytest.approx(formula(x[counted], targets[counted]).mean())
    dx = loss.backward()
    assert not dx[~counted].any()
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(dx[counted], (p - targets)[counted] / counted.sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
def test_class_weights_are_those_of_pytorch(smoothing, soft):
    """As a sum, since its mean divides by the weights, and ours by positions."""
    torch = pytest.importorskip("torch")
    x, weight = rng.normal(size=(7, 5)), np.array([0.5, 0.0, 3.0, 1.0, 2.0])
    y = rng.dirichlet(np.ones(5), 7) if soft else np.array([0, 1, 2, 3, 4, 2, 1])
    more = {} if soft else {"ignore_index": 3}
    tx = torch.tensor(x, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        tx, torch.tensor(y), torch.tensor(weight), reduction="none", label_smoothing=smoothing,
        **more
    )  # fmt: skip
    theirs.sum().backward()
    ours = SoftmaxCrossEntropy(smoothing, reduction="sum", class_weight=weight.tolist(), **more)
    counted = 7 if soft else 6
    found = ours.forward(True, x, y) * counted / 7
    np.testing.assert_allclose(found, theirs.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours.backward(), tx.grad.numpy(), atol=1e-14)


def test_ignored_rows_may_hold_anything_whatever_the_weights():
    x = np.array([[1.0, 2.0], [np.nan, np.inf]])
    weighted = SoftmaxCrossEntropy(ignore_index=-1, class_weight=[1, 2])
    for loss in (weighted, SoftmaxFocal(ignore_index=-1)):
        assert np.isfinite(loss.forward(True, x, np.array([1, -1]))).all()
        dx = loss.backward()
        assert np.isfinite(dx[0]).all()
        assert not dx[1].any()


def test_focal_equals_keras():
    keras = pytest.importorskip("keras")
    x, y, alpha = rng.normal(size=(7, 4)), rng.integers(0, 4, 7), [0.2, 1.0, 0.5, 2.0]
    theirs = keras.losses.CategoricalFocalCrossentropy(
        alpha=np.array(alpha), gamma=1.5, from_logits=True, reduction=None, dtype="float64"
    )(np.eye(4)[y], x)
    found = SoftmaxFocal(1.5, class_weight=alpha).forward(False, x, y)
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(theirs), rtol=1e-6)
    np.testing.assert_allclose(
        SoftmaxFocal(0).forward(False, x, y), SoftmaxCrossEntropy().forward(False, x, y)
    )


def test_focal_at_the_ends():
    x = np.array([[1e4, 0.0], [-1e4, 0.0], [-math.inf, 0.0]], np.float32)
    loss = SoftmaxFocal()
    np.testing.assert_array_equal(loss.forward(True, x, np.array([0, 0, 1])), [0, 1e4, 0])
    assert np.isfinite(loss.backward()).all()
    everything = SoftmaxCrossEntropy(ignore_index=0)
    assert everything.evaluate(True, rng.normal(size=(2, 3)), np.zeros(2, int)) == 0.0
    np.testing.assert_array_equal(everything.backward(), np.zeros((2, 3)))


def test_a_score_that_is_no_number_shows_in_its_sample_alone():
    x = np.zeros((3, 4), np.float32)
    x[1, 2] = np.nan
    x[2, 0] = -np.inf
    loss = SoftmaxCrossEntropy(reduction="sum")
    losses = loss.forward(True, x, np.array([0, 1, 1]))
    np.testing.assert_allclose(losses, [math.log(4), np.nan, math.log(3)], rtol=1e-6)
    dx = loss.backward()
    assert np.isnan(dx[1]).all()
    np.testing.assert_allclose(dx[2], [0, 1 / 3 - 1, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("make", [SigmoidCrossEntropy, lambda **more: SigmoidFocal(0.5, **more)])
def test_large_scores_are_exact(make):
    x, y = np.array([1e4, -1e4, 1e4, -1e4], np.float32), np.array([1, 0, 0, 1])
    loss = make(reduction="sum")
    np.testing.assert_array_equal(loss.forward(True, x, y), [0, 0, 1e4, 1e4])
    np.testing.assert_allclose(loss.backward(), [0, 0, 1, -1], atol=1e-37)
    weighted = SigmoidCrossEntropy(pos_weight=2.0)
    np.testing.assert_array_equal(weighted.forward(False, x, y), [0, 0, 1e4, 2e4])


def test_smoothing_and_focus_are_those_of_keras():
    keras = pytest.importorskip("keras")
    x, y = rng.normal(size=(4, 3)) * 4, rng.integers(0, 2, (4, 3))
    focal = {"gamma": 2.0, "alpha": 0.3, "apply_class_balancing": True}
    pairs = [
        (SigmoidCrossEntropy(label_smoothing=0.2), "BinaryCrossentropy", {"label_smoothing": 0.2}),
        (SigmoidFocal(1.5), "BinaryFocalCrossentropy", {"gamma": 1.5}),
        (SigmoidFocal(2.0, 0.3), "BinaryFocalCrossentropy", focal),
    ]
    for ours, name, more in pairs:
        theirs = getattr(keras.losses, name)(from_logits=True, dtype="float64", **more)
        wanted = float(theirs(y.astype(float), x))
        assert ours.evaluate(False, x, y) == pytest.approx(wanted, rel=1e-6)
    p = 1 / (1 + np.exp(-x))
    smoothed = BinaryCrossEntropy(label_smoothing=0.2).evaluate(False, p, y)
    assert smoothed == pytest.approx(pairs[0][0].evaluate(False, x, y))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certainty_stays_finite(dtype):
    x = np.array([0.0, 1.0, 0.0, 1.0], dtype)
    loss = BinaryCrossEntropy(reduction="sum")
    values = loss.forward(True, x, np.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(values[:2], 0)
    np.testing.assert_allclose(values[2:], -np.log(np.finfo(dtype).tiny), rtol=1e-6)
    dx = loss.backward()
    assert np.isfinite(dx).all()
    assert dx[2] < 0 < dx[3]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("weights", [(None, None), (3.0, None), (2.0, [1.0, 0.5, 0.0])])
def test_infinite_scores(weights):
    inf = math.inf
    x = np.array([[inf, -inf, inf], [-inf, inf, -inf], [inf, -inf, 0.0]])
    y = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0]])
    kept = np.ones(3) if weights[1] is None else np.array(weights[1])
    expected = np.array([[0, 0, 0], [inf, inf, 0], [inf, inf, (weights[0] or 1) * math.log(2)]])
    expected = np.where(kept > 0, expected * np.where(kept > 0, kept, 1), 0)
    loss = SigmoidCrossEntropy(*weights)
    for row in range(3):
        given = x[row : row + 1].T.copy(), y[row : row + 1].T.copy()
        if weights[1] is None:
            np.testing.assert_allclose(loss.forward(True, *given), expected[row])
        else:
            found = loss.evaluate(True, x[row : row + 1], y[row : row + 1])
            assert found == pytest.approx(expected[row].mean())
        assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize("kind", [BinaryCrossEntropy, KLDivergence, Hinge])
def test_a_drawn_loss_is_recorded_without_a_look_at_values(kind):
    """What stands for arrays while a step is recorded are neither probabilities nor signs."""
    x, y = Input("x", (4,)), Input("y", (4,))
    told = StopGradient("told")(Softmax("softmax")(Dense("teacher", 4)(x)))
    told = (told > 0.25).astype("float") if kind is Hinge else told
    scores = Dense("fc", 4, activation="sigmoid" if kind is BinaryCrossEntropy else None)(x)
    loss = kind()(scores, y if kind is BinaryCrossEntropy else told)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)]}, seed=0)
    rng = np.random.default_rng(0)
    feed = {x: rng.random((5, 4)), y: rng.random((5, 4))}
    feed = feed if kind is BinaryCrossEntropy else {x: feed[x]}
    values = [executor.run("train", feed)[0] for _ in range(4)]
    assert values == sorted(values, reverse=True)


def test_numbers_that_vanish_give_no_infinity():
    p = np.array([[1.0, 0.0]], np.float32)
    loss = CategoricalCrossEntropy()
    assert 80 < loss.evaluate(True, p, np.array([1])) < 90
    assert np.isfinite(loss.backward()).all()


def net(*last):
    parts = [Dense("a", 8, input_sample_shape=(5,)), Activation("relu"), Dense("b", 3)]
    return singanet.FeedForwardNet([*parts, *last], seed=0)


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_net_that_ends_in_softmax_trains_as_one_that_ends_in_scores(one_hot):
    x, y = rng.normal(size=(64, 5)).astype(np.float32), rng.integers(0, 3, 64)
    scores, made = net(), net(Softmax("p"))
    scores.compile(SGD(lr=0.5, momentum=0.9), SoftmaxCrossEntropy(0.1), ["accuracy"])
    made.compile(SGD(lr=0.5, momentum=0.9), CategoricalCrossEntropy(0.1), ["accuracy"])
    targets = np.eye(3)[y] if one_hot else y
    want = scores.fit(x, y, epochs=4, batch_size=16, verbose=False)
    seen = made.fit(x, targets, epochs=4, batch_size=16, verbose=False)
    np.testing.assert_allclose(seen["loss"], want["loss"], rtol=1e-5)
    assert seen["accuracy"] == want["accuracy"]
    np.testing.assert_allclose(made.predict(x), scores.predict(x), atol=1e-5)
    assert not made.programs.notes, "recorded, without a Python step"
    bad = y.copy()
    bad[3] = 7
    with pytest.raises(DataError, match="label 7 at index 3"):
        made.step(x[:16], bad[:16], SGD(lr=0.1))


# -- refusals -------------------------------------------------------------------------------------

SCORES, THREE = np.zeros((3, 4)), np.zeros(3, int)
BETWEEN = "from 0 to 1; received"
NAN = np.array([[0, 0, 0], [0, 0, math.nan]])
WRONG_DATA = [
    *[(SoftmaxCrossEntropy(), SCORES, np.array([0, label, 1]),
       f"labels from 0 to 3; received label {label} at index 1;") for label in (4, -1, 2**40)],
    *[(SoftmaxCrossEntropy(), SCORES[:, None], np.array([[0], [label], [1]]),
       rf"label {label} at index \(1, 0\)") for label in (4, -1, 2**40)],
    (SoftmaxCrossEntropy(ignore_index=-1), SCORES[:2], np.array([-1, -2]), "label -2 at index 1"),
    (SoftmaxCrossEntropy(), SCORES, np.zeros(3), "integer labels; received labels of type float64"),
    *[(SoftmaxCrossEntropy(), np.zeros((2, 2)), np.array([[1.0, 0.0], row]),
       "positive, finite sum.*index 1")
      for row in ([0.0, 0.0], [2.0, -1.0], [-1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0])],
    *[(SoftmaxCrossEntropy(), np.zeros(shape), THREE, r"\(batch, ..., classes\)")
      for shape in ((3,), (3, 0))],
    # Its cross-entropy was 0 whatever the net said.
    (SoftmaxCrossEntropy(), np.zeros((3, 1)), np.zeros((3, 1)), "SigmoidCrossEntropy"),
    *[(CategoricalCrossEntropy(), x, THREE, words) for x, words in (
        (np.array([[3.0, -1, 0, 1]] * 3), "SoftmaxCrossEntropy on scores"),
        (np.full((3, 4), 0.3), "a row with sum 1.2"),
        (np.array([[0.6, 0.6, -0.1, -0.1]] * 3), "least element -0.1 at index 0"),
        (np.full((3, 4), np.nan), "probabilities"),
        (np.ones((3, 1)), "two classes or more"))],
    (SigmoidCrossEntropy(), np.zeros((2, 2)), np.array([[0, 1], [2, 0]]),
     rf"{BETWEEN} 2.0 at index \(1, 0\)"),
    (SigmoidCrossEntropy(), np.zeros(2), np.array([0, -0.5]), "received -0.5 at index 1"),
    *[(loss, np.full((2, 3), 0.5), NAN, rf"{BETWEEN} nan at index \(1, 2\)")
      for loss in (SigmoidCrossEntropy(), BinaryCrossEntropy())],
    *[(BinaryCrossEntropy(), np.array(x), np.zeros(2), "use SigmoidCrossEntropy")
      for x in ([-0.1, 0.5], [0.5, 1.5])],
    (BinaryCrossEntropy(), np.array([0.5]), np.array([2]), "from 0 to 1"),
]  # fmt: skip
WRONG_SHAPES = [
    *[(SoftmaxCrossEntropy(), (3, 4), shape,
       r"labels of shape \(3,\) for outputs of shape \(3, 4\)")
      for shape in ((2,), (3, 2), (3, 1, 1), (1, 3), ())],
    *[(SoftmaxCrossEntropy(), (3, 4, 5, 2), shape, r"Permute\('last', \(2, 3, 1\)\)")
      for shape in ((3, 5, 2), (3, 5, 2, 1))],
    *[(SoftmaxCrossEntropy(), (3, 4, 5), shape, r"Permute\('last', \(2, 1\)\)")
      for shape in ((3, 5), (3, 5, 1))],
    (SoftmaxCrossEntropy(), (3, 4, 5), (3, 7), "put Flatten before the last Dense"),
    (SoftmaxCrossEntropy(class_weight=[1, 2]), (3, 4), (3,), r"expected 2 classes.*\(3, 4\)"),
    (SigmoidCrossEntropy(), (2, 1), (2,), r"\(2, 1\)"),
    (SigmoidCrossEntropy(class_weight=[1.0, 2.0]), (4, 3), (4, 3), r"2 classes.*shape \(4, 3\)"),
]  # fmt: skip
WRONG_ARGUMENTS = [
    *[(kind, "class_weight", weight) for kind in (SoftmaxCrossEntropy, SoftmaxFocal)
      for weight in ([1.0], [-1.0, 1.0], [np.nan, 1.0], 2.0, "ab", [[1.0, 2.0]])],
    *[(SoftmaxCrossEntropy, "label_smoothing", value) for value in (-0.1, 1.0, math.nan)],
    *[(SoftmaxCrossEntropy, "ignore_index", value) for value in (True, 1.0, "no")],
    *[(SigmoidCrossEntropy, name, weight) for name in ("pos_weight", "class_weight")
      for weight in (-1.0, math.nan, [], [[1.0]], "a", [1.0, -2.0])],
    (BinaryCrossEntropy, "pos_weight", -1.0),
    *[(SoftmaxFocal, "gamma", value) for value in (-1, "2", math.inf, True)],
    (SigmoidFocal, "gamma", -1.0),
    *[(SigmoidFocal, "alpha", value) for value in (0.0, 1.0, "a", True)],
]  # fmt: skip


@pytest.mark.parametrize(("loss", "x", "y", "words"), WRONG_DATA)
def test_wrong_data_are_refused(loss, x, y, words):
    with pytest.raises(DataError, match=words):
        loss.forward(True, x, y)


@pytest.mark.parametrize(("loss", "x", "y", "words"), WRONG_SHAPES)
def test_wrong_shapes_are_refused(loss, x, y, words):
    with pytest.raises(ShapeError, match=words):
        loss.forward(True, np.zeros(x), np.zeros(y, int))


@pytest.mark.parametrize(("kind", "name", "value"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(kind, name, value):
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}\({name}=\)"):
        kind(**{name: value})
