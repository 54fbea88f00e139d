"""oneDNN's kernels: choices among routes, numbers that are none, threads and memory layouts.

The values are checked in test_kernels.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet.ops import numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.costs import BUILT_IN, Case, Speeds, cache_size
from singanet.ops.interface import ACTIVATIONS, Prepared
from singanet.ops.kernel import NEVER
from singanet.ops.llvm import kernels
from singanet.ops.onednn import OneDnnOps, products, set_threads
from singanet.ops.onednn.conv import blocked, product
from singanet.ops.window import Attention, Window
from tests.ops.kernel_rows import CONSTANTS, ENDINGS, NONE, PLAIN, ROWS, SAME
from tests.ops.test_kernels import expect_near

MINE = Speeds(0.01, 0.5, 0.2, 0.003, 0.002, 0.3, 0.5, 9000.0)
POOLS = [
    Window((2, 2), (2, 2), NONE),
    Window((3, 3), (2, 2), SAME),
    Window((3, 2), (1, 3), ((1, 0), (0, 1))),
    Window((3, 3), (2, 3), ((0, 1), (1, 0)), ceil=True),
]
(CONSTANT,) = (row for row in ROWS if row.name == "conv2d_constant")
DENSE, CONVOLUTION = (
    next(row for row in ROWS if row.name == name) for name in ("affine_constant", "conv2d")
)


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def close(got, wanted):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(abs(wanted).max(), 1e-30))


def nan_samples(y):
    return np.isnan(y).any(axis=tuple(range(1, y.ndim))).tolist()


# -- Numbers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.copy, last])
def test_nan_shows_in_its_sample_and_in_no_other(ops, layout):
    x = layout(draw(3, 16, 64, 64))
    x[1, 5, 60, 60] = np.nan
    x[2, 3, 7, 7] = 1e30  # its square overflows float32
    sound = np.delete(x, 1, axis=0)
    for window in POOLS:
        y, _ = ops.max_pool(x, window, True)
        assert np.isnan(y[1]).any()
        wanted = numpy_ops.max_pool(sound, window, False)[0]
        np.testing.assert_array_equal(np.delete(y, 1, axis=0), wanted)
    y = ops.activation("relu", x)
    assert np.isnan(y[1]).any()
    np.testing.assert_array_equal(np.delete(y, 1, axis=0), np.maximum(sound, 0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_comes_through(ops, bad):
    x = draw(2, 16, 64, 64)
    x[0, :, 2:40:9] = bad
    for window in POOLS:
        y, where = ops.max_pool(x, window, True)
        wanted, noted = numpy_ops.max_pool(x, window, True)
        np.testing.assert_array_equal(y, np.maximum(wanted, np.finfo(np.float32).min))
        np.testing.assert_array_equal(where, noted)
    np.testing.assert_array_equal(ops.activation("relu", x), np.maximum(x, 0))


@pytest.mark.parametrize("where", ["x", "gamma", "beta"])
def test_batch_norm_with_relu_shows_nan_in_its_channel(ops, where):
    given_ = {"x": draw(4, 16, 8, 8), "gamma": draw(16), "beta": draw(16, seed=1)}
    np.put(given_[where], 1, np.nan)
    y, *_, mask = ops.batch_norm_train(*given_.values(), 1e-3, True)
    channel = 0 if where == "x" else 1
    assert np.isnan(y[:, channel]).any(axis=(1, 2)).all()
    assert not np.isnan(np.delete(y, channel, axis=1)).any()
    assert mask.nbytes in (y.size // 8, y.size)  # a byte each without AVX2


def test_batch_norm_with_relu_shows_nan_in_its_sample(ops, only_onednn):
    only_onednn("batch_norm")
    x, (gamma, beta, mean), var = draw(4, 16, 8, 8), draw(3, 16, seed=1), np.ones(16, np.float32)
    x[2, 5, 3, 3] = np.nan
    y, _, mask = ops.batch_norm(x, gamma, beta, mean, var, 1e-3, True)
    assert nan_samples(y) == [False, False, True, False]
    assert np.shares_memory(mask, y)


@pytest.mark.parametrize("shape", [(1, 10), (3, 1), (2, 5, 7)])
def test_softmax_of_few_in_predictors(ops, only_onednn, shape):
    ops.prepared = Prepared()
    only_onednn("softmax")
    x = 5 * draw(*shape)
    close(ops.softmax(x), numpy_ops.softmax(x.astype(np.float64)))
    x.reshape(-1)[0] = np.nan
    bad = np.isnan(ops.softmax(x)).reshape(-1, shape[-1]).any(axis=1)
    assert bad.tolist() == [True] + [False] * (len(bad) - 1)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_narrow_registers_leave_products_of_several_threads_to_lanes(
    library_path, monkeypatch, wide, count
):
    if count > threads.cores():
        pytest.skip("one core")
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    threads._changed(count)
    ops = OneDnnOps(library_path, required=True)
    library = replace(ops.library(), wide=wide)
    monkeypatch.setattr(ops, "library", lambda: library)
    lanes = not wide and count == 2
    assert ops.lane_count(1 << 10, 1 << 28) == (2 if lanes else 1)
    for m, k, n in ((300, 200, 100), (100, 300, 1000), (3000, 64, 65), (1, 1024, 1024)):
        a, b, y = draw(m, k), draw(k, n, seed=1), draw(m, n, seed=2)
        close(ops.matmul(a, b), a.astype(np.float64) @ b)
        close(ops.affine(a, b, b[0]), a.astype(np.float64) @ b + b[0])
        close(ops.matmul(a.T.copy().T, b), a.astype(np.float64) @ b)
        wanted = y + a.astype(np.float64) @ b
        ops.add_matmul(y, a, b)
        close(y, wanted)
    made = [plan for plan in ops.runtime()._plans.values() if type(plan).__name__ == "KernelPlan"]
    assert bool(made) != lanes


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("orders", ["CC", "LL", "LC", "CL"])
def test_sums_of_two(ops, plans, relu, orders):
    arrays = [(np.copy, last)[order == "L"](draw(4, 16, 32, 33, seed=k))
              for k, order in enumerate(orders)]  # fmt: skip
    total = arrays[0].astype(np.float64) + arrays[1]
    got = ops.combine("add", arrays, arrays[0].shape, relu)
    np.testing.assert_allclose(got, np.maximum(total, 0) if relu else total, rtol=1e-5, atol=1e-6)
    assert got.strides == arrays[0].strides
    assert plans() == (1, 0)
    for k in range(2):
        bad = [array.copy(order="K") for array in arrays]
        bad[k][2, 3, 4, 5] = np.nan
        y = ops.combine("add", bad, bad[0].shape, relu)
        assert nan_samples(y) == [False, False, True, False]


# -- Choices between oneDNN and NumPy -------------------------------------------------------------


@pytest.mark.parametrize("mode", list(ACTIVATIONS)[:8])
def test_activations_of_oneDNN(ops, only_onednn, mode):
    only_onednn("activation_backward", *(() if mode in ("elu", "softplus") else ("activation",)))
    x = 3 * draw(4, 32, 32, 33)
    y = ops.activation(mode, x, 0.3)
    ops.activation_backward(mode, x, y if ACTIVATIONS[mode] == "y" else x, 0.3)


def test_other_combinations_are_numpys(ops, plans):
    x, gate = draw(4, 16, 32, 33), draw(4, 16, 1, 1, seed=1)
    ops.combine("add", [x, gate], x.shape, True)
    ops.combine("add", [x, x, x], x.shape)
    ops.combine("multiply", [x, x], x.shape)
    assert plans() == (0, 0)


def test_channels_last_copies_only_if_needed(ops, plans):
    already = draw(3, 16, 17, 20).transpose(0, 3, 1, 2)
    assert np.shares_memory(ops.channels_last(already), already)
    x = draw(3, 20, 16, 17)
    np.testing.assert_array_equal(ops.channels_last(x), x.transpose(0, 2, 3, 1))
    assert plans() == (1, 0)


@pytest.mark.parametrize("channels", [16, 256])
@pytest.mark.parametrize("kernel", [1, 3])
def test_doubles_and_empty_batches_are_numpys(ops, plans, channels, kernel):
    window = Window((kernel, kernel), (1, 1), NONE)
    shapes = (2, channels, 4, 4), (2 * channels, channels, kernel, kernel)
    x, w = (draw(*shape).astype(np.float64) for shape in shapes)
    y = numpy_ops.conv2d(x, w, None, window)
    np.testing.assert_array_equal(ops.conv2d(x, w, None, window), y)
    constant = ops.conv2d_constant(x, w, None, window, relu=True)
    np.testing.assert_array_equal(constant, np.maximum(y, 0))
    none, few = np.empty((0, *x.shape[1:]), np.float32), w.astype(np.float32)
    for kernel in (ops.conv2d, ops.conv2d_constant):
        assert kernel(none, few, None, window).shape == (0, *y.shape[1:])
    dw = ops.conv2d_backward_weights(none, np.empty((0, *y.shape[1:]), "f4"), w.shape, window)
    np.testing.assert_array_equal(dw, np.zeros(w.shape))
    assert plans() == (0, 0)


# -- Products -------------------------------------------------------------------------------------


@pytest.fixture
def every_size(monkeypatch):
    for name in ("_LEAST", "_LEAST_OUTER", "_FEW"):
        monkeypatch.setattr(products, name, 1)


def test_other_products_are_numpys(ops, every_size, plans):
    a, b = draw(6, 8), draw(8, 10, seed=1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    gaps, y = np.repeat(a, 2, axis=1)[:, ::2], draw(10, 6, seed=2).T
    total = y + exact
    assert ops.add_matmul(y, a, b) is y
    close(y, total)
    for got in (ops.matmul(gaps, b), ops.matmul(a, b, out=np.empty((10, 6), np.float32).T)):
        close(got, exact)
    np.testing.assert_array_equal(ops.matmul(a.astype(np.float64), b.astype(np.float64)), exact)
    assert ops.matmul(a[:0], b).shape == (0, 10)
    assert not ops.matmul(a[:, :0], b[:0]).any()
    np.testing.assert_allclose(ops.matmul(draw(2, 6, 8), b), draw(2, 6, 8) @ b)
    assert plans() == (0, 0)


def lying(shape, order, room, seed):
    """Random numbers with the axes in another ``order`` in memory, and gaps."""
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
def test_stacks_in_every_order(library_path, batch, sizes, room, seed, data):
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


def test_which_stacks_are_its(ops, plans):
    heads = [draw(8, 128, 4, 64, seed=seed).transpose(0, 2, 1, 3) for seed in (0, 1)]
    a, b = heads[0], heads[1].swapaxes(2, 3)
    out = np.empty((8, 4, 128, 128), np.float32)
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    assert plans() == (1, 0)
    small = a[:, :, :32], b[:, :, :, :32]
    spread = np.lib.stride_tricks.as_strided(a, (8, 4, 128, 64), (0, *a.strides[1:]))
    for one, other in (small, (spread, b), (a, b[:1])):
        np.testing.assert_array_equal(ops.matmul(one, other), one @ other)
    assert plans() == (1, 0)
    with pytest.raises(ValueError, match="mismatch"):
        ops.matmul(a, a)


def test_products_of_attention_are_rounded(ops, narrow):
    q, k = (draw(32, 64, 4, 32, seed=seed).transpose(0, 2, 1, 3) for seed in (0, 1))
    exact, rounded = (o.attention_weights(q, k, Attention(0.2, causal=True)) for o in (ops, narrow))
    # oneDNN rounds factors by 2⁻⁹ at most, if that kernel is the faster.
    assert np.abs(rounded - exact).max() < 0.02
    np.testing.assert_allclose(rounded.sum(axis=3), 1, rtol=1e-5)
    dweights = draw(32, 4, 64, 64, seed=2)
    grads = [o.attention_backward(dweights.copy(), exact, q, k, 0.2) for o in (ops, narrow)]
    for sharp, coarse in zip(*grads, strict=True):
        assert np.abs(coarse - sharp).max() < 0.02 * np.abs(sharp).max()


@pytest.mark.parametrize("compiled", [False, True])
def test_constant_matrices_with_and_without_a_compiler(ops, plans, monkeypatch, compiled):
    """LLVM compiles small products; without it they are NumPy's, or oneDNN's with a bias."""
    if compiled and not has_compiler():
        pytest.skip("llvmlite is not installed")
    monkeypatch.setattr(kernels, "has_compiler", lambda: compiled)
    before = plans()
    expect_near(ops, DENSE, (1, 64, 64, False, False), "f4", laid=(0,))
    assert (plans() == before) is not compiled
    expect_near(ops, DENSE, (1, 64, 64, True, False), "f4", laid=(0,))
    assert plans() > before
    for size in (*DENSE.sizes, *DENSE.large):
        expect_near(ops, DENSE, size, "f4", laid=(0, 3))
    x, w, before = draw(64, 60), draw(120, 100, seed=1), plans()
    close(ops.affine_constant(x, w[::2], None), x.astype(np.float64) @ w[::2])
    double = ops.affine_constant(x.astype(np.float64), w[:60].astype(np.float64), None)
    assert double.dtype == np.float64
    assert ops.affine_constant(x[:0], w[:60], None).shape == (0, 100)
    # Without AVX-512, LLVM arranges any matrix for so few rows.
    assert plans() == before or compiled


# -- Threads --------------------------------------------------------------------------------------


def test_small_kernels_are_one_threads(ops, setting):
    set_threads(threads.cores())
    ops.softmax(draw(1024, 100))
    assert ops.runtime().team.size == 1
    ops.softmax(draw(8192, 100))
    assert ops.runtime().team.size == threads.cores()


class Tiles:
    """Chooses tiles if they are possible."""

    version = 0

    def choose(self, ops, case, estimates):
        return "numpy" if "numpy" in estimates else "direct"


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_two_threads(no_compiler, library_path, setting):
    set_threads(2)
    for chooser in (None, Tiles()):
        ops = OneDnnOps(library_path, required=True)
        ops.chooser = chooser or ops.chooser
        for size in [*CONSTANTS[3::4], *CONSTANT.large[3:]]:
            expect_near(ops, CONSTANT, size, "f4", laid=(0,))
        for size in (*DENSE.sizes, *DENSE.large):
            expect_near(ops, DENSE, size, "f4", laid=(0,))


def test_a_convolution_is_shared_from_twice_that_cost_on():
    module = sys.modules["singanet.ops.onednn.conv.direct"]
    weight = np.zeros((8, 4, 3, 3), np.float32)
    # 2 images of 30 pixels, a nanosecond a multiplication: 17,280 in all.
    for count, narrow, shared, expected in (
        (2, False, 8640.0, True),
        (2, False, 8641.0, False),
        (1, False, 1.0, False),
        (2, True, 4320.0, True),
        (2, True, 4321.0, False),
    ):
        speeds = BUILT_IN._replace(direct=1.0, narrow=0.5, shared=shared, distant=0.0)
        ops = SimpleNamespace(threads=count, narrow=narrow, speeds=lambda speeds=speeds: speeds)
        assert module._is_worth_threads(ops, (2, 5, 6, 8), weight) is expected


def test_the_same_bits_every_time(ops):
    x, w, dy = draw(4, 16, 16, 16), draw(32, 16, 3, 3, seed=1), draw(4, 32, 16, 16, seed=2)
    first = ops.conv2d(x, w, None, PLAIN), ops.conv2d_backward_weights(x, dy, w.shape, PLAIN)
    for _ in range(5):
        np.testing.assert_array_equal(ops.conv2d(x.copy(), w, None, PLAIN), first[0])
        again = ops.conv2d_backward_weights(x, dy.copy(), w.shape, PLAIN)
        np.testing.assert_array_equal(again, first[1])


# -- Routes of convolutions -----------------------------------------------------------------------


@pytest.mark.parametrize(("relu", "add"), ENDINGS)
def test_constants_by_numpys_tiles(no_compiler, ops, chosen, relu, add):
    chosen.always = "numpy"
    expect_near(ops, CONSTANT, (2, (28, 28), 128, 128, PLAIN, 1, relu, add), "f4", laid=(0,))
    assert set(chosen.found) == {"numpy"}


def test_numpys_tiles_pay_if_pixels_and_channels_are_many(no_compiler, ops, setting, monkeypatch):
    """They use one thread, and are never taken beside LLVM's."""
    *_, numpys = OneDnnOps.conv2d_constant.routes

    def estimate(n, size, channels, count=1):
        set_threads(count)
        shapes = (n, channels, size, size), (channels, channels, 3, 3)
        return numpys.estimate(ops, Case("constant", *shapes, PLAIN))

    assert estimate(1, 56, 64) < 1
    assert estimate(2, 28, 128) < 1
    assert estimate(1, 7, 512) > 1
    assert estimate(1, 32, 16) > 1
    if threads.cores() > 1:
        assert estimate(2, 28, 128, 2) == 2 * estimate(2, 28, 128)
    monkeypatch.setattr(sys.modules["singanet.ops.onednn.conv"], "has_compiler", lambda: True)
    assert estimate(1, 56, 64) == NEVER


