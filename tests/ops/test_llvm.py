"""LLVM's kernels: which cases they take, NaN, threads, and nets that train by them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import singanet
from singanet.device import Device
from singanet.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    Layer,
    MaxPooling2D,
    Reshape,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.compiled import calls as calls_of_c
from singanet.ops.compiled.sizes import LANES
from singanet.ops.costs import Case
from singanet.ops.llvm import LlvmOps, depthwise, few, kernels, recurrent, winograd
from singanet.ops.llvm.plans import CompiledPlan, PythonCrew
from singanet.ops.llvm.pool import pool
from singanet.ops.threads import set_threads
from singanet.ops.window import Attention, Direction, RecurrentCase, RecurrentSlopes, Window
from singanet.ops.workers import do, shared
from singanet.optimizer import SGD
from singanet.program.lower_sweeps import chained
from singanet.training import Callback
from tests.ops.kernel_rows import NONE, PLAIN, SAME
from tests.program.twins import Twins

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")

several_cores = pytest.mark.skipif(threads.cores() < 2, reason="one core")
FIXTURES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def ops(llvm):
    return llvm


@pytest.fixture
def narrow():
    """Kernels that may multiply bfloat16, like oneDNN's with the same routes."""
    made = LlvmOps()
    made.narrow = True
    return made


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(2)


@pytest.fixture
def compiles(monkeypatch):
    """Few elements are enough."""
    monkeypatch.setattr(kernels, "_LEAST", 1)
    monkeypatch.setattr(kernels, "_COMPILED_POOL_LEAST", 1)
    monkeypatch.setattr(depthwise, "_LEAST", 1)
    monkeypatch.setattr(kernels, "_MANY_NUMBERS", 1)
    monkeypatch.setattr(recurrent, "_LEAST", 1)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def image(n, c, h, w, seed=0):
    return draw(n, h, w, c, seed=seed).transpose(0, 3, 1, 2)


def close(got, wanted, near=3e-5):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=near * max(abs(wanted).max(), 1e-6))


# -- Which cases they take ------------------------------------------------------------------------


def without_compiler(monkeypatch):
    for module in (depthwise, kernels, recurrent, winograd):
        monkeypatch.setattr(module, "has_compiler", lambda: False)


def test_products(ops, narrow, monkeypatch):
    def takes(m, k, n, kind=np.float32):
        return kernels.is_small(ops, draw(m, k).astype(kind), draw(k, n).astype(kind), None)

    assert takes(1, 1024, 1024)
    assert takes(32, 64, 64)
    for other in ((1, 1025, 1024), (4, 64, 64, np.float64), (0, 64, 64)):
        assert not takes(*other)
    # Otherwise oneDNN has kernels for constants.
    from singanet.ops.compiled.engine import is_wide

    monkeypatch.setattr(kernels, "cache_size", lambda: 1 << 18)
    for some in ((33, 64, 64), (128, 784, 512), (129, 256, 256)):
        assert takes(*some) == (not is_wide())
    for other in ((129, 256, 257), (128, 2049, 64), (kernels._MOST_ROWS + 1, 8, 8)):
        assert not takes(*other)
    assert not kernels.is_small(ops, draw(2, 3, 4), draw(4, 5), None)
    assert not kernels.is_small(ops, draw(2, 4), draw(4, 5), draw(5).astype(np.float64))
    assert not kernels.is_small(narrow, draw(4, 64), draw(64, 64), None)


def test_batch_normalization(ops, narrow, monkeypatch):
    def takes(x, ops=ops):
        vector = np.ones(x.shape[1], x.dtype)
        return kernels.batch_norm_train.fits(ops, x, vector, vector, 1e-3)

    some, many = image(32, 24, 16, 16), image(32, 48, 32, 32)
    # oneDNN has a kernel for 32 channels; a row of pixels without gaps is as long as the whole.
    expected = [(some, True), (many, True), (draw(4096, 40), True), (image(8, 24, 16, 16), False),
                (some.astype(np.float16), False), (some.astype(np.float64), False),
                (image(32, 32, 16, 16), False), (draw(65, 2047), False)]  # fmt: skip
    assert [takes(x) for x, _ in expected] == [wanted for _, wanted in expected]
    assert takes(some, narrow)
    assert not takes(many, narrow)
    without_compiler(monkeypatch)
    assert not takes(some)


def test_pooling(ops, narrow, monkeypatch):
    window = Window((2, 2), (2, 2), NONE)

    def takes(x, window=window, ops=ops):
        return kernels.max_pool.fits(ops, x, window, True)

    large = image(32, 24, 32, 32)
    assert takes(large)
    assert takes(large, Window((16, 16), (2, 2), NONE))
    for other in (image(32, 15, 48, 48), image(8, 24, 32, 32), large.astype(np.float64)):
        assert not takes(other)
    assert not takes(large, Window((16, 17), (2, 2), NONE))
    assert not takes(large, ops=narrow)
    without_compiler(monkeypatch)
    assert not takes(large)


def test_convolutions_by_channel(ops, narrow, monkeypatch):
    def takes(x, weight, window=PLAIN, ops=ops):
        y = image(len(x), len(weight), *window._out_size(*x.shape[2:]))
        routes = (
            (LlvmOps.depthwise_conv2d, (x, weight, None, window)),
            (LlvmOps.depthwise_conv2d_backward_data, (y, weight, x.shape, window)),
            (LlvmOps.depthwise_conv2d_backward_weights, (x, y, weight.shape, window)),
        )
        return [kernel.routes[0].fits(ops, *given) for kernel, given in routes]

    x, weight = image(2, 40, 14, 14), draw(40, 1, 3, 3)
    assert takes(x, weight) == [True] * 3
    assert takes(x, weight, Window((3, 3), (2, 1), SAME)) == [False, True, False]
    assert takes(image(8, 40, 14, 14), weight, Window((3, 3), (2, 1), SAME)) == [True] * 3
    # NumPy spreads gradients of windows with gaps at a stride.
    assert takes(image(8, 40, 14, 14), weight, Window((3, 3), (2, 1), SAME, (2, 2)))[1] is False
    for other in ((image(2, 15, 40, 40), draw(15, 1, 3, 3)), (x, draw(40, 2, 3, 3)),
                  (x[:1], weight), (x.astype(np.float64), weight), (x, draw(40, 1, 3, 8)),
                  (x[:0], weight)):  # fmt: skip
        window = Window(other[1].shape[2:], (1, 1), SAME)
        assert takes(*other, window)[0] is False
    assert takes(x, weight, ops=narrow) == [False] * 3
    without_compiler(monkeypatch)
    assert takes(x, weight) == [False] * 3


