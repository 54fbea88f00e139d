"""Batch normalisation with relu: the formulas of both, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops


@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5, 6)])
@pytest.mark.parametrize("fixed", [False, True])
def test_forward_and_backward(shape, fixed):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, *shape))
    gamma, beta, mean = rng.standard_normal((3, shape[1]))
    var = rng.uniform(0.5, 2, shape[1])
    axes = (0, 2, 3)[: len(shape) - 1]
    by_channel = (slice(None), *[None] * (len(shape) - 2))
    if fixed:
        y, inverse, mask = numpy_ops.batch_norm(x, gamma, beta, mean, var, 1e-3, True)
    else:
        y, mean, var, inverse, mask = numpy_ops.batch_norm_train(x, gamma, beta, 1e-3, True)
        np.testing.assert_allclose(mean, x.mean(axes))
        np.testing.assert_allclose(var, x.var(axes))
    np.testing.assert_allclose(inverse, 1 / np.sqrt(var + 1e-3))

    def formula(x):
        m, v = (mean, var) if fixed else (x.mean(axes), x.var(axes))
        scaled = (x - m[by_channel]) / np.sqrt(v + 1e-3)[by_channel]
        return np.maximum(gamma[by_channel] * scaled + beta[by_channel], 0)

    np.testing.assert_allclose(y, formula(x), atol=1e-12)
    given = (dy, x, gamma, mean, inverse, fixed, mask)
    dx, dgamma, dbeta = numpy_ops.batch_norm_backward(*given)
    v, step = rng.standard_normal(shape), 1e-6
    slope = np.sum(dy * (formula(x + step * v) - formula(x - step * v))) / (2 * step)
    np.testing.assert_allclose(np.sum(dx * v), slope, rtol=1e-5)
    np.testing.assert_allclose(dbeta, np.sum(dy * (y > 0), axis=axes))
    x_hat = (x - mean[by_channel]) * inverse[by_channel]
    np.testing.assert_allclose(dgamma, np.sum(dy * (y > 0) * x_hat, axis=axes))
