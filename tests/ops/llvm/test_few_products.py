"""Which products LLVM makes, alone and in predictors."""

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import threads
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps, kernels
from singanet.ops.threads import set_threads

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_what_they_take(ops, narrow):
    def takes(m, k, n, kind=np.float32):
        return kernels.is_small(ops, draw(m, k).astype(kind), draw(k, n).astype(kind), None)

    assert takes(1, 1024, 1024)
    assert not takes(1, 1025, 1024)
    assert takes(32, 64, 64)
    assert not takes(33, 64, 64)
    assert not takes(4, 64, 64, np.float64)
    assert not takes(0, 64, 64)
    assert not kernels.is_small(ops, draw(2, 3, 4), draw(4, 5), None)
    assert not kernels.is_small(ops, draw(2, 4), draw(4, 5), draw(5).astype(np.float64))
    assert not kernels.is_small(narrow, draw(4, 64), draw(64, 64), None)


def net_of(widths, seed=0):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=seed)
    for k, width in enumerate(widths):
        shape = {"input_sample_shape": (20,)} if not k else {}
        net.add(Dense(f"dense{k}", width, **shape))
        net.add(Activation(f"relu{k}"))
    net.add(Dense("scores", 3))
    return net


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_predictors_and_nets_agree_with_and_without_them(ops, monkeypatch, rows):
    net, x = net_of((33, 70)), draw(rows, 20)
    expected = net.predict(x)
    for there in (True, False):
        monkeypatch.setattr(kernels, "has_compiler", lambda there=there: there)
        predictor = net.predictor()
        made = [predictor(x) for _ in range(3)]
        np.testing.assert_allclose(made[0], expected, rtol=1e-5, atol=1e-6)
        for again in made[1:]:
            np.testing.assert_array_equal(again, made[0])
        # Weights are held once, in panels that are filled up.
        own = 4 * (20 * 33 + 33 * 70 + 70 * 3)
        if there:
            assert predictor.nbytes < 2.2 * own


def test_a_nan_shows_in_its_sample_alone(ops):
    net, x = net_of((33,)), draw(6, 20)
    predictor = net.predictor()
    before = predictor(x)
    x[2, 5] = np.nan
    made = predictor(x)
    assert np.isnan(made[2]).any()
    np.testing.assert_array_equal(np.delete(made, 2, 0), np.delete(before, 2, 0))


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_a_matrix_that_threads_share_is_not_llvms(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(2)
    ops = LlvmOps()
    monkeypatch.setattr(kernels, "is_worth_threads", lambda ops, rows, size: size > 5000)
    x, small, large = draw(1, 50), draw(50, 100), draw(50, 101)
    for weight in (small, large):
        y = ops.affine_constant(x, weight, None)
        np.testing.assert_allclose(y, x @ weight, rtol=1e-4, atol=1e-4)
    assert kernels._is_compiled(ops, x, small, None)
    assert not kernels._is_compiled(ops, x, large, None)