def test_convolutions_of_groups(ops):
    def takes(channels, group, groups, outputs=None):
        x, window = image(2, channels, 14, 14), replace(PLAIN, groups=groups)
        weight = draw(outputs or channels, group, 3, 3)
        y = image(2, len(weight), *window._out_size(14, 14))
        given = (x, weight, None), (y, weight, x.shape), (x, y, weight.shape)
        routes = depthwise.groups, depthwise.groups_data, depthwise.groups_weights
        return {route.fits(ops, *each, window) for route, each in zip(routes, given, strict=True)}

    for group in (2, 4, 8, 16, 20, 24, 64):
        assert takes(16 * group, group, 16) == {True}
    for group in (1, 3, 12, 18):
        assert takes(16 * group, group, 16) == {False}
    assert takes(64, 64, 1) == takes(40, 4, 10) == takes(64, 4, 16, 128) == {False}


def test_relus(ops):
    x = np.zeros((64, 2048), np.float32)
    assert kernels.of_one.fits(ops, "relu", x)
    assert kernels.of_sum.fits(ops, "add", [x, x], x.shape, relu=True)
    assert not kernels.of_one.fits(ops, "tanh", x)
    for other in (x[:8], x[:, ::2].repeat(2, 0)[::2], x.astype(np.float64)):
        assert not kernels.of_one.fits(ops, "relu", other)
    assert not kernels.of_sum.fits(ops, "add", [x, x], x.shape)
    for mode, arrays in (("multiply", [x, x]), ("add", [x, x, x]),
                         ("add", [x, np.asfortranarray(x)])):  # fmt: skip
        assert not kernels.of_sum.fits(ops, mode, arrays, x.shape, relu=True)


@pytest.mark.parametrize(
    "other",
    [
        {"window": Window((3, 3), (2, 2), SAME)},
        {"window": Window((3, 3), (1, 1), SAME, (2, 2))},
        {"window": Window((3, 5), (1, 1), SAME)},
        {"window": Window((7, 7), (1, 1), ((3, 3), (3, 3)))},
        {"window": Window((3, 3), (1, 1), ((3, 0), (0, 0)))},
        {"weight": (8, 4, 3, 3), "window": replace(PLAIN, groups=2)},
        {"x": (0, 8, 6, 6)},
    ],
)
def test_convolutions_by_tiles(ops, other, monkeypatch):
    usual = {"x": (2, 8, 6, 6), "weight": (8, 8, 3, 3), "window": PLAIN}
    assert winograd.fits(ops, Case("forward", **usual))
    assert not winograd.fits(ops, Case("forward", **{**usual, **other}))
    without_compiler(monkeypatch)
    assert not winograd.fits(ops, Case("forward", **usual))


def test_other_convolutions_are_numpys(ops):
    x, weight = draw(8, 48, 40, 40), draw(48, 48, 3, 3, seed=1)
    for some in ((draw(1, 2, 3, 3), draw(2, 2, 3, 3)),
                 (x.astype(np.float64)[:1], weight.astype(np.float64))):  # fmt: skip
        got = ops.conv2d(*some, None, PLAIN)
        np.testing.assert_array_equal(got, numpy_ops.conv2d(*some, None, PLAIN))


# -- Values to the bit ----------------------------------------------------------------------------


@FIXTURES
@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(0, 3), st.integers(1, 3))
def test_relus_are_numpys_to_the_bit(shape, seed, count):
    def spoilt(seed):
        x = image(*shape, seed=seed)
        x.transpose(0, 2, 3, 1).flat[:: 7 + seed] = [np.nan, np.inf, -np.inf, -0.0][seed % 4]
        return x

    ops = LlvmOps()
    ops.runtime().threads = count
    a, b = spoilt(seed), spoilt(seed + 1)
    got = kernels.of_one.run(ops, "relu", a)
    np.testing.assert_array_equal(got, numpy_ops.activation("relu", a))
    with np.errstate(invalid="ignore"):
        wanted = numpy_ops.combine("add", [a, b], a.shape, relu=True)
    got = kernels.of_sum.run(ops, "add", [a, b], a.shape, relu=True)
    np.testing.assert_array_equal(got, wanted)


def few_numbers(n, c, *size, seed=0):
    """Channels-last, with equal maxima."""
    x = np.random.default_rng(seed).integers(-9, 9, (n, *size, c)).astype(np.float32)
    return np.moveaxis(x, -1, 1)


# Size, kernel, stride, padding and dilation.
AXIS = st.tuples(*(st.integers(1, k) for k in (9, 3, 3)),
                 st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(1, 2))  # fmt: skip


