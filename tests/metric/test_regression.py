"""Perplexity, errors, R² and the label error rate against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import DataError, ShapeError
from singanet.metric import R2, LabelErrorRate, MeanAbsoluteError, Perplexity, RootMeanSquaredError

rng = np.random.default_rng(0)


def test_perplexity_of_a_guess_is_the_number_of_classes() -> None:
    assert Perplexity().evaluate(np.zeros((5, 7)), np.arange(5)) == pytest.approx(7)


def test_perplexity_weighs_positions_alike() -> None:
    x, y = rng.normal(size=(2, 3, 4)), rng.integers(1, 4, (2, 3))
    y[0, 1:] = 0
    nats = -np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True))
    kept = [nats[i, t, y[i, t]] for i in range(2) for t in range(3) if y[i, t]]
    metric = Perplexity(ignore_index=0)
    for i in range(2):
        metric.update(x[i : i + 1], y[i : i + 1, :, None])
    assert metric.result() == pytest.approx(math.exp(sum(kept) / 4))
    assert metric.positions == 4


def test_perplexity_at_its_ends() -> None:
    assert Perplexity(ignore_index=0).evaluate(np.zeros((2, 3)), np.zeros(2, int)) == 1
    assert Perplexity().evaluate(np.zeros((0, 3)), np.zeros(0, int)) == 1
    assert Perplexity().evaluate(np.array([[0.0, 1e4]]), np.array([0])) == math.inf
    with pytest.raises(DataError, match="label 3"):
        Perplexity().evaluate(np.zeros((1, 3)), np.array([3]))
    with pytest.raises(DataError, match="before the softmax"):
        Perplexity().evaluate(np.zeros((1, 3), int), np.array([0]))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2, 3)])
def test_errors(shape: Any) -> None:
    x, y = rng.normal(size=shape), rng.normal(size=shape)
    assert MeanAbsoluteError().evaluate(x, y) == pytest.approx(np.abs(x - y).mean())
    root = np.sqrt(((x - y) ** 2).mean())
    assert RootMeanSquaredError().evaluate(x, y) == pytest.approx(root)
    columns = 1 - ((x - y) ** 2).sum(axis=0) / ((y - y.mean(axis=0)) ** 2).sum(axis=0)
    assert R2().evaluate(x, y) == pytest.approx(np.mean(columns))
    assert R2().evaluate(y, y) == 1
    assert R2().evaluate(np.broadcast_to(y.mean(axis=0), shape), y) == pytest.approx(0)


def test_r2_far_from_zero_does_not_cancel() -> None:
    y = rng.normal(size=200)
    x = y + 0.1 * rng.normal(size=200)
    metric = R2()
    for i in range(0, 200, 7):
        metric.update(x[i : i + 7] + 1e7, y[i : i + 7] + 1e7)
    assert metric.result() == pytest.approx(R2().evaluate(x, y), rel=1e-6)


def test_r2_of_constant_targets() -> None:
    y = np.ones((3, 2))
    x = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    assert R2().evaluate(x, y) == 0.5
    assert math.isnan(R2().evaluate(x[:0], y[:0]))


@pytest.mark.parametrize("kind", [MeanAbsoluteError, RootMeanSquaredError, R2])
def test_bad_input(kind: Any) -> None:
    with pytest.raises(ShapeError, match=r"\(3, 1\).*\(3,\)"):
        kind().evaluate(np.zeros((3, 1)), np.zeros(3))
    with pytest.raises(DataError, match="numbers"):
        kind().evaluate(np.zeros(1), np.array(["a"]))


def test_r2_of_samples_of_another_shape() -> None:
    metric = R2()
    metric.update(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"\(3,\), as in earlier batches.*\(2,\)"):
        metric.update(np.zeros((2, 2)), np.zeros((2, 2)))


LABELS = st.lists(st.integers(1, 2), max_size=4)


def edits(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Rounds of all single edits until ``b`` is there."""
    seen = {a}
    count = 0
    while b not in seen:
        count += 1
        more = set()
        for s in seen:
            for k in range(len(s) + 1):
                more |= {(*s[:k], c, *s[k:]) for c in (1, 2)}
                more |= {(*s[:k], c, *s[k + 1 :]) for c in (1, 2)} | {s[:k] + s[k + 1 :]}
        seen |= more
    return count


@given(a=LABELS, b=LABELS)
def test_edits_are_the_least_number(a: list[int], b: list[int]) -> None:
    x, y = (np.array([[*part, *[-1] * (5 - len(part))]]) for part in (a, b))
    wanted = edits(tuple(a), tuple(b)) / max(len(b), 1)
    assert LabelErrorRate().evaluate(x, y) == wanted


def test_scores_are_decoded_and_batches_gathered() -> None:
    frames = np.array([[1, 1, 0, 2], [0, 2, 2, 2]])
    scores: Any = np.where(np.arange(3) == frames[:, :, None], 3.0, 0.0)
    metric = LabelErrorRate()
    metric.update(scores, np.array([[1, 2, -1], [1, 2, 2]]))
    assert metric.result() == 2 / 5
    metric.update(scores[:1], np.array([[1, 1, 2]]))
    assert metric.result() == 3 / 8
    other = LabelErrorRate()
    other.merge(metric.state())
    assert other.result() == 3 / 8
    with pytest.raises(DataError, match="LabelErrorRate"):
        metric.update(scores, np.array([1, 2]))
