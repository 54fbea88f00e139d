"""Everything that holds for any metric, as a case of few lines."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest

from singanet.errors import CallOrderError, DataError, ShapeError
from singanet.metric import ConfusionMatrix, Metric
from singanet.testing.device_like import device_like
from singanet.testing.layer_case import run_checks


class MetricCase:
    """The metric ``make()`` on outputs ``x`` and targets ``y``.

    ``formula(x, y)`` is the result by an independent formula, if another test does not compare it.
    `test_metric` runs every method ``check_...`` and reports those that fail.
    """

    def __init__(self, make, x, y, formula=None):
        self.make, self.x, self.y, self.formula = make, x, y, formula

    def test_metric(self):
        """Run all checks."""
        run_checks(self, np)

    def seen(self, *parts, weight=None, x=None, y=None):
        """A new metric that has seen the samples of each part."""
        metric, x, y = self.make(), self.x if x is None else x, self.y if y is None else y
        for part in parts:
            metric.update(x[part], y[part], *(() if weight is None else (weight[part],)))
        return metric

    def check_result_equals_the_formula(self, _):
        whole = self.seen(slice(None))
        assert whole.samples == len(self.x)
        if self.formula is not None:
            np.testing.assert_allclose(whole.result(), self.formula(self.x, self.y), rtol=1e-6)

    def check_batches_of_any_size_give_the_result_of_the_whole(self, _):
        """Gathered by one metric, and by several that are merged."""
        count, rng = len(self.x), np.random.default_rng(4)
        whole = self.seen(slice(None))
        drawn = [sorted(rng.integers(0, count + 1, size)) for size in (0, 1, 2, 4, 4)]
        for cuts in (*drawn, [0, 0, 5], [count, count]):
            parts = [slice(*pair) for pair in itertools.pairwise([0, *cuts, count])]
            gathered, merged = self.seen(*parts), self.make()
            for part in parts:
                merged.merge(pickle.loads(pickle.dumps(self.seen(part).state())))
            for metric in (gathered, merged):
                np.testing.assert_allclose(metric.result(), whole.result(), rtol=1e-9)
                assert metric.samples == count
        assert type(whole)._can_merge()
        if not isinstance(whole, ConfusionMatrix):
            np.testing.assert_allclose(
                np.nan_to_num(whole.result()), self.make().evaluate(self.x, self.y), rtol=1e-9
            )

    def check_evaluate_and_reset(self, _):
        """`evaluate` leaves what was gathered; `reset` forgets it."""
        metric, part = self.seen(slice(0, 6)), slice(6, None)
        before = metric.result()
        assert type(metric.evaluate(self.x, self.y)) is float
        np.testing.assert_array_equal(metric.result(), before)
        assert metric.samples == 6
        metric.reset()
        metric.update(self.x[part], self.y[part])
        np.testing.assert_array_equal(metric.result(), self.seen(part).result())
        assert metric.samples == len(self.x) - 6

    def check_a_copy_and_a_merged_metric_go_on_alone(self, _):
        first, rest = slice(0, 6), slice(6, None)
        metric, merged = self.seen(first), self.make()
        merged.merge(metric.state())
        before = metric.result()
        for other in (copy.copy(metric), merged):
            other.update(self.x[rest], self.y[rest])
            np.testing.assert_array_equal(metric.result(), before)
            np.testing.assert_array_equal(other.result(), self.seen(first, rest).result())

    def check_no_sample_no_result(self, _):
        metric = self.make()
        with pytest.raises(CallOrderError, match="at least one sample"):
            metric.result()
        metric.update(self.x[:0], self.y[:0])
        with pytest.raises(CallOrderError):
            metric.result()

    def check_inputs_are_left_alone_and_memory_layout_does_not_matter(self, _):
        x, y = self.x.copy(), self.y.copy()
        expected = self.make().evaluate(self.x, self.y)
        np.testing.assert_array_equal(self.x, x)
        np.testing.assert_array_equal(self.y, y)
        apart = np.repeat(x, 2, axis=-1)[..., ::2], np.repeat(y, 2, axis=0)[::2]
        assert self.make().evaluate(*apart) == expected

    def check_strict_arrays_give_the_same(self, _):
        given = device_like.asarray(self.x), device_like.asarray(self.y)
        np.testing.assert_allclose(
            self.make().evaluate(*given), self.make().evaluate(self.x, self.y), rtol=1e-9
        )

    def check_narrow_types_are_measured_in_float32(self, _):
        if self.x.dtype.kind != "f":
            return
        half, found, parts = self.x.astype(np.float16), [], (slice(0, 10), slice(10, None))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for kind in (np.float16, np.float32):
                found.append(self.seen(*parts, x=half.astype(kind)).compute())
        np.testing.assert_array_equal(*found)
        assert np.isfinite(found[0]).all()

    def check_a_weight_is_so_many_samples(self, _):
        """Also if it is 0, and if some batches have none."""
        x, y, times = self.x, self.y, np.random.default_rng(1).integers(0, 4, len(self.x))
        times[:6] = 1
        whole, other, many = self.seen(slice(0, 6)), self.make(), self.make()
        whole.update(x[6:9], y[6:9], times[6:9])
        other.update(x[9:], y[9:], times[9:].astype(np.float32))
        whole.merge(other.state())
        repeated = np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)
        many.update(*repeated)
        np.testing.assert_allclose(whole.result(), many.result(), rtol=1e-6)
        alone = self.make().evaluate(x, y, times)
        np.testing.assert_allclose(alone, many.evaluate(*repeated), 1e-6)

    def check_a_description_gives_an_equal_metric(self, _):
        metric = self.make()
        again = Metric.from_config(metric.to_config())
        assert type(again) is type(metric)
        assert again.evaluate(self.x, self.y) == metric.evaluate(self.x, self.y)

    def check_refusals(self, _):
        metric, count = self.make(), len(self.x)
        for x in (np.array(1.0), np.array(["a"])):
            with pytest.raises(DataError, match=type(metric).__name__):
                metric.update(x, self.y)
        for weight, error in (
            (np.ones(count - 1), ShapeError),
            (np.ones(()), ShapeError),
            (np.ones((count, 9)), ShapeError),
            (-np.ones(count), DataError),
            (np.full(count, np.nan), DataError),
            (np.array(["1"] * count), DataError),
        ):
            with pytest.raises(error, match="sample_weight"):
                metric.update(self.x, self.y, weight)
        assert not metric.samples