@FIXTURES
@given(
    st.integers(1, 3),
    st.integers(16, 70),
    st.lists(AXIS, min_size=2, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_max_pooling_is_numpys_to_the_bit(compiles, n, channels, axes, ceil, keep, seed):
    size, kernel, stride, pads, dilation = zip(*axes, strict=True)
    window = Window(kernel, stride, pads, dilation, ceil)
    assume(min(window._out_size(*size)) > 0)
    x, rng = few_numbers(n, channels, *size, seed=seed), np.random.default_rng(seed)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.03] = value
    y, where = kernels.max_pool.run(LlvmOps(), x, window, keep)
    wanted, noted = numpy_ops.max_pool(x, window, keep)
    np.testing.assert_array_equal(y, wanted)
    assert (where is None) is not keep
    if keep:
        np.testing.assert_array_equal(where, noted)
        assert where.dtype == np.uint8


def by_groups(ops, n, c, group, axes, biased):
    """A convolution of groups of channels, and its gradients, of the sizes in ``axes``."""
    size, kernel, stride, pads, dilation = zip(*axes, strict=True)
    window = Window(kernel, stride, pads, dilation, groups=c // group)
    x, weight, bias = image(n, c, *size), draw(c, group, *kernel, seed=1), draw(c, seed=2)
    dy = image(n, c, *window._out_size(*size), seed=3)
    return [
        ops.conv2d(x, weight, bias if biased else None, window),
        ops.conv2d_backward_data(dy, weight, x.shape, window),
        ops.conv2d_backward_weights(x, dy, weight.shape, window),
    ]


GROUPS = st.one_of(
    st.tuples(st.integers(16, 70), st.just(1)),
    st.tuples(st.sampled_from([16, 48]), st.sampled_from([2, 4, 8])),
    st.sampled_from([16, 20, 36]).flatmap(
        lambda group: st.tuples(st.integers(2, 3).map(group.__mul__), st.just(group))
    ),
)
"""Channels, and channels of a group."""


@FIXTURES
@given(st.integers(1, 19), GROUPS, st.tuples(AXIS, AXIS), st.booleans())
def test_groups_of_channels_are_convolved_as_by_numpy(compiles, n, channels, axes, biased):
    size, *rest = zip(*axes, strict=True)
    assume(min(Window(*rest)._out_size(*size)) > 0)
    found, wanted = (by_groups(ops, n, *channels, axes, biased) for ops in (LlvmOps(), numpy_ops))
    for got, right in zip(found, wanted, strict=True):
        close(got, right)


@pytest.mark.parametrize("group", [1, 4, 20])
def test_bits_of_groups_of_channels_do_not_depend_on_threads(compiles, monkeypatch, group):
    found = []
    for count in (1, 2, 3):
        ops = LlvmOps()
        monkeypatch.setattr(ops.runtime(), "threads", count)
        axes = (19, 3, 2, (1, 1), 1), (40, 5, 1, (2, 1), 1)
        found.append(by_groups(ops, 40, 240, group, axes, True))
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


def lstm(ops, steps, n, units, reverse=False, starts=True, sloped=True, scale=1.0):
    """The states, gates and gradients of an LSTM."""
    x, rows = scale * draw(steps, n, 5), draw(n, units, seed=1)
    weights = draw(5, 4 * units, seed=2), draw(units, 4 * units, seed=3) / units**0.5
    case = RecurrentCase(x, weights, (draw(4 * units, seed=4),), Direction(steps, reverse))
    made = ops.lstm_layer(case, [rows, -rows] if starts else [None, None], True)
    dy = draw(steps, n, units, seed=5) if sloped else None
    grads = ops.lstm_layer_backward(case, made, RecurrentSlopes(dy, [rows, rows / 2]))
    return [*made.states, *made.notes, *grads[:-1], *grads.starts]


@FIXTURES
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 14), st.integers(1, 5).map(LANES.__mul__)),
    st.tuples(*[st.booleans()] * 3),
    st.sampled_from([1e-3, 1.0, 3.0]),
)
def test_steps_of_lstms_are_numpys(compiles, sizes, options, scale):
    found, wanted = (lstm(ops, *sizes, *options, scale) for ops in (LlvmOps(), numpy_ops))
    for got, right in zip(found, wanted, strict=True):
        close(got, right)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_an_lstm_that_keeps_no_gates_has_the_same_states(compiles, n):
    """Whether the steps multiply the inputs, as with more than two samples here, or not."""
    weights, bias = (draw(5, 128, seed=1), draw(32, 128, seed=2)), draw(128, seed=3)
    for reverse in (False, True):
        case = RecurrentCase(draw(9, n, 5), weights, (bias,), Direction(9, reverse))
        kept, fresh = (LlvmOps().lstm_layer(case, [None, None], keep) for keep in (True, False))
        assert not fresh.notes
        for got, wanted in zip(fresh.states, kept.states, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_an_lstm_without_weights_of_inputs_is_numpys(compiles):
    case = RecurrentCase(draw(4, 3, 128), (None, draw(32, 128)), (draw(128),), Direction(4))
    found, wanted = (each.lstm_layer(case, [None, None], True) for each in (LlvmOps(), numpy_ops))
    for got, right in zip(found.states, wanted.states, strict=True):
        close(got, right)


@pytest.mark.parametrize("n", [1, 3, 13])
def test_bits_of_lstms_do_not_depend_on_threads(compiles, monkeypatch, n):
    found = []
    for count in (1, 2, 3):
        ops = LlvmOps()
        monkeypatch.setattr(ops.runtime(), "threads", count)
        if count > 1:
            monkeypatch.setattr(ops.runtime(), "jobs", pool().jobs(count))
        found.append(lstm(ops, 20, n, 80))
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_nan_and_infinity_stay_in_their_sample_of_an_lstm(compiles, ops):
    x = draw(6, 5, 16)
    x[2, 3, 0], x[4, 1, 0] = np.nan, np.inf
    weights = np.abs(draw(16, 64)), draw(16, 64, seed=1)
    case = RecurrentCase(x, weights, (draw(64),), Direction(6))
    assert recurrent.lstm_layer.routes[0].fits(ops, case, [None, None], True)
    h, c = ops.lstm_layer(case, [None, None], True).states
    for state in (h, c):
        broken = np.isnan(state).any(axis=2)
        assert broken[3:, 3].all()
        assert broken.sum() == 4
    wanted = numpy_ops.lstm_layer(case, [None, None], True).states
    np.testing.assert_allclose(h, wanted[0], rtol=0, atol=1e-5)


def test_which_lstms_are_compiled(compiles, ops, narrow, monkeypatch):
    def takes(units=32, ops=ops, kind=np.float32, **direction):
        arrays = draw(4, 3, 5), draw(5, 4 * units), draw(units, 4 * units), draw(4 * units)
        x, *weights, bias = (array.astype(kind) for array in arrays)
        case = RecurrentCase(x, tuple(weights), (bias,), Direction(4, **direction))
        return recurrent.lstm_layer.routes[0].fits(ops, case, [None, None], True)

    assert takes()
    assert takes(reverse=True)
    assert not takes(units=40)
    assert not takes(kind=np.float64)
    assert not takes(ops=narrow)
    for other in ({"drop": draw(3, 32)}, {"rounds": True}, {"skips": np.zeros((4, 3, 1), bool)}):
        assert not takes(**other)
    without_compiler(monkeypatch)
    assert not takes()


@st.composite
def convolutions(draw):
    taps = draw(st.sampled_from([3, 5]))
    pads, side = st.integers(0, taps - 1), st.integers(taps, 13)
    window = Window((taps, taps), (1, 1), tuple((draw(pads), draw(pads)) for _ in range(2)))
    n, c, f = draw(st.integers(1, 4)), draw(st.integers(1, 40)), draw(st.integers(1, 70))
    return window, (n, c, draw(side), draw(side)), f


@FIXTURES
@given(convolutions())
def test_tiles_of_any_size(convolution):
    ops = LlvmOps()
    window, shape, f = convolution
    x, k, b = draw(*shape), draw(f, shape[1], *window.kernel, seed=1), draw(f, seed=2)
    dy, added = (draw(shape[0], f, *window._out_size(*shape[2:]), seed=seed) for seed in (3, 4))
    x64, k64, b64, dy64 = (a.astype(np.float64) for a in (x, k, b, dy))
    y = numpy_ops.conv2d(x64, k64, b64, window)
    close(winograd.forward(ops, x, k, b, window), y)
    dx = numpy_ops.conv2d_backward_data(dy64, k64, x.shape, window)
    close(winograd.data(ops, dy, k, x.shape, window), dx)
    dw = numpy_ops.conv2d_backward_weights(x64, dy64, k.shape, window)
    close(winograd.weights(ops, x, dy, k.shape, window), dw)
    for relu in (False, True):
        got = winograd.constant(ops, x, k, b, window, relu=relu, add=added)
        close(got, np.maximum(y + added, 0) if relu else y + added)


def all_tiles(ops, n=9, c=20, f=30, size=17):
    x, k, dy = draw(n, c, size, size), draw(f, c, 3, 3, seed=1), draw(n, f, size, size, seed=2)
    return [
        winograd.forward(ops, x, k, draw(f), PLAIN),
        winograd.data(ops, dy, k, x.shape, PLAIN),
        winograd.weights(ops, x, dy, k.shape, PLAIN),
    ]


def test_bits_of_tiles_do_not_depend_on_threads_or_blocks(monkeypatch):
    found = []
    for count, block in ((1, 24), (2, 48), (3, 24), (1, 240)):
        ops = LlvmOps()
        monkeypatch.setattr(ops.runtime(), "threads", count)
        with monkeypatch.context() as patch:
            patch.setattr(winograd.Geometry, "block", property(lambda self, block=block: block))
            # Threads share several parts, and work in turns at a single one.
            found.append([*all_tiles(ops), *all_tiles(ops, n=4, c=40, f=100, size=13)])
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_parts_cover_all_tiles_and_depend_on_sizes_alone():
    case = Case("weights", (32, 16, 32, 32), (16, 16, 3, 3), PLAIN)
    parts = winograd.geometry_of(case).parts
    assert len(parts) == 4
    assert [last for _, last in parts[:-1]] == [first for first, _ in parts[1:]]
    assert (parts[0][0], parts[-1][1]) == (0, 32 * 8 * 8)
    # Few tiles of many channels are one part: sums of parts would take longer than the tiles.
    heavy = Case("weights", (8, 256, 14, 14), (256, 256, 3, 3), PLAIN)
    assert len(winograd.geometry_of(heavy).parts) == 1


def test_tiles_keep_nan_and_numbers_of_any_size(ops):
    x, k = draw(2, 4, 8, 8), draw(4, 4, 3, 3, seed=1)
    y = winograd.forward(ops, x, k, None, PLAIN)
    for scale in (2.0**-60, 2.0**60):
        got = winograd.forward(ops, x * np.float32(scale), k, None, PLAIN)
        np.testing.assert_array_equal(got, y * np.float32(scale))
    x[0, 2, 3, 3] = np.nan
    got = winograd.constant(ops, x, k, None, PLAIN, relu=True)
    assert np.isnan(got[0, :, 2:5, 2:5]).all()


def test_tiles_of_processors_with_few_registers(monkeypatch):
    """Without AVX-512 a panel is one vector."""
    from singanet.ops.compiled import engine

    monkeypatch.setattr(engine, "is_wide", lambda: False)
    winograd._compiled.cache_clear()
    try:
        few = all_tiles(LlvmOps(), n=2, f=70, size=9)
    finally:
        winograd._compiled.cache_clear()
    monkeypatch.undo()
    for got, wanted in zip(few, all_tiles(LlvmOps(), n=2, f=70, size=9), strict=True):
        close(got, wanted.astype(np.float64))


# -- Plans and threads ----------------------------------------------------------------------------


@several_cores
def test_threads_share_batch_normalization_to_the_same_bits(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    x, dy, (gamma, beta) = image(16, 24, 40, 40), image(16, 24, 40, 40, seed=1), draw(2, 24, seed=2)
    found = []
    for count in (1, 2):
        set_threads(count)
        ops = LlvmOps()
        y, mean, var, inverse, mask = ops.batch_norm_train(x, gamma, beta, 1e-3, True)
        back = ops.batch_norm_backward(dy, x, gamma, mean, inverse, False, mask)
        found.append((y, mean, var, inverse, *back))
        plans = ops.runtime()._plans.values()
        assert [plan.threads for plan in plans if isinstance(plan, CompiledPlan)] == [count] * 2
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@several_cores
def test_threads_share_the_lines_of_pooling_and_long_arrays(compiles, two_threads):
    ops, window = LlvmOps(), Window((3, 3), (2, 2), SAME)
    x = few_numbers(14, 40, 41, 41)
    for got, wanted in zip(ops.max_pool(x, window, True), numpy_ops.max_pool(x, window, True),
                           strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, wanted)
    assert [plan.threads for plan in ops.runtime()._plans.values()] == [2]
    x = draw((1 << 17) + 5)
    np.testing.assert_array_equal(ops.activation("relu", x), np.maximum(x, 0))


@several_cores
def test_a_matrix_that_threads_share_is_not_llvms(two_threads, monkeypatch):
    ops = LlvmOps()
    monkeypatch.setattr(kernels, "is_worth_threads", lambda ops, rows, size: size > 5000)
    x, small, large = draw(1, 50), draw(50, 100), draw(50, 101)
    for weight in (small, large):
        np.testing.assert_allclose(
            ops.affine_constant(x, weight, None), x @ weight, rtol=1e-4, atol=1e-4
        )
    assert kernels._is_compiled(ops, x, small, None)
    monkeypatch.setattr(ops.runtime(), "jobs", None)
    assert not kernels._is_compiled(ops, x, large, None)


@pytest.mark.parametrize(("rows", "bias"), [(1, True), (5, False), (40, True)])
def test_threads_share_products_of_few_rows_to_the_same_bits(ops, narrow, rows, bias, monkeypatch):
    x, weight = draw(rows, 300), draw(300, 1500, seed=1)
    line = draw(1500, seed=2) if bias else None
    assert kernels.product_of_rows.fits(ops, x, weight, line)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(ops.runtime(), "threads", count)
        monkeypatch.setattr(kernels, "is_worth_threads", lambda *given, count=count: count > 1)
        ops.trim(prepared=True)
        found.append(kernels.product_of_rows.run(ops, x, weight, line, relu=True))
    close(found[0], np.maximum(x @ weight + (0 if line is None else line), 0))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    for other in ((draw(65, 4), draw(4, 9)), (x.astype(np.float64), weight), (draw(0, 4), weight)):
        assert not kernels.product_of_rows.fits(ops, *other, None)
    assert not kernels.product_of_rows.fits(narrow, x, weight, None)
    monkeypatch.setattr(kernels, "cache_size", lambda: 4 * 300 * LANES)
    assert not kernels.product_of_rows.fits(ops, x, weight, None)


@pytest.mark.parametrize("rows", [129, 300, 513])
def test_blocks_of_rows_have_the_same_bits_on_threads(ops, rows, monkeypatch):
    x, weight, line = draw(rows, 30), draw(30, 50, seed=1), draw(50, seed=2)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(ops.runtime(), "threads", count)
        monkeypatch.setattr(kernels, "is_worth_threads", lambda *given, count=count: count > 1)
        ops.trim(prepared=True)
        found.append(kernels.multiply(ops, x, weight, line, relu=True))
    close(found[0], np.maximum(x @ weight + line, 0))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_products_with_one_matrix_in_lanes(ops, narrow, monkeypatch):
    def takes(rows, *shape, kind=np.float32, ops=ops):
        weight = draw(*shape, seed=1).astype(kind)
        multiply = ops.multiplier(weight, rows)
        x = draw(rows, shape[0]).astype(kind)
        close(multiply(x, np.empty((rows, shape[1]), kind)).astype(np.float32), x @ weight)
        return multiply.__module__ == kernels.__name__

    assert takes(4, 256, 256)
    assert takes(7, 1000, 70)
    assert not takes(3, 256, 256)
    assert not takes(65, 256, 256)
    assert not takes(4, 255, 256)
    assert not takes(4, 256, 256, kind=np.float64)
    assert not takes(4, 256, 256, ops=narrow)
    monkeypatch.setattr(ops, "lane_count", lambda rows, work: 2)
    assert not takes(7, 256, 256)
    assert takes(128, 256, 256)


def test_parts_of_stages_are_shared():
    assert shared((8, 9), (5, 1, 0), 1) == [[(8, 9, 0, 5, 0, 1, 0, 0)]]
    assert shared((8,), (5, 1, 0), 2) == [
        [(8, 0, 2, 0, 0, 0, 0), (8, 2, 5, 0, 0, 0, 0)],
        [(8, 0, 0, 0, 1, 0, 0)],
    ]


def test_a_single_worker_is_handed_nothing(monkeypatch):
    made = LlvmOps()
    monkeypatch.setattr(made.runtime(), "threads", 1)
    wanted = all_tiles(made)

    def refuse(parts):
        raise AssertionError("a hand-over")

    monkeypatch.setattr(PythonCrew, "side_by_side", property(lambda crew: refuse))
    made.trim(prepared=True)
    for got, right in zip(all_tiles(made), wanted, strict=True):
        np.testing.assert_array_equal(got, right)


def test_calls_do_not_change_openmps_threads():
    did = []
    crew = PythonCrew(2, True, lambda parts: [do(part) for part in parts])
    function = SimpleNamespace(briefly=lambda at: did.append(numbers_at(at, 4)), bound=0)
    stages = [[(7,)], [(8,), (9,)]]
    plan = CompiledPlan(crew, function, stages, reads=(1,), writes=(0,), scratch=64)
    calls = plan.bound((4, 5), 6)
    calls()
    assert calls.threads == 0
    assert calls.after(1) == calls.after(2)
    assert did == [[4, 5, 6, 7], [4, 5, 6, 8], [4, 5, 6, 9]]
    assert plan.threads == 2


# -- Chains ---------------------------------------------------------------------------------------


def numbers_at(place, count):
    return list((ctypes.c_int64 * count).from_address(place.value))


COUNTS = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)
ONE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)


