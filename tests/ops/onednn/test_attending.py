"""Streamed attention by oneDNN: NumPy's in float32, and with rounded factors beside it."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.device import Device
from singanet.layers import MultiHeadAttention
from singanet.loss import SquaredError
from singanet.ops import NumpyOps
from singanet.ops.onednn import attending
from singanet.ops.onednn.products import narrowed
from singanet.ops.window import Attended, Attention
from singanet.optimizer import SGD

PLAIN = NumpyOps(np)
SEEDS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def heads(rng, n, count, steps, size):
    rows = rng.standard_normal((n, steps, count, size)).astype(np.float32)
    return rows.transpose(0, 2, 1, 3)


@pytest.fixture
def narrow(ops, monkeypatch):
    if not ops.library().bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    monkeypatch.setattr(attending, "_LEAST", 1)
    return narrowed(ops, "test")


CASES = {
    "plain": {},
    "causal": {"causal": True, "first": 7},
    "window": {"causal": True, "window": 50},
    "softcap": {"softcap": 1.5},
    "dropout": {"dropout": 0.3, "seeds": SEEDS},
}


def both(ops, rng, case, mask_gradient=False):
    q, dmeans = (heads(rng, 2, 4, 130, 32) for _ in range(2))
    k, v = (heads(rng, 2, 2, 137, 32) for _ in range(2))
    means, lse = ops.attend(q, k, v, case)
    return means, *ops.attend_backward(dmeans, Attended(q, k, v, means, lse), case, mask_gradient)


@pytest.mark.parametrize("name", CASES)
def test_factors_are_rounded_and_nothing_else(narrow, name):
    case = Attention(0.2, **CASES[name])
    exact, made = (both(ops, np.random.default_rng(1), case) for ops in (PLAIN, narrow))
    for sharp, coarse in zip(exact[:4], made, strict=False):
        error = np.abs(coarse - sharp).max()
        # By 2⁻⁹ at most, each of a few factors.
        assert 0 < error < 0.02 * np.abs(sharp).max()


def test_a_mask_has_the_gradient_of_its_scores(narrow, rng):
    case = Attention(0.2, added=rng.standard_normal((1, 4, 1, 137)).astype(np.float32))
    exact, made = (both(ops, np.random.default_rng(1), case, True) for ops in (PLAIN, narrow))
    assert made[4].shape == (1, 4, 1, 137)
    assert np.abs(made[4] - exact[4]).max() < 0.02 * np.abs(exact[4]).max()


def test_what_is_not_narrow_is_numpys(ops, rng):
    case = Attention(0.2, True)
    exact, made = (both(each, np.random.default_rng(1), case) for each in (PLAIN, ops))
    for one, other in zip(exact[:4], made, strict=False):
        np.testing.assert_array_equal(one, other)


def test_a_recorded_step_rounds_as_one_by_the_layers(narrow, monkeypatch):
    monkeypatch.setattr("singanet.layers.multi_head_attention.are_few", lambda *_: False)
    x = np.random.default_rng(0).standard_normal((2, 96, 32)).astype(np.float32)
    left = []
    for recorded in (True, False):
        layer = MultiHeadAttention("look", 2, causal=True, dropout=0.2, input_sample_shape=(96, 32))
        net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)
        net.device = Device("cpu", narrow)
        net.programs.enabled = recorded
        optimizer = SGD(lr=0.1)
        losses = [net.step(x, x, optimizer)[0] for _ in range(4)]
        left.append([losses, *(param.value for param in net.params())])
    for one, other in zip(*left, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