PIXELS = Window((1, 1), (1, 1), NONE)


@pytest.mark.parametrize(
    "window",
    [PIXELS, Window((1, 1), (2, 2), NONE), Window((1, 1), (1, 1), ((1, 0), (0, 2))), PLAIN,
     Window((3, 2), (2, 1), ((0, 1), (2, 0)), (1, 2))],
)  # fmt: skip
def test_large_weights_of_few_pixels_are_products(ops, chosen, window):
    for biased, laid in ((True, (0,)), (False, (3,))):
        expect_near(ops, CONVOLUTION, (2, (4, 5), 256, 512, window, 1, biased), "f4", laid)
    # The gradient of the images is a product only for windows of single pixels.
    back = "product" if window == PIXELS else "direct"
    assert chosen.found[:3] == ["product", back, "product"]


@pytest.mark.parametrize(
    ("x", "weight", "groups"),
    [
        ((2, 64, 20, 20), (512, 64, 3, 3), 1),  # many pixels
        ((2, 16, 4, 4), (16, 16, 3, 3), 1),  # a small weight
        ((2, 512, 4, 4), (512, 256, 3, 3), 2),
    ],
)
def test_other_convolutions_are_no_products(ops, chosen, x, weight, groups):
    window = replace(PLAIN, groups=groups)
    y = ops.conv2d(draw(*x), draw(*weight, seed=1), None, window)
    ops.conv2d_backward_weights(draw(*x), y, weight, window)
    ops.conv2d_backward_data(y, draw(*weight, seed=1), x, window)
    assert len(chosen.found) == 3
    assert "product" not in chosen.found


