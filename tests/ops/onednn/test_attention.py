"""Attention weights by oneDNN beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops import NumpyOps
from singanet.ops.onednn import OneDnnOps, attending
from singanet.ops.onednn.attending import _SCORES_LEAST
from singanet.ops.window import Attention

N, HEADS, QUERIES, KEYS, SIZE = 3, 2, 5, 7, 4


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture
def from_the_first(monkeypatch):
    monkeypatch.setattr(attending, "_SCORES_LEAST", 1)


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.integers(0, 7), st.integers(0, 3), st.integers(0, 2**31))
def test_what_is_hidden_gets_nothing(library_path, causal, masks, first, seed):
    rng = np.random.default_rng(seed)
    q, k = draw(rng, N, HEADS, QUERIES, SIZE), draw(rng, N, HEADS, KEYS, SIZE)
    lengths = rng.integers(0, KEYS + 1, N) if masks & 1 else None
    seen = rng.integers(0, 2, (N, 1, rng.choice([1, QUERIES]), KEYS)) if masks & 2 else None
    added = draw(rng, 1, HEADS, QUERIES, KEYS) if masks & 4 else None
    shown = np.ones((N, HEADS, QUERIES, KEYS), bool)
    if causal:
        shown &= np.arange(KEYS) <= first + np.arange(QUERIES)[:, None]
    if lengths is not None:
        shown &= (np.arange(KEYS) < lengths[:, None])[:, None, None]
    if seen is not None:
        shown &= seen.astype(bool)
    if added is not None:
        added[rng.random(added.shape) < 0.3] = -np.inf
        shown &= added > -np.inf
    exact = np.exp(q.astype(float) @ k.swapaxes(2, 3) * 0.3 + (0 if added is None else added))
    exact = np.where(shown, exact, 0)
    total = exact.sum(axis=-1, keepdims=True)
    exact = np.divide(exact, total, out=np.zeros_like(exact), where=total > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attending, "_SCORES_LEAST", 1)
        ops = OneDnnOps(library_path, True)
        case = Attention(0.3, causal, first, lengths=lengths, seen=seen, added=added)
        got = ops.attention_weights(q, k, case)
        assert any(key[0] is attending._forward_in_place for key in ops.runtime()._plans)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hurt", [np.nan, np.inf])
def test_no_number_stays_none_in_what_is_made_of_it(ops, from_the_first, rng, hurt):
    q, k, v = draw(rng, 2, 2, 5, 4), draw(rng, 2, 2, 5, 4), draw(rng, 2, 2, 5, 4)
    q[1, 0, 2, 1] = hurt
    with np.errstate(invalid="ignore"):
        outputs = [
            o.matmul(o.attention_weights(q, k, Attention(0.5, True)), v)
            for o in (ops, NumpyOps(np))
        ]
        exact = np.isnan(outputs[1]).any(axis=-1)
    # The infinite scores of the other sign are -inf and seen by nobody.
    assert exact[1, 0, 2]
    for made in outputs:
        np.testing.assert_array_equal(np.isnan(made).all(axis=-1), exact)


def test_a_hidden_key_may_be_anything(ops, only_onednn, from_the_first, rng):
    only_onednn("attention_weights")
    q, k = draw(rng, 1, 1, 4, 4), draw(rng, 1, 1, 4, 4)
    before = ops.attention_weights(q, k, Attention(0.5, True))
    k[:, :, 3] = np.nan
    after = ops.attention_weights(q, k, Attention(0.5, True))
    np.testing.assert_array_equal(after[:, :, :3], before[:, :, :3])


def test_few_are_numpys(ops, plans, rng):
    keys = _SCORES_LEAST // 64
    k = draw(rng, 1, 1, keys, 4)
    for queries, made in ((63, 0), (64, 1)):
        ops.attention_weights(draw(rng, 1, 1, queries, 4), k, Attention(1.0))
        assert plans() == (made, 0)