def place_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def native(run, *given, bits=0, failed=None):
    """A call of ``run``, a function of C in Python, by its record."""
    function = COUNTS(run)
    made = calls_of_c.NativeCall(function, *given, *[0] * (4 - len(given)))
    made.record = place_of(function), bits, *given, *[0] * (4 - len(given))
    made.brief, made.failed = False, failed
    made.kept = function
    return made


def test_calls_in_a_row_are_one_of_c():
    did = []

    def note(k, *_):
        did.append(k)
        return 6 * (k == 2)

    def refuse(status):
        raise ValueError(status)

    calls = [native(note, k, bits=bits, failed=refuse) for k, bits in enumerate((4, 4, 0, 4))]
    between = partial(did.append, "between")
    chain, after, *single = calls_of_c.joined([*calls[:3], between, calls[3]])
    assert isinstance(chain, calls_of_c.Chain)
    assert [after, *single] == [between, calls[3]]
    for call in (chain, after, *single):
        call()
    assert did == [0, 1, 2, "between", 3]
    (failing,) = calls_of_c.joined([calls[0], native(note, 2, bits=4, failed=refuse)])
    for _ in range(2):
        with pytest.raises(ValueError, match="4"):
            failing()


@pytest.mark.parametrize(("count", "keeps"), [(2, True), (3, True), (4, False), (40, False)])
def test_many_short_calls_in_a_row_release_pythons_lock(count, keeps):
    """Else other threads of Python wait for all of them."""
    calls = [native(lambda *_: 0, k) for k in range(count)]
    for call in calls:
        call.brief = True
    (chain,) = calls_of_c.joined(calls)
    assert chain._call.brief is keeps
    chain()


