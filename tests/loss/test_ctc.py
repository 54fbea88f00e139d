"""CTC against PyTorch, Keras and a sum over all paths; its decoders against an enumeration."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, product

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss import CTC


def drawn(dtype="float64", seed=0):
    """Scores of 12 frames and 5 classes, labels with repetitions, how many of both."""
    rng = np.random.default_rng(seed)
    x = (2 * rng.standard_normal((4, 12, 5))).astype(dtype)
    y = rng.integers(1, 5, (4, 4))
    y[1, :2] = 3
    frames, labels = np.array([12, 9, 7, 5]), np.array([4, 3, 0, 2])
    y[np.arange(4) >= labels[:, None]] = -1
    return x, y, frames, labels


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def probabilities(x, blank=0):
    """Of every label sequence of one sample, summed over all paths."""
    found = defaultdict(float)
    p = np.exp(log_softmax(x))
    for path in product(range(x.shape[1]), repeat=len(x)):
        labels = tuple(k for k, _ in groupby(path) if k != blank)
        found[labels] += float(np.prod(p[range(len(x)), path]))
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("blank", [0, 4])
def test_losses_and_gradients_equal_pytorch(dtype, reduction, blank):
    torch = pytest.importorskip("torch")
    x, y, frames, labels = drawn(dtype)
    if blank:
        y = np.where(y > 0, y - 1, y)
    leaf = torch.tensor(x, requires_grad=True)
    wanted = torch.nn.functional.ctc_loss(
        torch.log_softmax(leaf, 2).transpose(0, 1),
        torch.tensor(np.maximum(y, 0) if not blank else np.where(y < 0, 0, y)),
        torch.tensor(frames),
        torch.tensor(labels),
        blank,
        reduction,
    )
    wanted.backward()
    loss = CTC(blank, reduction=reduction)
    losses = loss.forward(True, x, y, mask=np.arange(12) < frames[:, None])
    tolerance = 1e-10 if dtype == "float64" else 2e-5
    whole = losses.mean() if reduction == "mean" else losses.sum()
    assert losses.dtype == dtype
    np.testing.assert_allclose(whole, wanted.item(), rtol=tolerance)
    np.testing.assert_allclose(loss.backward(), leaf.grad.numpy(), atol=tolerance)


def test_without_division_by_labels_it_is_that_of_keras():
    keras = pytest.importorskip("keras", reason="Keras is not installed: the peers extra")
    x, y, _, _ = drawn("float32")
    y = np.where(y < 0, 0, y)
    got = CTC(padding=0, per_label=False).evaluate(False, x, y)
    assert got == pytest.approx(float(keras.losses.CTC()(y, x)), rel=1e-5)


def test_it_is_the_sum_over_all_paths_in_frames_anywhere():
    x, there = np.random.default_rng(1).standard_normal((3, 6, 3)), np.ones((3, 6))
    there[1, [0, 3]] = 0
    there[2, 2:] = 0
    y = np.array([[1, 1, 2], [2, 1, -1], [-1, -1, -1]])
    losses = CTC(per_label=False).forward(False, x, y, mask=there)
    for k, labels in enumerate([(1, 1, 2), (2, 1), ()]):
        wanted = probabilities(x[k, there[k] > 0])[labels]
        assert losses[k] == pytest.approx(-np.log(wanted), rel=1e-12)


def test_the_gradient_is_the_numerical_one():
    x, y, frames, _ = drawn()
    mask, loss, weight = np.arange(12) < frames[:, None], CTC(), np.array([1.0, 2.0, 0.5, 0.0])
    loss.forward(True, x, y, weight, mask)
    dx = loss.backward()
    rng = np.random.default_rng(2)
    for _ in range(5):
        way = rng.standard_normal(x.shape)
        ends = [CTC().forward(False, x + h * way, y, weight, mask).mean() for h in (1e-5, -1e-5)]
        assert (dx * way).sum() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)
    assert not dx[2, 7:].any()


@pytest.mark.parametrize("free", [False, True])
def test_labels_that_frames_cannot_hold_cost_inf_or_nothing(free):
    x = np.random.default_rng(3).standard_normal((2, 3, 4))
    y = np.array([[1, 1], [1, 2]])
    loss = CTC(zero_infinity=free)
    mask = np.array([[1, 1, 0], [1, 1, 0]])
    losses = loss.forward(True, x, y, mask=mask)
    assert losses[0] == (0 if free else np.inf)
    assert np.isfinite(losses[1])
    if free:
        dx = loss.backward()
        assert not dx[0].any()
        assert dx[1].any()


def test_long_sequences_stay_finite_in_float32():
    x = np.random.default_rng(4).standard_normal((2, 600, 6)).astype(np.float32) * 20
    y = np.tile([1, 2, 2, 3], (2, 30))
    loss = CTC()
    assert np.isfinite(loss.forward(True, x, y)).all()
    assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([[1, 0]], "received 0 at index"),
        ([[1, 5]], "received 5"),
        ([[-1, 1]], "then only -1; received 1 at index \\(0, 1\\)"),
        ([[1, -2]], "received -2"),
        ([1, 2], "shape \\(2,\\)"),
        ([[1.0, 2.0]], "integer labels"),
    ],
)
def test_refuses_other_labels(y, words):
    with pytest.raises(DataError, match=words):
        CTC().forward(False, np.zeros((1, 4, 5)), np.array(y))


def test_refuses_other_scores_and_arguments():
    with pytest.raises(ShapeError, match="a row of scores for every frame"):
        CTC(blank=5).forward(False, np.zeros((1, 4, 5)), np.array([[1]]))
    with pytest.raises(ShapeError, match="CTC, mask"):
        CTC().forward(False, np.zeros((1, 4, 5)), np.array([[1]]), mask=np.ones((1, 3)))
    with pytest.raises(ArgumentError, match="padding"):
        CTC(padding=2)


# -- decoding ---------------------------------------------------------------------------------


def test_greedy_is_the_best_path_joined():
    best = np.array([[0, 1, 1, 0, 1, 2], [2, 2, 2, 0, 0, 3]])
    x = np.where(np.arange(4) == best[:, :, None], 1.0, 0.0)
    assert CTC().greedy(x) == [[1, 1, 2], [2, 3]]
    assert CTC().greedy(x, mask=np.arange(6) < np.array([[3], [6]])) == [[1], [2, 3]]
    assert CTC(blank=2).greedy(x) == [[0, 1, 0, 1], [0, 3]]


@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_is_an_enumeration_of_all_paths(blank):
    x = 1.5 * np.random.default_rng(5).standard_normal((3, 5, 3))
    mask = np.arange(5) < np.array([[5], [4], [0]])
    for k, found in enumerate(CTC(blank).beam(x, 1000, mask)):
        wanted = probabilities(x[k, mask[k]], blank)
        ranked = sorted(wanted.items(), key=lambda item: -item[1])
        assert [tuple(labels) for labels, _ in found[:5]] == [labels for labels, _ in ranked[:5]]
        for labels, log in found:
            assert np.exp(log) == pytest.approx(wanted[tuple(labels)], abs=1e-12)


def test_a_beam_finds_what_the_best_path_misses():
    # Blank is the likeliest in each frame, yet the paths with a label are likelier together.
    x = np.log(np.tile([0.6, 0.4], (1, 2, 1)))
    assert CTC().greedy(x) == [[]]
    (best, log), *_ = CTC().beam(x, 4)[0]
    assert best == [1]
    assert np.exp(log) == pytest.approx(0.64)
