"""What every metric must do: gather exactly, and leave its inputs alone."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import metric as metrics
from singanet.errors import CallOrderError, DataError

rng = np.random.default_rng(2)
SCORES = rng.normal(size=(12, 5))
LABELS = rng.integers(0, 5, 12)
SEQUENCE, PADDED = rng.normal(size=(12, 3, 5)), rng.integers(0, 5, (12, 3))
ROWS = rng.integers(0, 2, (12, 5))

CASES: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "accuracy": (metrics.Accuracy, SCORES, LABELS),
    "accuracy, top 3": (lambda: metrics.Accuracy(top_k=3), SCORES, LABELS[:, None]),
    "precision": (lambda: metrics.Precision(top_k=2), SCORES, ROWS),
    "confusion": (metrics.ConfusionMatrix, SCORES, LABELS),
    "f1": (metrics.F1, SCORES, LABELS),
    "f1, micro": (lambda: metrics.F1("micro", threshold=0.2), SCORES, ROWS),
    "f1, weighted": (lambda: metrics.F1("weighted"), SCORES, LABELS),
    "auc": (metrics.AUC, SCORES[:, 0], ROWS[:, 0]),
    "perplexity": (metrics.Perplexity, SCORES, LABELS),
    "perplexity, padded": (lambda: metrics.Perplexity(ignore_index=2), SEQUENCE, PADDED),
    "absolute error": (metrics.MeanAbsoluteError, SCORES, SCORES[::-1] + 1e3),
    "root mean squared error": (metrics.RootMeanSquaredError, SCORES, SCORES[::-1]),
    "r2": (metrics.R2, SCORES + 1e6, SCORES[::-1] + 1e6),
    "recall": (lambda: metrics.Recall(top_k=2), SCORES, ROWS),
}


@pytest.fixture(params=CASES)
def case(request: Any) -> tuple[Any, Any, Any]:
    make, x, y = CASES[request.param]
    return make(), x, y


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 12), max_size=4))
@pytest.mark.parametrize("name", CASES)
def test_batches_of_any_size_give_the_result_of_the_whole(name: str, cuts: list[int]) -> None:
    make, x, y = CASES[name]
    metric = make()
    edges = [0, *sorted(cuts), 12]
    for start, stop in itertools.pairwise(edges):
        metric.update(x[start:stop], y[start:stop])
    whole = make()
    whole.update(x, y)
    np.testing.assert_allclose(metric.result(), whole.result(), rtol=1e-9)
    if not isinstance(metric, metrics.ConfusionMatrix):
        np.testing.assert_allclose(metric.result(), make().evaluate(x, y), rtol=1e-9)
    assert metric.samples == 12


def test_evaluate_leaves_what_was_gathered(case: tuple[Any, Any, Any]) -> None:
    metric, x, y = case
    metric.update(x[:3], y[:3])
    before = metric.result()
    metric.evaluate(x, y)
    np.testing.assert_array_equal(metric.result(), before)
    assert metric.samples == 3


@pytest.mark.parametrize("name", CASES)
def test_reset(name: str) -> None:
    make, x, y = CASES[name]
    metric, fresh = make(), make()
    metric.update(x[:6], y[:6])
    metric.reset()
    metric.update(x[6:], y[6:])
    fresh.update(x[6:], y[6:])
    np.testing.assert_array_equal(metric.result(), fresh.result())
    assert metric.samples == 6


def test_no_sample_no_result(case: tuple[Any, Any, Any]) -> None:
    metric, x, y = case
    with pytest.raises(CallOrderError, match="at least one sample"):
        metric.result()
    metric.update(x[:0], y[:0])
    with pytest.raises(CallOrderError):
        metric.result()


def test_inputs_are_left_alone_and_strides_do_not_matter(case: tuple[Any, Any, Any]) -> None:
    metric, x, y = case
    kept_x, kept_y = x.copy(), y.copy()
    expected = metric.evaluate(x, y)
    np.testing.assert_array_equal(x, kept_x)
    np.testing.assert_array_equal(y, kept_y)
    strided = np.repeat(x, 2, axis=-1)[..., ::2]
    assert metric.evaluate(strided, np.repeat(y, 2, axis=0)[::2]) == expected
    assert type(expected) is float


def test_float32(case: tuple[Any, Any, Any]) -> None:
    metric, x, y = case
    if not isinstance(metric, metrics.R2):
        narrow = metric.evaluate(x.astype(np.float32), y)
        assert narrow == pytest.approx(metric.evaluate(x, y), rel=1e-4)


def test_outputs_that_are_no_batch_of_numbers(case: tuple[Any, Any, Any]) -> None:
    metric, _, y = case
    for x in (np.array(1.0), np.array(["a"])):
        with pytest.raises(DataError, match=type(metric).__name__):
            metric.evaluate(x, y)


@pytest.mark.parametrize("parts", [[12], [0, 5, 7], [1, 0, 0, 11], [4, 4, 4], [3, 9, 0]])
def test_merged_it_is_as_if_one_had_seen_all(case: tuple[Any, Any, Any], parts: list[int]) -> None:
    metric, x, y = case
    merged, whole = copy(metric), copy(metric)
    merged.reset()
    for start, end in itertools.pairwise([0, *itertools.accumulate(parts)]):
        one = copy(metric)
        one.reset()
        one.update(x[start:end], y[start:end])
        merged.merge(pickle.loads(pickle.dumps(one.state())))
    whole.reset()
    whole.update(x, y)
    np.testing.assert_allclose(merged.result(), whole.result(), rtol=1e-9)
    assert merged.samples == whole.samples
    assert type(metric)._can_merge()


def test_a_subclass_that_gathers_more_does_not_merge_before_it_says_how() -> None:
    class More(metrics.Accuracy):
        def reset(self) -> None:
            super().reset()
            self.worst = 1.0

    class Told(More):
        gathered = (*metrics.Accuracy.gathered, "worst")

        def merge(self, state: Any) -> None:
            self.worst = min(self.worst, state["worst"])

    assert not More._can_merge()
    assert Told._can_merge()