class Threads:
    """Threads that run jobs like GNU's `GOMP_parallel`; ``come`` are the ones that run."""

    def __init__(self, come):
        self.numbers = threading.local()
        self.come = come
        self.start = START(self._start)
        self.number = NUMBER(lambda: self.numbers.mine)

    def jobs(self, busy=None):
        busy = np.zeros(1, np.int64) if busy is None else busy
        return calls_of_c.Jobs(2, place_of(self.start), place_of(self.number), busy, None)

    def _start(self, enter, job, count, _):
        def run(number):
            self.numbers.mine = number
            ONE(enter)(job)

        others = [threading.Thread(target=run, args=(k,)) for k in self.come]
        for other in others:
            other.start()
        for other in others:
            other.join()


@pytest.mark.parametrize("come", [(0,), (1,), (0, 1), (1, 0)])
def test_each_part_of_a_job_runs_once_and_stages_in_order(come):
    """Also if a thread does not come, and again at the next run."""
    did = []
    stages = [[[native(lambda a, b, *_: did.append((a, b)) or 0, s, k)] for k in range(count)]
              for s, count in enumerate((2, 1, 3, 2))]  # fmt: skip
    threads = Threads(come)
    (job,) = threads.jobs().share(stages, False)
    for _ in range(3):
        did.clear()
        job()
        assert [s for s, _ in did] == [0, 0, 1, 2, 2, 2, 3, 3]
        assert sorted(did) == [(s, k) for s, n in enumerate((2, 1, 3, 2)) for k in range(n)]


