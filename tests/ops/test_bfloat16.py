"""Products of factors rounded to bfloat16, and nets that train by them.

A processor with both kinds of products may use the one of float32 if oneDNN expects it to be
faster; a result is the product of rounded factors or of the factors as they are.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet.device import Device, cpu
from singanet.errors import BackendError
from singanet.layers import LSTM, Conv2D, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops.costs import BUILT_IN, Case, Costs
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.conv import product
from singanet.ops.window import Window
from singanet.optimizer import SGD


def rounded(array):
    """Round to the nearest bfloat16, ties to even, as float64."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def convolved(x, weight, stride, pad):
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    kernel = weight.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,fcij->nfhw", windows, weight)


def expect_product(made, product, terms, *factors):
    """Check a product within the error √k·2⁻²⁴ of a sum of k ``terms`` in float32."""
    assert made.dtype == np.float32
    bound = 4 * np.sqrt(terms) * 2.0**-24 * product(*(np.abs(rounded(f)) for f in factors))
    exact = [product(*(kind(f) for f in factors)) for kind in (rounded, np.float64)]
    assert min(np.max(np.abs(made - sums) - bound) for sums in exact) <= 0


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([1, 3]),
    st.integers(1, 2),
    st.integers(0, 2**31),
)
def test_convolutions_round_their_factors(narrow, n, c, f, size, stride, seed):
    rng, pad = np.random.default_rng(seed), size // 2
    window = Window((size, size), (stride, stride), ((pad, pad), (pad, pad)))
    x = rng.standard_normal((n, 8, 9, c), np.float32).transpose(0, 3, 1, 2)
    weight = rng.standard_normal((f, c, size, size), np.float32)
    made = narrow.conv2d(x, weight, None, window)
    expect_product(made, lambda x, w: convolved(x, w, stride, pad), c * size**2, x, weight)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(64, 300, 80), (1100, 40, 1050)])
def test_products_round_their_factors(narrow, rng, size, transposed):
    m, k, n = size
    a = rng.standard_normal((k, m) if transposed[0] else (m, k), np.float32)
    b = rng.standard_normal((n, k) if transposed[1] else (k, n), np.float32)
    a, b = a.T if transposed[0] else a, b.T if transposed[1] else b
    expect_product(narrow.matmul(a, b), np.matmul, k, a, b)


def test_gradients_of_a_convolution_are_those_of_the_rounded_one(narrow, rng):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    x = rng.standard_normal((4, 12, 12, 16), np.float32).transpose(0, 3, 1, 2)
    weight = rng.standard_normal((24, 16, 3, 3), np.float32)
    dy = rng.standard_normal((4, 12, 12, 24), np.float32).transpose(0, 3, 1, 2)
    dx = narrow.conv2d_backward_data(dy, weight, x.shape, window)
    dw = narrow.conv2d_backward_weights(x, dy, weight.shape, window)
    transposed = weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    expect_product(dx, lambda dy, w: convolved(dy, w, 1, 1), 24 * 9, dy, transposed)
    across = x.transpose(1, 0, 2, 3), dy.transpose(1, 0, 2, 3)
    made = dw.transpose(1, 0, 2, 3)
    expect_product(made, lambda x, dy: convolved(x, dy, 1, 1), 4 * 12 * 12, *across)


@pytest.mark.parametrize("stride", [1, 2])
def test_weights_of_small_images_have_their_gradient_by_a_product(narrow, rng, stride):
    window = Window((3, 3), (stride, stride), ((1, 1), (1, 1)))
    x = rng.standard_normal((32, 2, 2, 40), np.float32).transpose(0, 3, 1, 2)
    shape = (96, 40, 3, 3)
    size = window._out_size(2, 2)
    dy = rng.standard_normal((32, *size, 96), np.float32).transpose(0, 3, 1, 2)
    case = Case("weights", x.shape, shape, window)
    assert product.estimate(narrow, case) < 1
    made = narrow.conv2d_backward_weights(x, dy, shape, window)
    terms = 32 * size[0] * size[1]
    expect_product(made, lambda x, dy: weights_gradient(x, dy, stride), terms, x, dy)


def weights_gradient(x, dy, stride):
    """The definition, for windows of 3 x 3 with a border of 1."""
    full = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    h, w = dy.shape[2:]
    parts = [np.einsum("nfhw,nchw->fc", dy, full[:, :, i::stride, j::stride][:, :, :h, :w])
             for i in range(3) for j in range(3)]  # fmt: skip
    return np.stack(parts, axis=-1).reshape(dy.shape[1], x.shape[1], 3, 3)


