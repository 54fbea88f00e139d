"""Streamed attention against the formula over whole arrays, and PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import NumpyOps
from singanet.ops.numpy import attending
from singanet.ops.window import Attended, Attention

OPS = NumpyOps(np)


def visible(case, shape):
    """Which of the scores (N, h, Tq, Tk) are seen."""
    position = case.first + np.arange(shape[2])[:, None]
    keys = np.arange(shape[3])
    seen = np.ones(shape, bool)
    if case.causal:
        seen &= keys <= position
    if case.window is not None:
        seen &= keys > position - case.window
    if case.lengths is not None:
        seen &= keys < case.lengths[:, None, None, None]
    if case.seen is not None:
        seen &= case.seen != 0
    if case.segments is not None:
        of_queries, of_keys = case.segments
        seen &= of_queries[:, None, :, None] == of_keys[:, None, None]
    return seen


def formula(q, k, v, case):
    """Means over whole rows of weights, and the logarithms of their sums."""
    k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    scores = np.einsum("nhid,nhjd->nhij", q, k) * case.scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    if case.added is not None:
        scores = scores + case.added
    weights = np.where(visible(case, scores.shape), np.exp(scores), 0.0)
    total = weights.sum(axis=3, keepdims=True)
    sums = np.where(total == 0, 1, total)
    return weights / sums @ v, np.log(sums[..., 0])


@st.composite
def cases(draw):
    """Queries, keys, values, a gradient, and a case; blocks so small that there are several."""
    number = st.integers(1, 3)
    n, groups, shared, size, width = (draw(number) for _ in range(5))
    queries, keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    heads = groups * shared
    shapes = [(n, heads, queries, size), (n, groups, keys, size), (n, groups, keys, width)]
    q, k, v, dmeans = (rng.standard_normal(s) for s in [*shapes, (n, heads, queries, width)])

    def spread():
        whole = (n, heads, queries, keys)
        return tuple(draw(st.sampled_from([extent, 1])) for extent in whole)

    some = st.booleans()
    case = Attention(
        scale=0.7,
        causal=draw(some),
        first=draw(st.integers(0, 4)),
        window=draw(st.none() | st.integers(1, 6)),
        softcap=draw(st.none() | st.just(1.3)),
        lengths=rng.integers(0, keys + 1, n) if draw(some) else None,
        seen=rng.integers(0, 2, spread()) if draw(some) else None,
        added=rng.standard_normal(spread()) if draw(some) else None,
        segments=tuple(np.sort(rng.integers(0, 3, (n, t)), 1) for t in (queries, keys))
        if draw(some)
        else None,
    )
    return (q, k, v, dmeans), case, draw(st.integers(1, 40)), draw(st.integers(1, 5))


def test_single_queries_of_heads_that_share_their_keys(monkeypatch):
    """What is subtracted from their scores lies a whole row apart."""
    monkeypatch.setattr(attending, "_SCORES", 1)
    rng = np.random.default_rng(0)
    q, dmeans = rng.standard_normal((2, 1, 2, 8, 1))
    k, v = rng.standard_normal((2, 1, 1, 1, 1))
    case = Attention(scale=0.7)
    means, lse = OPS.attend(q, k, v, case)
    dv = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case, False)[2]
    # One key has the whole weight.
    np.testing.assert_allclose(dv.sum(), dmeans.sum(), rtol=1e-12)


@given(cases(), st.integers(1, 3))
def test_equals_the_formula_over_whole_arrays(drawn, threads):
    (q, k, v, dmeans), case, scores, keys = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attending, "_SCORES", scores)
        patch.setattr(attending, "_KEYS", keys)
        patch.setattr(attending, "LEAST", 0)
        patch.setattr("singanet.ops.numpy.default_threads", lambda: threads)
        means, lse = OPS.attend(q, k, v, case)
        expected, logarithms = formula(q, k, v, case)
        np.testing.assert_allclose(means, expected, rtol=1e-9, atol=1e-12)
        seen = visible(case, (*q.shape[:3], k.shape[2])).any(axis=3)
        np.testing.assert_allclose(lse[seen], logarithms[seen], rtol=1e-9, atol=1e-12)
        assert not means[~seen].any()
        found = OPS.attend_backward(
            dmeans, Attended(q, k, v, means, lse), case, case.added is not None
        )
    rng = np.random.default_rng(0)
    given_ = [q, k, v, *([] if case.added is None else [case.added])]
    along = [rng.standard_normal(each.shape) for each in given_]

    def value(step):
        q, k, v, *added = (each + step * d for each, d in zip(given_, along, strict=True))
        moved = replace(case, added=added[0]) if added else case
        return (formula(q, k, v, moved)[0] * dmeans).sum()

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    parts = zip(along, found, strict=False)
    np.testing.assert_allclose(sum((a * b).sum() for a, b in parts), slope, rtol=1e-6, atol=1e-7)
    assert (found[3] is None) == (case.added is None)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_runs_on_any_arrays_and_keeps_their_type(xp, rng, dtype):
    plain = [rng.standard_normal((2, h, 5, 4)).astype(dtype) for h in (4, 2, 2, 4)]
    lengths, seen = np.array([3, 5]), rng.integers(0, 2, (2, 1, 5, 5))
    ids = np.array([[0, 0, 1, 1, 1]] * 2)
    case = Attention(0.5, True, window=3, lengths=lengths, seen=seen, segments=(ids, ids))
    there = [xp.asarray(each) for each in plain]
    given_ = replace(
        case,
        lengths=xp.asarray(lengths),
        seen=xp.asarray(seen),
        segments=(xp.asarray(ids), xp.asarray(ids)),
    )
    ops = NumpyOps(xp)
    means, lse = ops.attend(*there[:3], given_)
    made = [means, *ops.attend_backward(there[3], Attended(*there[:3], means, lse), given_)[:3]]
    assert all(each.dtype == dtype for each in made)
    assert lse.dtype == max(np.dtype(np.float32), np.dtype(dtype))
    exact = [each.astype(np.float64) for each in plain]
    expected, _ = formula(*exact[:3], case)
    got = means.get() if hasattr(means, "get") else means
    atol = {np.float16: 3e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
    # They lie as the layer merges them, heads side by side.
    assert all(each.transpose(0, 2, 1, 3).flags.c_contiguous for each in made)


@pytest.mark.parametrize("few", [True, False])
def test_equals_pytorch(rng, few):
    torch = pytest.importorskip("torch")
    shapes = [(2, 6, 40, 8), (2, 3, 50, 8), (2, 3, 50, 8), (2, 6, 40, 8)]
    q, k, v, dmeans = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    bias = rng.standard_normal((2, 1, 40, 50)).astype(np.float32)
    tensors = [torch.tensor(each, requires_grad=True) for each in (q, k, v)]
    spread = [each.repeat_interleave(2, 1) for each in tensors[1:]]
    theirs = torch.nn.functional.scaled_dot_product_attention(
        tensors[0], *spread, attn_mask=torch.tensor(bias), scale=0.3
    )
    theirs.backward(torch.tensor(dmeans))
    case = Attention(0.3, added=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attending, "_SCORES", 200 if few else 1 << 16)
        patch.setattr(attending, "_KEYS", 16)
        means, lse = OPS.attend(q, k, v, case)
        made = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case)
    np.testing.assert_allclose(means, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    for mine, tensor in zip(made, tensors, strict=False):
        np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_dropped_weights_are_the_same_in_backward(rng, monkeypatch):
    monkeypatch.setattr(attending, "_SCORES", 64)
    monkeypatch.setattr(attending, "_KEYS", 8)
    q, k, v, dmeans = (rng.standard_normal((2, 2, 24, 4)) for _ in range(4))
    case = Attention(0.5, True, dropout=0.4, seeds=np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    means, lse = OPS.attend(q, k, v, case)
    # Linear in the values: so their gradient is told exactly.
    dv = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case)[2]
    np.testing.assert_allclose((dv * v).sum(), (dmeans * means).sum(), rtol=1e-12)
    step = 1e-6 * rng.standard_normal(q.shape)
    up, down = (OPS.attend(q + each, k, v, case)[0] for each in (step, -step))
    dq = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case)[0]
    np.testing.assert_allclose(((up - down) * dmeans).sum() / 2, (dq * step).sum(), rtol=1e-5)
    other, _ = OPS.attend(q, k, v, replace(case, seeds=np.array([0.1, 0.2, 0.3, 0.5], np.float32)))
    assert (other != means).any()
    ones = np.ones((2, 2, 24, 1))
    sums, _ = OPS.attend(np.zeros_like(q), k, ones, replace(case, causal=False))
    # Of 24 equal weights each stays with probability 0.6, and is then 1 / 0.6 as large.
    kept = np.rint(sums * 24 * 0.6)
    np.testing.assert_allclose(kept / 24 / 0.6, sums)
    assert abs(kept.mean() / 24 - 0.6) < 0.05


def test_what_is_no_number_stays_where_it_is_seen(rng, monkeypatch):
    monkeypatch.setattr(attending, "_KEYS", 2)
    monkeypatch.setattr(attending, "_SCORES", 4)
    q, k, v, dmeans = (rng.standard_normal((2, 1, 6, 3)) for _ in range(4))
    k[0, 0, 4:], v[0, 0, 4:] = np.nan, np.nan
    case = Attention(0.5, lengths=np.array([4, 6]))
    means, lse = OPS.attend(q, k, v, case)
    made = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case)[:3]
    assert all(np.isfinite(each).all() for each in (means, lse, *made))
    k[1, 0, 3, 1] = np.nan
    means, lse = OPS.attend(q, k, v, case)
    with np.errstate(invalid="ignore"):
        dq, dk, dv, _ = OPS.attend_backward(dmeans, Attended(q, k, v, means, lse), case)
    assert all(np.isnan(each[1]).all() for each in (means, lse, dq, dk, dv))
    assert all(np.isfinite(each[0]).all() for each in (means, lse, dq, dk, dv))


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_attend_to_or_with(shape):
    n, queries, keys = shape
    q, k = np.ones((n, 2, queries, 4)), np.ones((n, 1, keys, 4))
    means, lse = OPS.attend(q, k, k, Attention(1.0, True))
    made = OPS.attend_backward(
        np.ones_like(means), Attended(q, k, k, means, lse), Attention(1.0, True)
    )
    assert [each.shape for each in (means, *made[:3])] == [q.shape, q.shape, k.shape, k.shape]
    assert not means.any()


def test_scores_of_any_size_stay_finite(monkeypatch):
    monkeypatch.setattr(attending, "_KEYS", 1)
    monkeypatch.setattr(attending, "_SCORES", 1)
    q = np.full((1, 1, 3, 2), 1e18, np.float32)
    k = q * np.array([-1, 0, 1], np.float32)[:, None]
    means, lse = OPS.attend(
        q, k, np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2), Attention(1.0)
    )
    np.testing.assert_array_equal(means, np.broadcast_to(np.float32([4, 5]), (1, 1, 3, 2)))
    assert np.isfinite(lse).all()