def test_a_job_runs_on_the_calling_thread_while_the_cores_are_busy():
    met, busy = set(), np.ones(1, np.int64)
    stages = [[[native(lambda *_: met.add(threading.get_ident()) or 0)] for _ in range(2)]]
    # Its functions of C are alive as long as it is.
    threads = Threads((1,))
    (job,) = threads.jobs(busy).share(stages, False)
    job()
    assert met == {threading.get_ident()}
    met.clear()
    busy[0] = 0
    job()
    assert threading.get_ident() not in met


@pytest.mark.parametrize(("n", "c", "f", "size"), [(1, 16, 16, 32), (1, 64, 64, 8), (2, 20, 30, 5)])
def test_bits_of_tiles_in_jobs(n, c, f, size):
    """Threads divide tiles, or the tiles and points of each block."""
    x, k, line = draw(n, c, size, size), draw(f, c, 3, 3, seed=1), draw(f)
    geometry = winograd.geometry_of(Case("constant", x.shape, k.shape, PLAIN))
    ops, made, threads = LlvmOps(), [], Threads((0, 1))
    for crew in (PythonCrew(1, True), PythonCrew(2, True, None, threads.jobs())):
        y = np.empty((geometry.n, *geometry.out), np.float32)
        entered = np.empty(geometry.entered, np.float32)
        images = ops.channels_last(x)
        ops.runtime().run(winograd.enter_plan(crew, geometry), (entered, k))
        plan = winograd._entered_plan(crew, geometry, True, False, True)
        ops.runtime().run(plan, (y, images, entered, line))
        made.append(y)
    np.testing.assert_array_equal(*made)


# -- Nets -----------------------------------------------------------------------------------------


def stacked(*layers):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    for layer in layers:
        net.add(layer)
    return net


def normalized_net():
    return stacked(Conv2D("conv", 10, 3, input_sample_shape=(2, 9, 8)), BatchNormalization("bn"),
                   Activation("relu"), Flatten("flat"), Dense("fc", 20), BatchNormalization("top"),
                   Dense("scores", 3))  # fmt: skip


def pooled_net():
    return stacked(Conv2D("conv", 20, 3, input_sample_shape=(2, 9, 8)), MaxPooling2D("pool", 3, 2),
                   Flatten("flat"), Dense("scores", 3))  # fmt: skip


def recurrent_net():
    return stacked(
        Reshape("rows", (9, 16), input_sample_shape=(2, 9, 8)),
        LSTM("lstm", 20),
        GRU("gru", 24),
        RNN("tanh", 18, rnn_mode="tanh", return_sequences=False),
        Dense("scores", 3),
    )


def dense_net():
    return stacked(Dense("one", 33, input_sample_shape=(20,)), Activation("relu"),
                   Dense("two", 70), Activation("again"), Dense("scores", 3))  # fmt: skip