@pytest.fixture
def default_narrow():
    ops = cpu().ops
    if not isinstance(ops, OneDnnBase) or not ops.library().bfloat16:
        pytest.skip("nets do not multiply bfloat16 here")


def small_net():
    layers = [Conv2D("conv", 16, 3, input_sample_shape=(8, 16, 16)), Flatten("flat")]
    return FeedForwardNet([*layers, Dense("fc", 10)], loss=SoftmaxCrossEntropy(), seed=3)


def test_a_net_steps_beside_its_float32_twin_and_goes_back(default_narrow, rng):
    x = rng.standard_normal((32, 8, 16, 16), np.float32)
    y = rng.integers(0, 10, 32)
    nets = [small_net(), small_net()]
    nets[0].compile(SGD(lr=0.01), mixed_precision="bfloat16")
    nets[1].compile(SGD(lr=0.01))
    for _ in range(3):
        losses = [net.step(x, y, net.compiled.optimizer)[0] for net in nets]
        assert losses[0] != losses[1]
        assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert all(p.value.dtype == np.float32 for p in nets[0].params())
    for mine, other in zip(nets[0].params(), nets[1].params(), strict=True):
        mine.value[...] = other.value
    assert not np.array_equal(nets[0].forward(False, x), nets[1].forward(False, x))
    nets[0].as_type("float32")
    np.testing.assert_array_equal(nets[0].forward(False, x), nets[1].forward(False, x))


def test_a_predictor_keeps_the_factors_of_its_net(default_narrow, rng):
    net, x = small_net(), rng.standard_normal((32, 8, 16, 16), np.float32)
    exact = net.predictor()(x)
    net.as_type("float32_fast")
    coarse = net.predictor()(x)
    assert coarse.dtype == np.float32
    assert not np.array_equal(coarse, exact)
    np.testing.assert_allclose(coarse, exact, atol=0.02)


def test_recurrent_kernels_stay_near(default_narrow, rng):
    net = FeedForwardNet([LSTM("lstm", 64, input_sample_shape=(20, 64))], seed=1)
    x = rng.standard_normal((32, 20, 64), np.float32)
    exact = net.forward(False, x)
    net.as_type("float32_fast")
    np.testing.assert_allclose(net.forward(False, x), exact, atol=0.02)


def test_kernels_without_such_products_are_refused_and_the_net_is_as_it_was():
    net = small_net()
    net.device = Device("cpu", numpy_ops)
    words = "received kernels of numpy"
    with pytest.raises(BackendError, match=words):
        net.as_type("float32_fast")
    for kind in ("bfloat16", "float32_fast"):
        with pytest.raises(BackendError, match=words):
            net.compile(SGD(lr=0.1), mixed_precision=kind)
    assert net.compiled is None
    net.compile(SGD(lr=0.1), mixed_precision="auto")
    assert net.device.ops is numpy_ops


@pytest.mark.parametrize("narrow_speed", [0.01, 0.02])
def test_auto_asks_for_bfloat16_if_it_is_faster(default_narrow, monkeypatch, narrow_speed):
    known = BUILT_IN._replace(direct=0.02, narrow=narrow_speed)
    monkeypatch.setattr(OneDnnBase, "speeds", lambda self: known)
    net = small_net()
    net.compile(SGD(lr=0.1), mixed_precision="auto")
    assert getattr(net.device.ops, "narrow", False) == (narrow_speed == 0.01)
    # Asked for by name it is taken anyway.
    net.compile(SGD(lr=0.1), mixed_precision="bfloat16")
    assert net.device.ops.narrow


@pytest.mark.parametrize(
    ("narrow_direct", "tiles", "taken"),
    [(0.002, 0.5, "direct"), (0.012, 0.5, "compiled"), (0.012, 0.7, "direct")],
)
def test_tiles_of_float32_are_taken_if_they_are_cheaper(narrow_direct, tiles, taken):
    known = BUILT_IN._replace(direct=0.02, narrow_direct=narrow_direct)
    ops = SimpleNamespace(speeds=lambda: known, narrow=True)
    estimates = {"compiled": tiles, "numpy": 0.01, "direct": 1.0}
    assert Costs().choose(ops, None, estimates) == taken
    assert Costs().choose(ops, None, {"blocked": 2.0, "numpy": 3.0}) == "blocked"
