"""The kernels of batch normalisation: whatever the blocks, and without cancellation."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import normalise

SHAPES = [(7, 3), (1, 3), (5, 3, 4, 2), (4, 1, 1, 1), (3, 2, 1, 5), (1, 4, 3, 3)]


def layouts(x):
    yield x
    yield np.asfortranarray(x)
    if x.ndim == 4:
        yield x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)


def channels(x):
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 200, 1 << 19])
def test_statistics(shape, block, monkeypatch, rng):
    monkeypatch.setattr(normalise, "_BLOCK_BYTES", block)
    x = 3.0 + rng.standard_normal(shape)
    for laid_out in layouts(x):
        mean, var = normalise.batch_norm_statistics(ops, laid_out)
        np.testing.assert_allclose(mean, channels(x).mean(axis=1), rtol=1e-12)
        np.testing.assert_allclose(var, channels(x).var(axis=1), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("block", [1, 1 << 19])
def test_a_far_sample_does_not_spoil_the_others(block, monkeypatch, rng):
    """Blocks about their own means, in float32: the first far from the rest."""
    monkeypatch.setattr(normalise, "_BLOCK_BYTES", block)
    x = rng.standard_normal((20, 2, 8, 8)).astype(np.float32)
    x[0] += 1e4
    mean, var = normalise.batch_norm_statistics(ops, x)
    exact = channels(x.astype(np.float64))
    np.testing.assert_allclose(mean, exact.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(axis=1), rtol=1e-5)
    assert mean.dtype == var.dtype == np.float32


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 1 << 19])
def test_forward_and_backward(shape, block, monkeypatch, rng):
    monkeypatch.setattr(normalise, "_BLOCK_BYTES", block)
    x, dy = rng.standard_normal((2, *shape))
    gamma, beta, mean = rng.standard_normal((3, shape[1]))
    var = rng.uniform(0.5, 2.0, shape[1])
    xs, dys = channels(x), channels(dy)
    x_hat = (xs - mean[:, None]) / np.sqrt(var + 0.1)[:, None]
    for laid_out in layouts(x):
        y, inverse = ops.batch_norm(laid_out, gamma, beta, mean, var, 0.1)
        np.testing.assert_allclose(channels(y), gamma[:, None] * x_hat + beta[:, None], rtol=1e-10)
        for fixed in (True, False):
            dx, dgamma, dbeta = ops.batch_norm_backward(dy, laid_out, gamma, mean, inverse, fixed)
            np.testing.assert_allclose(dbeta, dys.sum(axis=1), rtol=1e-10)
            np.testing.assert_allclose(dgamma, (dys * x_hat).sum(axis=1), rtol=1e-10, atol=1e-12)
            through = dys - 0.0 if fixed else (
                dys - dys.mean(axis=1, keepdims=True)
                - x_hat * (dys * x_hat).mean(axis=1, keepdims=True)
            )  # fmt: skip
            want = (gamma * inverse)[:, None] * through
            np.testing.assert_allclose(channels(dx), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_moved(weight):
    running, batch = np.array([2.0, 4.0], np.float32), np.array([6.0, -4.0], np.float32)
    got = ops.moved(running, batch, weight)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, [2.0 + 4.0 * weight, 4.0 - 8.0 * weight], rtol=1e-6)
    assert running.tolist() == [2.0, 4.0]
