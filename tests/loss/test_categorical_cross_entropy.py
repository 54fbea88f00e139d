"""Cross-entropy of probabilities: formulas, what it refuses, and training behind a softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.layers import Activation, Dense, Softmax
from singanet.loss import CategoricalCrossEntropy, SoftmaxCrossEntropy
from singanet.optimizer import SGD

rng = np.random.default_rng(0)


def test_it_is_pytorchs_nll_of_logarithms() -> None:
    torch = pytest.importorskip("torch")
    p, y = rng.dirichlet([1.0] * 7, 20), rng.integers(0, 7, 20)
    y[::4] = -1
    loss = CategoricalCrossEntropy(ignore_index=-1)
    given = torch.tensor(p, requires_grad=True)
    theirs = torch.nn.functional.nll_loss(given.log(), torch.tensor(y), ignore_index=-1)
    theirs.backward()
    assert loss.evaluate(True, p, y) == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(loss.backward(), given.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (rng.normal(size=(3, 4)), "SoftmaxCrossEntropy on scores"),
        (np.full((3, 4), 0.3), "a row with sum 1.2"),
        (np.array([[0.6, 0.6, -0.1, -0.1]] * 3), "least element -0.1 at index 0"),
        (np.full((3, 4), np.nan), "probabilities"),
        (np.ones((3, 1)), "two classes or more"),
    ],
)
def test_what_is_no_distribution_is_refused(x: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        CategoricalCrossEntropy().forward(True, x, np.array([0, 0, 0]))


def test_one_class_is_refused() -> None:
    """Its cross-entropy was 0 whatever the net said."""
    with pytest.raises(DataError, match="SigmoidCrossEntropy"):
        SoftmaxCrossEntropy().forward(True, np.zeros((3, 1)), np.zeros((3, 1)))


def test_numbers_that_vanish_give_no_infinity() -> None:
    p = np.array([[1.0, 0.0]], np.float32)
    loss = CategoricalCrossEntropy()
    assert 80 < loss.evaluate(True, p, np.array([1])) < 90
    assert np.isfinite(loss.backward()).all()


def net(*last: Any) -> Any:
    parts = [Dense("a", 8, input_sample_shape=(5,)), Activation("relu"), Dense("b", 3)]
    return singanet.FeedForwardNet([*parts, *last], seed=0)


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_net_that_ends_in_softmax_trains_as_one_that_ends_in_scores(one_hot: bool) -> None:
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
