"""Random draws."""

from __future__ import annotations

import numpy as np

from singanet.ops import ops_for


def test_bernoulli_is_true_with_the_probability_of_each_element(xp):
    p = xp.asarray([[0.0, 0.25], [0.5, 1.0]], "float32")
    ops = ops_for(p)
    rng = np.random.default_rng(0)
    draws = np.stack([ops.host(ops.bernoulli(rng, p)) for _ in range(2000)])
    assert draws.dtype == bool
    # Five standard deviations of a mean of 2000.
    np.testing.assert_allclose(draws.mean(axis=0), [[0, 0.25], [0.5, 1]], atol=5 * 0.0112)
    assert draws[:, 0, 0].sum() == 0
    assert draws[:, 1, 1].all()


def test_bernoulli_is_the_same_for_one_seed(xp):
    p = xp.full((40,), 0.5, "float32")
    ops = ops_for(p)
    a, b = (ops.host(ops.bernoulli(np.random.default_rng(s), p)) for s in (1, 1))
    np.testing.assert_array_equal(a, b)


def test_keep_mask_keeps_the_share_asked_for():
    ops, rng = ops_for(np.empty(0)), np.random.default_rng(0)
    assert ops.keep_mask(rng, (3, 4), 1.0).all()
    mask = ops.keep_mask(rng, (100, 100), 0.3)
    assert mask.dtype == bool
    # Five standard deviations of a mean of 10,000.
    assert abs(mask.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 10_000)
    np.testing.assert_array_equal(
        ops.keep_mask(np.random.default_rng(4), (5, 6), 0.5),
        ops.keep_mask(np.random.default_rng(4), (5, 6), 0.5),
    )
