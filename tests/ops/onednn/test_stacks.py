"""Products of stacks of matrices: that they are right wherever the stacks lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.ops.onednn import OneDnnOps, products
from singanet.ops.onednn.products import narrowed
from singanet.ops.window import Attention


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lying(shape, order, room, seed):
    """Random numbers of ``shape``, with the axes in another ``order`` in memory and gaps."""
    across = [shape[axis] for axis in order]
    across[-1] += room
    whole = draw(*across, seed=seed)[..., : across[-1] - room]
    return whole.transpose(np.argsort(order))


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.tuples(*[st.integers(1, 20)] * 3),
    st.integers(0, 3),
    st.integers(0, 2**31),
    st.data(),
)
def test_every_order(library_path, batch, sizes, room, seed, data):
    m, k, n = sizes
    ops, axes = OneDnnOps(library_path, True), range(len(batch) + 2)
    a = lying((*batch, m, k), data.draw(st.permutations(axes)), room, seed)
    b = lying((*batch, k, n), data.draw(st.permutations(axes)), 0, seed + 1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    made = products.stacks_product(ops, a, b, None)
    apart = [x.strides[-1] > 4 < x.strides[-2] and min(x.shape[-2:]) > 1 for x in (a, b)]
    assert (made is None) is any(apart) or 1 in (*a.shape, *b.shape)
    if made is not None:
        np.testing.assert_allclose(made, exact, rtol=0, atol=1e-5 * max(1, abs(exact).max()))


def test_which_are_its(ops, plans):
    heads = [draw(8, 128, 4, 64, seed=seed).transpose(0, 2, 1, 3) for seed in (0, 1)]
    a, b = heads[0], heads[1].swapaxes(2, 3)
    out = np.empty((8, 4, 128, 128), np.float32)
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    assert plans() == (1, 0)
    small = a[:, :, :32], b[:, :, :, :32]
    np.testing.assert_array_equal(ops.matmul(*small), small[0] @ small[1])
    spread = np.lib.stride_tricks.as_strided(a, (8, 4, 128, 64), (0, *a.strides[1:]))
    np.testing.assert_array_equal(ops.matmul(spread, b), spread @ b)
    np.testing.assert_array_equal(ops.matmul(a, b[:1]), a @ b[:1])
    assert plans() == (1, 0)
    with pytest.raises(ValueError, match="mismatch"):
        ops.matmul(a, a)


def test_those_of_attention_are_rounded(ops, plans):
    if not ops.library().bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    narrow = narrowed(ops, "test")
    q, k = (draw(32, 64, 4, 32, seed=seed).transpose(0, 2, 1, 3) for seed in (0, 1))
    exact, rounded = (o.attention_weights(q, k, Attention(0.2, causal=True)) for o in (ops, narrow))
    # Factors are rounded by 2⁻⁹ at most, where oneDNN holds such a kernel for the faster.
    assert np.abs(rounded - exact).max() < 0.02
    np.testing.assert_allclose(rounded.sum(axis=3), 1, rtol=1e-5)
    dweights = draw(32, 4, 64, 64, seed=2)
    pairs = zip(
        *(o.attention_backward(dweights.copy(), exact, q, k, 0.2) for o in (ops, narrow)),
        strict=True,
    )
    for sharp, coarse in pairs:
        assert np.abs(coarse - sharp).max() < 0.02 * np.abs(sharp).max()