def test_gradients_of_large_weights_are_products_up_to_more_pixels(ops, chosen):
    x, dy = draw(8, 512, 4, 4), draw(8, 512, 4, 4, seed=1)
    exact = numpy_ops.conv2d_backward_weights(x, dy, (512, 512, 3, 3), PLAIN)
    close(ops.conv2d_backward_weights(x, dy, (512, 512, 3, 3), PLAIN), exact)
    assert chosen.found == ["product"]
    ops.conv2d(x, draw(512, 512, 3, 3), None, PLAIN)
    ops.conv2d_backward_weights(x, dy[:, :64], (64, 512, 3, 3), PLAIN)
    assert "product" not in chosen.found[1:]


def test_small_weights_of_single_pixels_are_products(ops, chosen):
    x, weight = draw(8, 832, 7, 7), draw(32, 832, 1, 1, seed=1)
    close(ops.conv2d(x, weight, None, PIXELS), numpy_ops.conv2d(x, weight, None, PIXELS))
    assert chosen.found == ["product"]
    ops.conv2d(x[:, :500], weight[:, :500], None, PIXELS)
    assert chosen.found[1:] == ["direct"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 2),
    st.integers(0, 2**20),
)
def test_images_in_a_layout_of_oneDNN(library_path, n, c, f, size, stride, seed):
    ops = OneDnnOps(library_path, required=True)
    window = Window((size, size), (stride, stride), ((size // 2, 0), (0, size // 2)))
    x, weight, bias = last(draw(n, c, 5, 4, seed=seed)), draw(f, c, size, size), draw(f)
    y = blocked.forward(ops, x, weight, bias, window)
    wanted = numpy_ops.conv2d(x, weight, bias, window)
    if y is not None:
        np.testing.assert_allclose(y, wanted, atol=1e-4)
    dx = blocked.data(ops, wanted, weight, x.shape, window)
    if dx is not None:
        exact = numpy_ops.conv2d_backward_data(wanted, weight, x.shape, window)
        np.testing.assert_allclose(dx, exact, atol=1e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize(("relu", "add"), ENDINGS)
def test_constants_in_a_layout_of_oneDNN(ops, relu, add):
    x, weight, bias = last(draw(3, 24, 4, 4)), draw(32, 24, 3, 3, seed=2), draw(32, seed=3)
    other = last(draw(3, 32, 4, 4, seed=4)) if add else None
    made = blocked.constant(ops, x, weight, bias, PLAIN, relu=relu, add=other)
    if add and made is None:
        return  # no kernel adds images of another layout: the direct route serves
    wanted = numpy_ops.conv2d_constant(x, weight, bias, PLAIN, relu=relu, add=other)
    np.testing.assert_allclose(made, wanted, atol=1e-4)


def test_that_layout_is_for_several_small_images_and_weights_beyond_the_cache(ops, monkeypatch):
    def case(n, size, channels, groups=1, window=PLAIN, per=1):
        x = n, per * channels * groups, size, size
        weight = channels * groups, per * channels, *window.kernel
        return Case("forward", x, weight, replace(window, groups=groups))

    large = int((cache_size() / 36) ** 0.5) + 1
    assert blocked.fits(ops, case(8, 4, large))
    assert not blocked.fits(ops, case(8, 8, large))
    assert not blocked.fits(ops, case(8, 4, large // 2))
    assert not blocked.fits(ops, case(8, 4, large, groups=2))
    pixels = case(8, 4, large, window=PIXELS, per=9)
    assert not blocked.fits(ops, pixels), "a product over all images reads the weight once"
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: MINE)
    assert blocked.estimate(ops, case(8, 2, large)) < 1
    assert blocked.estimate(ops, case(8, 2, large)) < blocked.estimate(ops, case(8, 4, large))
    assert blocked.estimate(ops, case(1, 2, large)) == NEVER
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: BUILT_IN)
    assert blocked.estimate(ops, case(8, 2, large)) == NEVER


@pytest.mark.parametrize("size", [(1, 2, 2), (2, 2, 2), (1, 1, 3)])
@pytest.mark.parametrize("rest", ["", "relu", "add", "add, relu"])
def test_a_few_pixels_are_a_product_with_the_constant_weight(ops, size, rest):
    """Large weights are read once, and NaN propagates."""
    n, h, w = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 128, h, w), np.float32)
    weight = rng.standard_normal((128, 128, 3, 3), np.float32)
    bias = rng.standard_normal(128).astype(np.float32)
    other = rng.standard_normal((n, 128, h, w), np.float32) if "add" in rest else None
    case = Case("constant", x.shape, weight.shape, PLAIN)
    assert product.constant_fits(ops, case) is has_compiler()
    assert not product.constant_fits(ops, case._replace(x=(3, 128, 2, 2)))
    got = ops.conv2d_constant(x, weight, bias, PLAIN, "relu" in rest, other)
    wanted = numpy_ops.conv2d_constant(
        *(a.astype(np.float64) for a in (x, weight, bias)), PLAIN, "relu" in rest, other
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * abs(wanted).max())
