"""Max pooling that LLVM compiles: NumPy's to the bit, NaN among it, of any window."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import singanet
from singanet.layers import Conv2D, Dense, Flatten, MaxPooling2D
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import kernels as llvm
from singanet.ops.threads import set_threads
from singanet.ops.window import Window
from singanet.optimizer import SGD
from tests.program.twins import Twins

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


@pytest.fixture
def compiles(monkeypatch):
    """However few the elements are."""
    monkeypatch.setattr(llvm, "_COMPILED_POOL_LEAST", 1)


def image(n, c, *size, seed=0):
    """Channels-last, of few numbers, so that some maxima are equal."""
    x = np.random.default_rng(seed).integers(-9, 9, (n, *size, c)).astype(np.float32)
    return np.moveaxis(x, -1, 1)


AXIS = st.tuples(
    *(st.integers(1, k) for k in (9, 3, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(1, 2),
)
"""Size, kernel, stride, padding and dilation."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 3),
    st.integers(16, 70),
    st.lists(AXIS, min_size=2, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_window(ops, compiles, n, channels, axes, ceil, keep, seed):
    size, kernel, stride, pads, dilation = zip(*axes, strict=True)
    window = Window(kernel, stride, pads, dilation, ceil)
    assume(min(window._out_size(*size)) > 0)
    x = image(n, channels, *size, seed=seed)
    rng = np.random.default_rng(seed)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.03] = value
    y, where = llvm.max_pool.run(ops, x, window, keep)
    wanted, noted = numpy_ops.max_pool(x, window, keep)
    np.testing.assert_array_equal(y, wanted)
    assert (where is None) is not keep
    if keep:
        np.testing.assert_array_equal(where, noted)
        assert where.dtype == np.uint8


def test_what_it_takes(ops, narrow, monkeypatch):
    window = Window((2, 2), (2, 2), ((0, 0), (0, 0)))

    def takes(x, window=window, ops=ops):
        return llvm.max_pool.fits(ops, x, window, True)

    large = image(32, 24, 32, 32)
    assert takes(large)
    assert not takes(image(32, 15, 48, 48))
    assert not takes(image(8, 24, 32, 32))
    assert not takes(large.astype(np.float64))
    assert takes(large, Window((16, 16), (2, 2), ((0, 0), (0, 0))))
    assert not takes(large, Window((16, 17), (2, 2), ((0, 0), (0, 0))))
    assert not takes(large, ops=narrow)
    monkeypatch.setattr(llvm, "has_compiler", lambda: False)
    assert not takes(large)


def net_of():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Conv2D("conv", 20, 3, input_sample_shape=(2, 9, 8)))
    net.add(MaxPooling2D("pool", 3, 2))
    net.add(Flatten("flat"))
    net.add(Dense("scores", 3))
    return net


def test_a_net_trains_as_without_it_recorded_or_not(ops, compiles, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 2, 9, 8)).astype(np.float32), np.arange(30) % 3
    made = []
    for there in (True, False):
        monkeypatch.setattr(llvm, "has_compiler", lambda there=there: there)
        twins = Twins(net_of, lambda: SGD(lr=0.05, momentum=0.9))
        losses = [twins.step(x, y)[0] for _ in range(4)]
        scores = twins.recorded.predict(x)
        np.testing.assert_allclose(twins.recorded.predictor()(x), scores, rtol=1e-4, atol=1e-5)
        made.append((losses, scores))
        broken = x.copy()
        broken[3, 1, 4, 4] = np.nan
        found = np.isnan(twins.recorded.predictor()(broken)).any(axis=1)
        np.testing.assert_array_equal(found, np.arange(30) == 3)
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_threads_share_the_lines(compiles, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(2)
    ops, window = LlvmOps(), Window((3, 3), (2, 2), ((1, 1), (1, 1)))
    x = image(14, 40, 41, 41)
    y, where = ops.max_pool(x, window, True)
    wanted, noted = numpy_ops.max_pool(x, window, True)
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(where, noted)
    assert [plan.threads for plan in ops.runtime()._plans.values()] == [2]
