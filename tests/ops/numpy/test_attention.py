"""Attention weights."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import NumpyOps
from singanet.ops.window import Attention


def weights(xp, rng, causal, lengths, dtype=np.float32):
    q, k = (xp.asarray(rng.standard_normal((3, 2, t, 4)).astype(dtype)) for t in (5, 6))
    given = None if lengths is None else xp.asarray(lengths)
    got = NumpyOps(xp).attention_weights(q, k, Attention(0.5, causal, lengths=given))
    return got.get() if hasattr(got, "get") else got


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, np.array([6, 0, 2])])
def test_each_row_is_a_distribution_over_what_may_be_seen(xp, rng, causal, lengths):
    w = weights(xp, rng, causal, lengths)
    assert w.dtype == np.float32
    seen = np.ones((3, 1, 5, 6), bool)
    if causal:
        seen &= np.arange(6) <= np.arange(5)[:, None]
    if lengths is not None:
        seen &= np.arange(6) < lengths[:, None, None, None]
    seen = np.broadcast_to(seen, w.shape)
    assert (w[seen] > 0).all()
    assert not w[~seen].any()
    np.testing.assert_allclose(w.sum(3), seen.any(3), rtol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_attend_to_or_with(queries, keys):
    q, k = np.zeros((2, 1, queries, 4)), np.zeros((2, 1, keys, 4))
    w = NumpyOps(np).attention_weights(q, k, Attention(1.0, True, lengths=np.zeros(2, int)))
    assert w.shape == (2, 1, queries, keys)