@pytest.mark.parametrize(
    ("make", "n"), [(normalized_net, 520), (pooled_net, 30), (recurrent_net, 7)]
)
def test_a_net_trains_as_without_a_compiler_recorded_or_not(ops, compiles, monkeypatch, make, n):
    x, y, made = draw(n, 2, 9, 8), np.arange(n) % 3, []
    for there in (True, False):
        monkeypatch.setattr(kernels, "has_compiler", lambda there=there: there)
        twins = Twins(make, lambda: SGD(lr=0.05, momentum=0.9))
        losses = [twins.step(x, y)[0] for _ in range(4)]
        twins.forward(False, x)
        scores = twins.recorded.predict(x)
        predictor = twins.recorded.predictor()
        np.testing.assert_allclose(predictor(x), scores, rtol=1e-3, atol=1e-4)
        made.append((losses, scores))
        broken = x.copy()
        broken[3, 1, 4, 4] = np.nan
        assert np.flatnonzero(np.isnan(predictor(broken)).any(axis=1)).tolist() == [3]
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    step = SGD(lr=0.05)
    assert np.isfinite(twins.recorded.step(x, y, step)[0])
    assert np.isnan(twins.recorded.step(broken, y, step)[0])


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_predictors_of_small_products(ops, monkeypatch, rows):
    net, x = dense_net(), draw(rows, 20)
    expected = net.predict(x)
    for there in (True, False):
        monkeypatch.setattr(kernels, "has_compiler", lambda there=there: there)
        predictor = net.predictor()
        made = [predictor(x) for _ in range(3)]
        np.testing.assert_allclose(made[0], expected, rtol=1e-5, atol=1e-6)
        for again in made[1:]:
            np.testing.assert_array_equal(again, made[0])
        # Weights are stored once, in panels that are filled up.
        if there:
            assert predictor.nbytes < 2.2 * 4 * (20 * 33 + 33 * 70 + 70 * 3)
        broken = x.copy()
        broken[rows // 2, 5] = np.nan
        found = predictor(broken)
        assert np.isnan(found[rows // 2]).any()
        others = np.delete(np.arange(rows), rows // 2)
        np.testing.assert_array_equal(found[others], made[0][others])


def test_recorded_steps_are_bit_equal_to_layers():
    places = Device("cpu", LlvmOps()), singanet.device.cpu()
    x, y, made = draw(8, 3, 16, 16), np.arange(8) % 10, []
    for recorded, place in ((True, places[0]), (False, places[0]), (True, places[1])):
        net = singanet.models.build("resnet20", (3, 16, 16), 10, seed=0)
        net.to_device(place)
        sgd = SGD(0.01)
        program = net.record(x, y, sgd) if recorded else None
        for _ in range(2):
            loss = program.run(x, y) if program else net.step(x, y, sgd)
        made.append((float(np.asarray(loss).mean()), net.predictor()(x)))
    assert made[0][0] == made[1][0]
    np.testing.assert_array_equal(made[0][1], made[1][1])
    np.testing.assert_allclose(made[0][1], made[2][1], rtol=1e-3, atol=1e-3)


class Halved(Layer):
    """A user's layer: half of the input."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return ctx.ops.multiply(x, np.float32(0.5))

    def backward(self, ctx, dy):
        return ctx.ops.multiply(dy, np.float32(0.5)), {}


class Lengths(Callback):
    """A user's callback: the squared length of all weights after each epoch."""

    def __init__(self):
        self.found = []

    def on_epoch_end(self, epoch, logs):
        values = self.session.net.param_values()
        self.found.append(float(sum(np.square(value).sum() for value in values)))


def trained(ops):
    """The weights after a fit and a streaming loop, and the lengths that the callback saw."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 8, 48, 48), np.float32), rng.integers(0, 4, 32)
    net = stacked(Conv2D("conv1", 24, 5, input_sample_shape=(8, 48, 48)), Halved("halved"),
                  BatchNormalization("bn1"), Activation("relu1"), MaxPooling2D("pool1", 2, 2),
                  Conv2D("conv2", 40, 3), Activation("relu2"), Flatten("flat"),
                  Dense("fc", 4))  # fmt: skip
    net.device = Device("cpu", ops)
    lengths, sgd = Lengths(), SGD(lr=1e-3)
    net.compile(SGD(lr=1e-3, momentum=0.9))
    net.fit(x, y, batch_size=16, epochs=2, callbacks=[lengths], verbose=False)
    for part in (slice(0, 16), slice(16, 32)):
        net.loss.forward(True, net.forward(True, x[part]), y[part])
        for names, values, grads in net.backward(net.loss.backward()):
            sgd.update(names, values, grads)
    return [value.copy() for value in net.param_values()], lengths.found


def test_nets_with_layers_and_callbacks_of_users_train_as_with_numpys_kernels(monkeypatch):
    ops, taken = LlvmOps(), set()
    plan = ops.runtime().plan

    def watched(build, *arguments, **options):
        taken.add(build.__module__)
        return plan(build, *arguments, **options)

    monkeypatch.setattr(ops.runtime(), "plan", watched)
    got, lengths = trained(ops)
    wanted, others = trained(numpy_ops)
    assert {module.__name__ for module in (winograd, kernels)} <= taken
    np.testing.assert_allclose(lengths, others, rtol=1e-5)
    # Weights have moved by some 1e-3. Rounding decides the gradients at near maxima and near zero.
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "outputs", "transposed"),
    [
        *[(rows, outputs, False) for rows in (1, 3) for outputs in (256, 288, 528, 250)],
        *[(rows, outputs, False) for rows in (5, 8, 16) for outputs in (256, 1344)],
        *[(rows, outputs, True) for rows in (2, 7, 16) for outputs in (256, 259)],
    ],
)
def test_products_of_a_decoder(ops, rows, outputs, transposed, monkeypatch):
    """Lines of groups of vectors, of pairs, of single ones and of a rest; cut to the same bits."""
    ops.few = True
    # Lines are added in fours and one by one.
    inputs = 304 if transposed else 302
    x, weight = draw(rows, inputs), draw(inputs, outputs, seed=1)
    if transposed:
        weight = np.asfortranarray(weight)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr(ops.runtime(), "threads", count)
        ops.trim(prepared=True)
        assert few.affine.fits(ops, x, weight)
        out = np.full((rows, outputs), np.nan, np.float32)
        found.append(few.affine.run(ops, x, weight, out=out))
        assert found[-1] is out
    np.testing.assert_allclose(found[0], x.astype("f8") @ weight, rtol=1e-4, atol=1e-4)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("function", [np.add, np.multiply])
def test_arithmetic_of_few_rows_is_numpys(ops, function):
    x, each, row = draw(3, 37), draw(3, 37, seed=1), draw(37, seed=2)
    for other, name in ((each, "each"), (row, "row"), (0.3, "number")):
        plan = ops.arithmetic(function, x.shape, name, other if name == "number" else 0.0)
        y = np.full_like(x, np.nan)
        operand = x if name == "number" else other
        plan.run([array.ctypes.data for array in (y, x, operand)], 0)
        np.testing.assert_array_equal(y, function(x, other))
    assert ops.arithmetic(np.subtract, x.shape, "each") is None
    assert ops.arithmetic(np.add, (100, 37), "each") is None


def test_joined_calls_are_made_in_their_order(ops):
    """A call of Python between them is made in its place."""
    x, found = np.ones((1, 16), np.float32), []
    twice = ops.arithmetic(np.multiply, x.shape, "number", 2.0)
    more = ops.arithmetic(np.add, x.shape, "number", 1.0)
    places = [x.ctypes.data] * 3
    calls = [plan.bound(places, 0) for plan in (twice, more, twice, more)]
    made = calls_of_c.joined(chained([*calls[:2], lambda: found.append(x[0, 0]), *calls[2:]]))
    assert len(made) == 3
    for call in made:
        call()
    assert found == [3]
    assert x[0, 0] == 7


@pytest.mark.parametrize("come", [(0,), (1,), (0, 1)])
def test_threads_share_joined_calls_to_the_same_bits(ops, come):
    """Products are cut although each is short, and a thread that never comes holds up no other."""
    ops.few = True
    x, first, second = draw(2, 320), draw(320, 512, seed=1), draw(512, 320, seed=2) * 1e-5
    y, z = np.empty((2, 512), np.float32), np.empty((2, 320), np.float32)
    more = ops.arithmetic(np.add, z.shape, "each")
    calls, kept = [], []
    for a, b, out in ((x, first, y), (y, second, z)):
        plan = ops.runtime().plan(few._few_product, (len(a), *b.shape, False), 0)
        room = np.full(plan.scratch, 255, np.uint8)
        kept.append(room)
        calls.append(plan.bound([each.ctypes.data for each in (b, out, a)], room.ctypes.data))
    calls.append(more.bound([each.ctypes.data for each in (x, x, z)], 0))
    start, found, threads = x.copy(), [], Threads(come)
    for jobs in (None, threads.jobs()):
        x[...] = start
        (made,) = calls_of_c.joined(chained(calls), jobs)
        assert (made.stages is not None) if jobs else isinstance(made, calls_of_c.Chain)
        for _ in range(50):
            made()
        found.append(x.copy())
    np.testing.assert_array_equal(*found)
    x[...] = start
    made()
    np.testing.assert_allclose(x, start + start @ first @ second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("come", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(("samples", "groups"), [(1, 1), (1, 3), (2, 4)])
def test_threads_share_attention_of_a_decoder_to_the_same_bits(
    ops, samples, groups, come, monkeypatch
):
    """Also after more steps than there was memory for, and with a window."""
    heads, size, keys = 2 * groups, 16, 70
    q, new = draw(samples, heads, 1, size), draw(samples, groups, 1, size, seed=1)
    case = Attention(0.25, causal=True, window=40)
    threads, found = Threads(come), []
    for count in (1, 2):
        monkeypatch.setattr(ops.runtime(), "threads", count)
        cache = draw(2, samples, groups, keys, size, seed=2)
        out = np.full((samples, heads, 1, size), np.nan, np.float32)
        further = few.further_attention(ops, q, (new, new), groups, case, out)
        calls = calls_of_c.joined(further.calls, threads.jobs() if count > 1 else None)
        is_shared = count > 1 and samples * groups > 1
        assert isinstance(calls[-1], calls_of_c.Chain) != is_shared
        for at in (3, 69):
            further.begin(*cache, 0, np.full(samples, at), at + 1)
            for call in calls:
                call()
            found.append(out.copy())
            held = [each[:, :, max(0, at - 39) : at + 1].astype(float) for each in cache]
            k, v = (each.repeat(2, 1) for each in held)
            scores = 0.25 * q @ k.swapaxes(2, 3)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            wanted = weights @ v / weights.sum(-1, keepdims=True)
            np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[:2], found[2:])


def test_calls_that_may_fail_are_in_no_job(ops):
    """A job does not tell the results of its calls; and a call goes without the collector."""
    x = np.ones((2, 320), np.float32)
    weight, y = draw(320, 512), np.empty((2, 512), np.float32)
    ops.few = True
    plan = ops.runtime().plan(few._few_product, (2, 320, 512, False), 0)
    calls = plan.bound([each.ctypes.data for each in (weight, y, x)], 0).after(0)
    jobs = Threads((0,)).jobs()
    assert calls_of_c.joined(calls, jobs)[-1].stages is not None
    failing = native(lambda *_: 0, failed=lambda status: None)
    assert isinstance(calls_of_c.joined([*calls, failing], jobs)[0], calls_of_c.Chain)
    seen = weakref.ref(plan.bound([0, 0, 0], 0).after(0)[0])
    assert seen() is None
