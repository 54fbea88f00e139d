"""Attention by NumPy, LLVM and oneDNN, against the formula over whole rows and PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet.device import Device
from singanet.layers import MultiHeadAttention
from singanet.loss import SquaredError
from singanet.ops import NumpyOps, numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.compiled import engine
from singanet.ops.interface import Prepared
from singanet.ops.kernel import in_order
from singanet.ops.llvm import attend_blocks, few
from singanet.ops.llvm.plans import PlanRuntime
from singanet.ops.numpy import attending
from singanet.ops.onednn import attending as onednns
from singanet.ops.window import Attended, Attention
from singanet.optimizer import SGD


def visible(case, shape):
    """Return the mask of visible scores (N, h, Tq, Tk)."""
    position = case.first + np.arange(shape[2])[:, None]
    keys = np.arange(shape[3])
    seen = np.ones(shape, bool)
    if case.causal:
        seen &= keys <= position
    if case.window is not None:
        seen &= keys > position - case.window
        if not case.causal:
            seen &= keys < position + case.window
    if case.lengths is not None:
        seen &= keys < case.lengths[:, None, None, None]
    if case.seen is not None:
        seen &= case.seen != 0
    if case.segments is not None:
        of_queries, of_keys = case.segments
        seen &= of_queries[:, None, :, None] == of_keys[:, None, None]
    return seen


def formula(q, k, v, case):
    """Return the weights over whole rows, the outputs, and the logarithms of the sums."""
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = np.einsum("nhid,nhjd->nhij", q, k) * case.scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    if case.added is not None:
        scores = scores + case.added
    weights = np.where(visible(case, scores.shape), np.exp(scores), 0.0)
    total = weights.sum(axis=3, keepdims=True)
    sums = np.where(total == 0, 1, total)
    return weights / sums, weights / sums @ v, np.log(sums[..., 0])


@st.composite
def cases(draw):
    """Draw queries, keys, values, a gradient, a case, and the sizes of blocks."""
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


def streamed(q, k, v, dmeans, case, mask_gradient=False, ops=numpy_ops):
    """The outputs and the logarithms of the sums, then all gradients."""
    means, lse = ops.attend(q, k, v, case)
    made = Attended(q, k, v, means, lse)
    return means, lse, *ops.attend_backward(dmeans, made, case, mask_gradient)


def blocks_of(patch, scores, keys):
    patch.setattr(attending, "_SCORES", scores)
    patch.setattr(attending, "_KEYS", keys)


@given(cases(), st.integers(1, 3))
def test_equals_the_formula_over_whole_arrays(drawn, threads):
    (q, k, v, dmeans), case, scores, keys = drawn
    with pytest.MonkeyPatch.context() as patch:
        blocks_of(patch, scores, keys)
        patch.setattr(attending, "LEAST", 0)
        patch.setattr("singanet.ops.numpy.default_threads", lambda: threads)
        means, lse, *found = streamed(q, k, v, dmeans, case, case.added is not None)
    _, expected, logarithms = formula(q, k, v, case)
    np.testing.assert_allclose(means, expected, rtol=1e-9, atol=1e-12)
    seen = visible(case, (*q.shape[:3], k.shape[2])).any(axis=3)
    np.testing.assert_allclose(lse[seen], logarithms[seen], rtol=1e-9, atol=1e-12)
    assert not means[~seen].any()
    rng = np.random.default_rng(0)
    given_ = [q, k, v, *([] if case.added is None else [case.added])]
    along = [rng.standard_normal(each.shape) for each in given_]

    def value(step):
        q, k, v, *added = (each + step * d for each, d in zip(given_, along, strict=True))
        moved = replace(case, added=added[0]) if added else case
        return (formula(q, k, v, moved)[1] * dmeans).sum()

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    parts = zip(along, found, strict=False)
    np.testing.assert_allclose(sum((a * b).sum() for a, b in parts), slope, rtol=1e-6, atol=1e-7)
    assert (found[3] is None) == (case.added is None)


def test_single_queries_of_heads_that_share_their_keys(monkeypatch, rng):
    """The maxima of their scores have the stride of a whole row."""
    monkeypatch.setattr(attending, "_SCORES", 1)
    q, dmeans = rng.standard_normal((2, 1, 2, 8, 1))
    k, v = rng.standard_normal((2, 1, 1, 1, 1))
    dv = streamed(q, k, v, dmeans, Attention(scale=0.7))[4]
    # One key has the whole weight.
    np.testing.assert_allclose(dv.sum(), dmeans.sum(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_runs_on_any_arrays_and_keeps_their_type(xp, rng, dtype):
    plain = [rng.standard_normal((2, h, 5, 4)).astype(dtype) for h in (4, 2, 2, 4)]
    lengths, seen = np.array([3, 5]), rng.integers(0, 2, (2, 1, 5, 5))
    ids = np.array([[0, 0, 1, 1, 1]] * 2)
    case = Attention(0.5, True, window=3, lengths=lengths, seen=seen, segments=(ids, ids))
    there = xp.asarray(ids)
    given_ = replace(case, lengths=xp.asarray(lengths), seen=xp.asarray(seen),
                     segments=(there, there))  # fmt: skip
    ops = NumpyOps(xp)
    means, lse, *grads, _ = streamed(*map(xp.asarray, plain), given_, ops=ops)
    made = [means, *grads]
    assert all(each.dtype == dtype for each in made)
    assert lse.dtype == max(np.dtype(np.float32), np.dtype(dtype))
    expected = formula(*[each.astype(np.float64) for each in plain[:3]], case)[1]
    atol = {np.float16: 3e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(ops.host(means), expected, rtol=0, atol=atol)
    # In memory the heads are side by side, as the layer merges them.
    assert all(each.transpose(0, 2, 1, 3).flags.c_contiguous for each in made)


@pytest.mark.parametrize("few", [True, False])
def test_equals_pytorch(rng, few, monkeypatch):
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
    blocks_of(monkeypatch, 200 if few else 1 << 16, 16)
    means, _, *made = streamed(q, k, v, dmeans, Attention(0.3, added=bias))
    np.testing.assert_allclose(means, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    for mine, tensor in zip(made, tensors, strict=False):
        np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_dropped_weights_are_the_same_in_backward(rng, monkeypatch):
    blocks_of(monkeypatch, 64, 8)
    q, k, v, dmeans = (rng.standard_normal((2, 2, 24, 4)) for _ in range(4))
    case = Attention(0.5, True, dropout=0.4, seeds=np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    means, _, dq, _, dv, _ = streamed(q, k, v, dmeans, case)
    # The outputs are linear in the values.
    np.testing.assert_allclose((dv * v).sum(), (dmeans * means).sum(), rtol=1e-12)
    step = 1e-6 * rng.standard_normal(q.shape)
    up, down = (numpy_ops.attend(q + each, k, v, case)[0] for each in (step, -step))
    np.testing.assert_allclose(((up - down) * dmeans).sum() / 2, (dq * step).sum(), rtol=1e-5)
    other = replace(case, seeds=np.array([0.1, 0.2, 0.3, 0.5], np.float32))
    assert (numpy_ops.attend(q, k, v, other)[0] != means).any()
    ones = np.ones((2, 2, 24, 1))
    sums, _ = numpy_ops.attend(np.zeros_like(q), k, ones, replace(case, causal=False))
    # Of 24 equal weights each stays with probability 0.6, and is then 1 / 0.6 as large.
    kept = np.rint(sums * 24 * 0.6)
    np.testing.assert_allclose(kept / 24 / 0.6, sums)
    assert abs(kept.mean() / 24 - 0.6) < 0.05


def test_nan_stays_in_its_sample(rng, monkeypatch):
    blocks_of(monkeypatch, 4, 2)
    q, k, v, dmeans = (rng.standard_normal((2, 1, 6, 3)) for _ in range(4))
    k[0, 0, 4:], v[0, 0, 4:] = np.nan, np.nan
    case = Attention(0.5, lengths=np.array([4, 6]))
    assert all(np.isfinite(each).all() for each in streamed(q, k, v, dmeans, case)[:5])
    k[1, 0, 3, 1] = np.nan
    with np.errstate(invalid="ignore"):
        made = streamed(q, k, v, dmeans, case)
    assert all(np.isnan(made[i][1]).all() for i in (0, 1, 2, 3, 4))
    assert all(np.isfinite(each[0]).all() for each in made[:5])


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_attend_to_or_with(shape):
    n, queries, keys = shape
    q, k = np.ones((n, 2, queries, 4)), np.ones((n, 1, keys, 4))
    means, _, *made = streamed(q, k, k, np.ones((n, 2, queries, 4)), Attention(1.0, True))
    assert [each.shape for each in (means, *made[:3])] == [q.shape, q.shape, k.shape, k.shape]
    assert not means.any()


def test_scores_of_any_size_stay_finite(monkeypatch):
    blocks_of(monkeypatch, 1, 1)
    q = np.full((1, 1, 3, 2), 1e18, np.float32)
    k = q * np.array([-1, 0, 1], np.float32)[:, None]
    v = np.arange(6, dtype=np.float32).reshape(1, 1, 3, 2)
    means, lse = numpy_ops.attend(q, k, v, Attention(1.0))
    np.testing.assert_array_equal(means, np.broadcast_to(np.float32([4, 5]), (1, 1, 3, 2)))
    assert np.isfinite(lse).all()


# -- Attention weights by oneDNN ------------------------------------------------------------------


@pytest.fixture
def from_the_first(monkeypatch):
    monkeypatch.setattr(few, "SCORES", 1)


@pytest.mark.parametrize("hurt", [np.nan, np.inf])
def test_nan_reaches_the_outputs(onednn, from_the_first, rng, hurt):
    q, k, v = rng.standard_normal((3, 2, 2, 5, 4)).astype(np.float32)
    q[1, 0, 2, 1] = hurt
    with np.errstate(invalid="ignore"):
        outputs = [o.matmul(o.attention_weights(q, k, Attention(0.5, True)), v)
                   for o in (onednn, numpy_ops)]  # fmt: skip
        exact = np.isnan(outputs[1]).any(axis=-1)
    # The infinite scores of the other sign are -inf and seen by nobody.
    assert exact[1, 0, 2]
    for made in outputs:
        np.testing.assert_array_equal(np.isnan(made).all(axis=-1), exact)


def test_a_hidden_key_may_be_anything(onednn, from_the_first, rng):
    q, k = rng.standard_normal((2, 1, 1, 4, 4)).astype(np.float32)
    before = onednn.attention_weights(q, k, Attention(0.5, True))
    k[:, :, 3] = np.nan
    after = onednn.attention_weights(q, k, Attention(0.5, True))
    np.testing.assert_array_equal(after[:, :, :3], before[:, :, :3])


def test_few_scores_are_numpys(onednn, plans, rng):
    k = rng.standard_normal((1, 1, few.SCORES // 64, 4)).astype(np.float32)
    for queries, made in ((63, 0), (64, 1)):
        q = rng.standard_normal((1, 1, queries, 4)).astype(np.float32)
        onednn.attention_weights(q, k, Attention(1.0))
        assert plans() == (made, 0)


# -- Attention by oneDNN with factors in bfloat16 -------------------------------------------------


def heads(n, count, steps, size, seed):
    rows = np.random.default_rng(seed).standard_normal((n, steps, count, size), np.float32)
    return rows.transpose(0, 2, 1, 3)


@pytest.fixture
def from_few(monkeypatch):
    monkeypatch.setattr(onednns, "_LEAST", 1)


CASES = {
    "plain": {},
    "causal": {"causal": True, "first": 7},
    "window": {"causal": True, "window": 50},
    "softcap": {"softcap": 1.5},
    "dropout": {"dropout": 0.3, "seeds": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
    "mask": {"added": np.random.default_rng(0).standard_normal((1, 4, 1, 137), np.float32)},
}


def both(ops, case):
    q, dmeans = (heads(2, 4, 130, 32, seed) for seed in (1, 2))
    k, v = (heads(2, 2, 137, 32, seed) for seed in (3, 4))
    means, _, *grads = streamed(q, k, v, dmeans, case, case.added is not None, ops)
    return [means, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("name", CASES)
def test_only_factors_are_rounded(narrow, from_few, name):
    case = Attention(0.2, **CASES[name])
    for sharp, coarse in zip(both(numpy_ops, case), both(narrow, case), strict=True):
        assert sharp.shape == coarse.shape
        # Each of a few factors is rounded by 2⁻⁹ at most.
        assert 0 < np.abs(coarse - sharp).max() < 0.02 * np.abs(sharp).max()


def test_without_bfloat16_it_is_numpys(onednn, from_few):
    # Compiled functions have no softcap.
    case = Attention(0.2, True, softcap=2.0)
    for one, other in zip(both(numpy_ops, case), both(onednn, case), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_recorded_step_rounds_as_one_by_the_layers(narrow, from_few, monkeypatch):
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


@pytest.mark.parametrize("backend", ["llvm", "onednn"])
@pytest.mark.parametrize(
    ("heads", "groups", "queries", "first", "more"),
    [
        (9, 3, 1, 20, {}),
        (4, 1, 3, [18, 2, 0], {}),
        (8, 8, 2, 19, {"window": 5}),
        (5, 5, 4, 0, {"causal": False}),
    ],
)
def test_few_queries(backend, heads, groups, queries, first, more, request, rng):
    """By a function of its own, with the outputs of attention in general."""
    ops, n, keys = request.getfixturevalue(backend), 3, 21
    q = rng.standard_normal((n, queries, heads, 32)).astype(np.float32).transpose(0, 2, 1, 3)
    k = rng.standard_normal((n, groups, keys + 3, 32)).astype(np.float32)[:, :, :keys]
    v = rng.standard_normal((n, groups, keys, 48)).astype(np.float32)
    case = Attention(**{"scale": 0.5, "causal": True, **more})
    out = np.full((n, queries, heads, 48), np.nan, np.float32).transpose(0, 2, 1, 3)
    firsts = np.array(first) if isinstance(first, list) else first
    assert ops.attend_few(q, k, v, case, firsts, out) is has_compiler()
    if has_compiler():
        wanted, _ = numpy_ops.attend(q, k, v, case.placed(np, firsts, (queries, keys)))
        np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)
    capped = replace(case, softcap=3.0)
    assert not ops.attend_few(q, k, v, capped, firsts, out)
    assert not numpy_ops.attend_few(q, k, v, case, firsts, out)


# -- Attention of many queries by compiled functions ----------------------------------------------


@st.composite
def many(draw):
    """Draw queries, keys, values and a gradient in float32, laid out by steps or heads; a case."""
    n, groups, shared = (draw(st.integers(1, 3)) for _ in range(3))
    queries, keys = (draw(st.integers(16, 60) | st.integers(190, 260)) for _ in range(2))
    size, width = draw(st.sampled_from([(16, 16), (32, 80)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def rows(heads, steps, features):
        made = rng.standard_normal((n, steps, heads, features), np.float32).transpose(0, 2, 1, 3)
        return made if draw(st.booleans()) else np.ascontiguousarray(made)

    heads = groups * shared
    q, dmeans = rows(heads, queries, size), rows(heads, queries, width)
    k, v = rows(groups, keys, size), rows(groups, keys, width)
    case = Attention(
        scale=0.3,
        causal=draw(st.booleans()),
        first=draw(st.sampled_from([0, keys - queries, -7, 30])),
        window=draw(st.none() | st.integers(1, 250)),
    )
    return (q, k, v, dmeans), case


def allclose(found, wanted):
    """Within rounding of terms that are near 1 and may cancel."""
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(np.abs(other).max(), 1))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("backend", ["llvm", "onednn"])
def test_many_queries(backend, wide, request, monkeypatch):
    """The formula in float64, in panels for 16 registers and for 32."""
    ops = request.getfixturevalue(backend)
    monkeypatch.setattr(attend_blocks, "_LEAST", 0)
    monkeypatch.setattr(engine, "is_wide", lambda: wide)
    for name in ("attend", "attend_backward"):
        routes = getattr(type(ops), name).routes
        monkeypatch.setattr(type(ops), name, in_order(*routes, last=refuse))

    @given(many())
    def check(drawn):
        (*inputs, dmeans), case = drawn
        means, lse, *made = streamed(*inputs, dmeans, case, ops=ops)
        exact = [each.astype(np.float64) for each in (*inputs, dmeans)]
        wanted, logarithms, *gradients = streamed(*exact, case)
        assert made.pop() is None
        allclose([means, *made], [wanted, *gradients[:3]])
        most = np.finfo(np.float32).max
        np.testing.assert_allclose(lse, np.minimum(logarithms, most), rtol=1e-6, atol=1e-5)

    ops.trim(prepared=True)
    check()
    ops.trim(prepared=True)


def refuse(*operands, **options):
    raise AssertionError("NumPy's kernel was called")


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_threads_share_the_queries(llvm, rng, groups):
    """Two threads give one's outputs to the bit, and its gradients up to rounding."""
    q, dmeans = rng.standard_normal((2, 1, 6, 230, 32), np.float32)
    k, v = rng.standard_normal((2, 1, groups, 230, 32), np.float32)
    case, found = Attention(0.2, causal=True), []
    for count in (1, 2):
        runtime = PlanRuntime(count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(llvm), "runtime", lambda _, runtime=runtime: runtime)
            found.append(streamed(q, k, v, dmeans, case, ops=llvm))
        assert max(plan.threads for plan in runtime._plans.values()) == count
    one, two = found
    for k in (0, 1, 2):
        np.testing.assert_array_equal(one[k], two[k])
    allclose(one[3:5], two[3:5])


def test_nan_of_a_query_reaches_its_outputs(llvm, rng):
    q, k, v, dmeans = rng.standard_normal((4, 2, 2, 200, 32), np.float32)
    q[1, 0, 50, 3] = np.nan
    means, lse, dq, dk, dv, _ = streamed(q, k, v, dmeans, Attention(0.2, causal=True), ops=llvm)
    assert np.isnan(means[1, 0, 50]).all()
    assert np.isnan(lse[1, 0, 50])
    assert np.isnan(dq[1, 0, 50]).all()
    hurt = np.zeros((2, 2), bool)
    hurt[1, 0] = True
    for each in (means, dq, dk, dv):
        np.testing.assert_array_equal(np.isnan(each).any(axis=(2, 3)), hurt)
    for each in (means, dq):
        rest = np.delete(each[1, 0], 50, axis=0)
        assert np.isfinite(rest).all()


def test_a_recorded_step_attends_as_one_by_the_layers(llvm, monkeypatch):
    monkeypatch.setattr("singanet.layers.multi_head_attention.are_few", lambda *_: False)
    monkeypatch.setattr(attend_blocks, "_LEAST", 1)
    x = np.random.default_rng(0).standard_normal((2, 96, 32)).astype(np.float32)
    left = []
    for recorded in (True, False):
        layer = MultiHeadAttention("look", 2, causal=True, input_sample_shape=(96, 32))
        net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)
        net.device = Device("cpu", llvm)
        net.programs.enabled = recorded
        optimizer = SGD(lr=0.1)
        losses = [net.step(x, x, optimizer)[0] for _ in range(4)]
        left.append([losses, *(param.value for param in net.params())])
    for one, other in zip(*left, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_predictor_attends_by_one_function(llvm):
    """Which saves calls of Python, for a twentieth of the multiply-adds."""
    q, k, v = (np.ones((1, 4, 64, 32), np.float32) for _ in range(3))
    case = Attention(scale=1.0, causal=True)
    assert not llvm.has_attention(q, k, v, case)
    assert not numpy_ops.has_attention(q, k, v, case)
    llvm.prepared = Prepared()
    assert llvm.has_attention(q, k, v, case)
    assert not llvm.has_attention(q[:, :1, :16], k[:, :1], v[:, :1], case)
    assert not llvm.has_attention(q[..., :20], k[..., :20], v, case)


def test_predictors_attend_as_the_layers_do(rng):
    net = singanet.FeedForwardNet(None, seed=0)
    net.add(MultiHeadAttention("attend", 4, causal=True, input_sample_shape=(64, 128)))
    x = rng.standard_normal((3, 64, 128)).astype(np.float32)
    wanted = net.predict(x)
    np.testing.assert_allclose(net.predictor()(x), wanted, rtol=0, atol=1e-5 * abs(wanted).max())
