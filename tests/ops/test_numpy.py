"""NumPy's kernels inside: windows, blocks, lanes, tiles, scratch memory and memory order."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from singanet.ops import NumpyOps, threads
from singanet.ops import numpy_ops as ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.numpy import linear, normalise, pointwise, pool, windows
from singanet.ops.numpy.conv import depthwise, im2col, winograd
from singanet.ops.numpy.conv.im2col import laid_out, rows_product, summed_product
from singanet.ops.numpy.windows import blocks
from singanet.ops.window import Window
from singanet.types import RowSparse
from tests.ops.kernel_rows import GEOMETRIES, NONE, PLAIN, SAME, convolved

SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))
WINDOWS = st.builds(
    Window,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    pads=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 3)),
)


def host(array):
    return array.get() if hasattr(array, "get") else array


def channels_last(array):
    return array.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)


# -- Windows, bands and blocks --------------------------------------------------------------------


def starts(window, axis, size):
    """The first pixel of every window that fits, counted one by one."""
    extent = window.dilation[axis] * (window.kernel[axis] - 1) + 1
    before, after = window.pads[axis]
    return list(range(-before, size + after - extent + 1, window.stride[axis]))


@given(window=WINDOWS, size=SIDES)
def test_out_size_counts_the_windows_that_fit(window, size):
    # If no window fits the formula may go below zero, which the layers refuse.
    found = [max(side, 0) for side in window._out_size(*size)]
    assert found == [len(starts(window, axis, size[axis])) for axis in (0, 1)]


@given(
    n=st.integers(0, 9),
    height=st.integers(1, 9),
    row=st.integers(1, 50),
    scratch=st.integers(1, 200),
)
def test_blocks_cover_everything_once_within_the_scratch(n, height, row, scratch):
    seen = np.zeros((n, height), int)
    for samples, rows in blocks(n, height, row, scratch):
        block = seen[samples, rows]
        # A single row is the minimum.
        assert 0 < block.size * row <= max(scratch, row)
        block += 1
    assert (seen == 1).all()


def test_scratch_has_a_default_a_usual_size_and_a_least(monkeypatch):
    monkeypatch.setattr(windows, "SCRATCH_BYTES", 1000)
    assert windows.scratch_bytes(ops) == 1000
    assert windows.scratch_bytes(ops, usual=70) == 70
    assert windows.scratch_bytes(ops, least=5000) == 5000
    assert [s for s, _ in blocks(3, 1, 400)] == [slice(0, 2), slice(2, 3)]


# -- Lanes and products ---------------------------------------------------------------------------


def test_parts_cover_every_sample_once():
    for samples in range(9):
        for count in range(1, 6):
            every = [k for part in linear.parts(samples, count) for k in range(samples)[part]]
            assert every == list(range(samples))


def test_little_work_is_one_lane(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(linear, "LEAST", 1)
        patch.setattr(linear, "default_threads", lambda: 4)
        assert [ops.lane_count(*work) for work in ((8, 1), (3, 1), (8, 0))] == [4, 3, 1]
        assert list(ops.lanes(8, 0)) == [slice(0, 8)]
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    threads.set_threads(1)
    assert ops.lane_count(8, linear.LEAST) == ops.lane_count(8, linear.LEAST - 1) == 1


def test_column_sums_have_the_same_bits_in_any_memory_order(rng):
    x = rng.standard_normal((33, 20)).astype(np.float32)
    padded = np.zeros((33, 25), np.float32)
    padded[:, :20] = x
    for other in (np.asfortranarray(x), padded[:, :20], x[::-1].copy()[::-1]):
        np.testing.assert_array_equal(ops.column_sums(other), ops.column_sums(x))


def operands(groups, m, k, n):
    rng = np.random.default_rng(m + k + n)
    shapes = (groups, m, k), (groups, k, n), (groups, m, n)
    return (rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def expect_products(rows, kernels, others, out=None):
    """Check both products against sums in float64, within half of the error of kernels."""
    groups, m, k = rows.shape
    out = np.empty((groups, m, kernels.shape[2]), np.float32) if out is None else out
    rows_product(ops, rows, laid_out(ops, kernels, m), out)
    sums = summed_product(ops, rows, others)
    wide, across = rows.astype(float), others.astype(float).transpose(0, 2, 1)
    for got, want, terms in ((out, wide @ kernels.astype(float), k), (sums, across @ wide, m)):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=5e-6 * np.sqrt(terms))


# rows, values a row, columns: whole, in pieces with a rest, in parts of the columns, prime
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (100, 7, 5), (4096, 144, 16), (4099, 144, 16), (1000, 96, 192), (700, 640, 64),
     (501, 127, 131), (90, 2304, 256)],
)  # fmt: skip
def test_products_of_many_rows(m, k, n, groups):
    expect_products(*operands(groups, m, k, n))


@pytest.mark.parametrize("small", [1, 50, 3000, 10**9])
def test_products_of_any_limit_and_memory_order(small, monkeypatch):
    monkeypatch.setattr(im2col, "_SMALL", small)
    rows, kernels, others = operands(2, 333, 50, 16)
    expect_products(rows, kernels, others)
    room = np.full((333, 3, 2, 16), 7.0, np.float32)
    apart = np.zeros((2, 333, 32), np.float32)[:, :, ::2]
    apart[...] = others
    by_column, transposed = (a.swapaxes(1, 2).copy().swapaxes(1, 2) for a in (rows, kernels))
    expect_products(by_column, transposed, apart, room[:, 1].transpose(1, 0, 2))
    assert (room[:, [0, 2]] == 7.0).all()


def test_a_product_of_many_rows_is_a_stack_of_small_ones(monkeypatch):
    """OpenBLAS copies operands of larger products, which is slower."""
    seen, matmul = [], np.matmul

    def counted(a, b, **keywords):
        seen.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
        return matmul(a, b, **keywords)

    monkeypatch.setattr(np, "matmul", counted)
    for m, k, n in ((4099, 144, 16), (700, 640, 64), (5000, 256, 256)):
        rows, kernels, others = operands(1, m, k, n)
        rows_product(ops, rows, laid_out(ops, kernels, m), np.empty((1, m, n), np.float32))
        summed_product(ops, rows[:, :600], others[:, :600])
    assert max(seen) <= im2col._SMALL
    assert len(seen) <= 12


@given(size=st.integers(1, 5000), most=st.integers(1, 700), near=st.sampled_from([48, 64]))
def test_pieces_and_parts(size, most, near):
    piece, part = im2col._piece(size, most), im2col._part(size, near)
    # At worst half of the limit, unless the rows are fewer.
    assert min(size, most) / 2 <= piece <= min(size, most)
    assert size % part == 0
    assert part == size or abs(part - near) <= near // 3


# -- Convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [w for w in GEOMETRIES if 1 in w.stride or 1 in w.dilation])
@pytest.mark.parametrize("groups", [1, 2])
def test_gathering_and_scattering_agree(window, groups, rng):
    """The kernel calls only one of them for given shapes."""
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    if not all(1 in axis for axis in axes):
        pytest.skip("strided and dilated along one axis: only scattering serves")
    window = replace(window, groups=groups)
    weight = rng.standard_normal((6, 4 // groups, *window.kernel))
    dy = rng.standard_normal((3, 6, *window._out_size(7, 6)))
    given_ = ops, dy, weight, (3, 4, 7, 6), window
    wanted = im2col.scatter(*given_)
    np.testing.assert_allclose(depthwise.gather(*given_), wanted, rtol=1e-10, atol=1e-10)


# Each as (groups, input channels a group, kernels a group) and the number of groups joined.
@pytest.mark.parametrize(
    ("groups", "channels", "kernels", "expected"),
    [(32, 4, 4, 4), (32, 2, 2, 8), (32, 2, 8, 2), (8, 8, 8, 2), (4, 16, 16, 1), (4, 2, 2, 4),
     (7, 4, 4, 1), (2, 3, 20, 1)],
)  # fmt: skip
def test_how_many_groups_make_one(groups, channels, kernels, expected):
    assert im2col.joined(groups, (groups * kernels, channels, 3, 3)) == expected


def test_a_nan_stays_in_its_group_if_groups_are_large():
    x, weight = np.ones((2, 40, 6, 6), np.float32), np.ones((40, 20, 3, 3), np.float32)
    x[:, 0] = np.nan
    y = ops.conv2d(x, weight, None, replace(PLAIN, groups=2))
    assert np.isnan(y[:, :20]).all(axis=(0, 1)).any()
    assert not np.isnan(y[:, 20:]).any()


@pytest.mark.parametrize(
    "other",
    [{"stride": (2, 1)}, {"pads": ((2, 2), (2, 2)), "dilation": (2, 2)}, {"groups": 8},
     {"kernel": (1, 1), "pads": NONE}],
)  # fmt: skip
def test_narrow_convolutions_are_plain_ones_of_few_kernels(other):
    x, weight = (2, 16, 32, 32), (16, 16, 3, 3)
    assert depthwise.is_narrow(ops, x, weight, PLAIN)
    window = replace(PLAIN, **other)
    weight = (16, 16 // window.groups, *window.kernel)
    assert not depthwise.is_narrow(ops, x, weight, window)


TILES = st.sampled_from([3, 5]).flatmap(
    lambda taps: st.builds(
        Window,
        kernel=st.just((taps, taps)),
        stride=st.just((1, 1)),
        pads=st.tuples(*[st.tuples(*[st.integers(0, taps - 1)] * 2)] * 2),
    )
)


@settings(max_examples=40, deadline=None)
@given(TILES, *[st.integers(1, 5)] * 3, *[st.integers(5, 11)] * 2, st.sampled_from([1, 2, 3]))
def test_convolutions_by_tiles(window, n, c, f, height, width, cores):
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((n, c, height, width)),
        rng.standard_normal((f, c, *window.kernel)),
    )
    bias = rng.standard_normal(f)
    wanted = convolved(x, weight, bias, window)
    dy = rng.standard_normal(wanted.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LEAST", 1)
        patch.setattr(linear, "default_threads", lambda: cores)
        # A block of one sample.
        patch.setattr(winograd, "_MOST_BYTES", 1)
        y = winograd.conv2d(ops, x, weight, bias, window)
        dx = winograd.data(ops, dy, weight, x.shape, window)
        dw = winograd.weights(ops, x, dy, weight.shape, window)
    np.testing.assert_allclose(y, wanted, atol=1e-12)
    # The gradients of a bilinear function, by its values.
    v, u = rng.standard_normal(x.shape), rng.standard_normal(weight.shape)
    for got, made in (((dx * v).sum(), convolved(v, weight, None, window)),
                      ((dw * u).sum(), convolved(x, u, None, window))):  # fmt: skip
        np.testing.assert_allclose(got, (dy * made).sum(), atol=1e-9)


@pytest.mark.parametrize("taps", [3, 5])
def test_rounding_of_tiles_in_float32(rng, taps):
    x = rng.standard_normal((2, 64, 16, 16)).astype(np.float32)
    weight = rng.standard_normal((64, 64, taps, taps)).astype(np.float32)
    window = Window((taps, taps), (1, 1), ((taps // 2, taps // 2),) * 2)
    wanted = convolved(x.astype(float), weight.astype(float), None, window)
    y = winograd.conv2d(ops, x, weight, None, window)
    assert y.dtype == np.float32
    assert np.abs(y - wanted).max() < 1e-5 * np.abs(wanted).max()


FIVE = Window((5, 5), (1, 1), ((2, 2), (2, 2)))


@pytest.mark.parametrize(
    ("channels", "kernels", "size", "samples", "window", "expected"),
    [
        (64, 64, 28, 8, PLAIN, True),
        (16, 16, 28, 8, PLAIN, False),
        (512, 512, 2, 32, PLAIN, False),
        (64, 64, 28, 8, replace(PLAIN, stride=(2, 2)), False),
        (64, 64, 28, 8, Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)), False),
        (64, 64, 28, 8, replace(PLAIN, pads=((1, 3), (1, 1))), False),
        (64, 64, 28, 8, FIVE, True),
        (3, 64, 28, 8, FIVE, False),
        (64, 64, 28, 8, Window((5, 3), (1, 1), ((2, 2), (1, 1))), False),
        (64, 64, 28, 8, Window((7, 7), (1, 1), ((3, 3), (3, 3))), False),
        (64, 64, 28, 8, replace(PLAIN, groups=2), False),
        (64, 64, 28, 0, PLAIN, False),
    ],
)
def test_if_tiles_pay(channels, kernels, size, samples, window, expected):
    x, weight = (samples, channels, size, size), (kernels, channels // window.groups)
    assert winograd.pays(ops, x, (*weight, *window.kernel), window) is expected


# -- Scratch memory and memory order --------------------------------------------------------------


def peak_beyond_result(call):
    """Bytes that a call allocates at most besides its results."""
    tracemalloc.start()
    try:
        made = call()
        made = made if isinstance(made, tuple) else (made,)
        results = sum(each.nbytes for each in made)
        return tracemalloc.get_traced_memory()[1] - results
    finally:
        tracemalloc.stop()


def test_scratch_of_activations_and_pools_does_not_grow_with_the_batch(rng):
    x = rng.standard_normal((64, 64, 256)).astype(np.float32)
    for mode in ACTIVATIONS:
        kept = x if ACTIVATIONS[mode] == "x" else ops.activation(mode, x)
        # Eight blocks at most; a whole array has 4 MiB.
        bound = 8 * pointwise._BLOCK_BYTES
        assert peak_beyond_result(lambda: ops.activation(mode, x)) < bound  # noqa: B023
        assert peak_beyond_result(lambda: ops.activation_backward(mode, x, kept)) < bound  # noqa: B023
    window = Window((3, 3), (2, 2), SAME)
    x = rng.standard_normal((64, 16, 24, 24)).astype(np.float32)
    y, where = ops.max_pool(x, window, True)
    for call in (lambda: ops.max_pool(x, window, True), lambda: ops.avg_pool(x, window),
                 lambda: ops.max_pool_backward(y, where, x.shape, window),
                 lambda: ops.avg_pool_backward(y, x.shape, window)):  # fmt: skip
        # The batch has 2.4 MB; a block of it half a MiB.
        assert peak_beyond_result(call) < 3 * pool._BLOCK_BYTES


@pytest.mark.parametrize("layout", [np.copy, channels_last])
@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "size", "groups"),
    [(16, 16, 1, 24, 1), (16, 16, 2, 24, 1), (3, 64, 2, 32, 1), (20, 50, 1, 12, 1),
     (32, 8, 1, 40, 1), (16, 16, 1, 24, 4), (16, 32, 1, 24, 16)],
)  # fmt: skip
def test_scratch_of_convolutions_does_not_grow_with_the_batch(
    channels, outputs, stride, size, groups, layout, monkeypatch, rng
):
    # So little that four samples fill it; each lane has as much, and sums of its own.
    allowance = 1 << 16
    monkeypatch.setattr(windows, "SCRATCH_BYTES", allowance)
    monkeypatch.setattr(linear, "default_threads", lambda: 1)
    window = Window((3, 3), (stride, stride), SAME if size > 12 else NONE, groups=groups)
    weight = rng.standard_normal((outputs, channels // groups, 3, 3)).astype(np.float32)
    peaks = {}
    for n in (4, 16):
        x, dy = (layout(rng.standard_normal((n, c, *sides)).astype(np.float32)) for c, sides in
                 ((channels, (size, size)), (outputs, window._out_size(size, size))))  # fmt: skip
        # The least of two: now and then the interpreter enlarges a table of its own meanwhile.
        peaks[n] = [
            min(peak_beyond_result(call) for _ in range(2))
            for call in (
                lambda: ops.conv2d(x, weight, None, window),  # noqa: B023
                lambda: ops.conv2d_backward_weights(x, dy, weight.shape, window),  # noqa: B023
                lambda: ops.conv2d_backward_data(dy, weight, x.shape, window),  # noqa: B023
            )
        ]
    # Columns fill one allowance, or take a row of the outputs if that is more; padded rows,
    # products and the phases of a stride another. The weight is laid out anew; views take some KB.
    row = size * 9 * max(channels, outputs) * 4
    bound = 3 * max(allowance, row) + 4 * weight.nbytes + (1 << 15)
    for few, many in zip(peaks[4], peaks[16], strict=True):
        assert many < min(bound, 1.1 * few + 16384), peaks


def test_channels_last_memory_stays_so(rng):
    x, other = (rng.standard_normal((20, 30, 30, 16)).astype(np.float32).transpose(0, 3, 1, 2)
                for _ in range(2))  # fmt: skip
    row = other[:1, :, :1, :1]
    found = [ops.combine(mode, arrays, x.shape) for mode in ("add", "multiply", "maximum")
             for arrays in ([x, other], [x, row], [row, x], [x, other, row])]  # fmt: skip
    found += [ops.pad(x, pads, -1.5) for pads in (((0, 0), (1, 2), (0, 0), (0, 0)),
                                                  ((0, 0), (0, 0), (2, 1), (0, 3)))]  # fmt: skip
    for mode in ACTIVATIONS:
        y = ops.activation(mode, x)
        found += [y, ops.activation_backward(mode, x, x if ACTIVATIONS[mode] == "x" else y)]
    assert all(each.transpose(0, 2, 3, 1).flags.c_contiguous for each in found)
    assert ops.pad(np.ones((2, 3)), ((1, 0), (0, 2)), 0.0).flags.c_contiguous
    assert np.shares_memory(ops.channels_last(x), x)
    assert ops.channels_last(np.ascontiguousarray(x)).flags.c_contiguous


# -- Single kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [("exp", math.exp), ("log", math.log), ("log1p", math.log1p), ("sqrt", math.sqrt),
     ("square", lambda v: v * v), ("tanh", math.tanh), ("absolute", abs),
     ("negative", lambda v: -v), ("sign", lambda v: 1.0), ("add", lambda a, b: a + b),
     ("subtract", lambda a, b: a - b), ("multiply", lambda a, b: a * b),
     ("divide", lambda a, b: a / b), ("maximum", max), ("minimum", min),
     ("power", lambda a, b: a**b), ("greater", lambda a, b: a > b)],
)  # fmt: skip
def test_element_by_element(name, function, rng):
    two = name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "power",
        "greater",
    )
    given_ = rng.uniform(0.1, 3.0, (1 + two, 12))
    want = np.array([function(*values) for values in given_.T.tolist()])
    np.testing.assert_allclose(getattr(ops, name)(*given_), want, rtol=1e-14)
    out = np.empty_like(want)
    assert getattr(ops, name)(*given_, out=out) is out
    np.testing.assert_allclose(out, want, rtol=1e-14)
    if two and name != "greater":
        assert getattr(ops, name)(given_[0].astype(np.float32), 2.0).dtype == np.float32


def test_reductions_copies_and_new_arrays(rng):
    x = rng.standard_normal((3, 4))
    np.testing.assert_allclose(ops.sum(x, axis=0), [sum(column) for column in x.T], rtol=1e-12)
    np.testing.assert_allclose(ops.mean(x), sum(x.flat) / 12, rtol=1e-12)
    target = np.zeros((3, 4))
    ops.copyto(target, x)
    np.testing.assert_array_equal(target, x)
    np.testing.assert_array_equal(ops.where(x > 0, x, 0.0), np.maximum(x, 0.0))
    for dtype in (np.float32, np.float64):
        made = ops.empty((3, 4), x.astype(dtype)), ops.zeros((3, 4), x.astype(dtype))
        assert {(each.shape, each.dtype.type) for each in made} == {((3, 4), dtype)}
        assert not made[1].any()
    assert ops.sum_to(x, x.shape) is x
    parts = [x, x + 1]
    assert not any(np.shares_memory(part, ops.add_all(parts)) for part in parts)


def test_the_index_of_the_largest_selects_its_gradient():
    one, two = np.array([[1.0, 5.0, 2.0]]), np.array([[4.0, 5.0, 0.0]])
    where = ops.first_equal(np.maximum(one, two), [one, two])
    assert where.tolist() == [[1, 0, 0]]
    slopes = np.array([[10.0, 20.0, 30.0]])
    assert ops.select(slopes, where, 0).tolist() == [[0.0, 20.0, 30.0]]
    assert ops.select(slopes, where, 1).tolist() == [[10.0, 0.0, 0.0]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-11), (np.float32, 3e-6)])
def test_relative_accuracy_of_the_normal_tail(dtype, tolerance):
    x = np.linspace(-5.0, 5.0, 2001, dtype=dtype)
    want = [0.5 * math.erfc(abs(float(value)) / math.sqrt(2.0)) for value in x]
    got = pointwise.normal_tail(np, x)
    assert got.dtype == dtype
    # The square of x/√2 reaches 12.5, which multiplies the error of float32 as much.
    np.testing.assert_allclose(got, want, rtol=tolerance)


@pytest.mark.parametrize("shape", [(1, 9000), (3, 5000), (1, 16, 30, 30), (40, 16, 9, 9)])
def test_relu_of_many_elements(shape, rng):
    x, dy = rng.standard_normal((2, *shape)).astype(np.float32)
    x.flat[:3] = np.nan, np.inf, -np.inf
    want = np.where(x < 0, np.float32(0), x)
    y = ops.activation("relu", x)
    np.testing.assert_array_equal(y, want)
    dx = ops.activation_backward("relu", dy, y)
    np.testing.assert_array_equal(dx, np.where(want > 0, dy, 0))
    few = x[:1, :7] if len(shape) == 2 else x[:2, :1]
    part = ops.activation_backward("relu", dy[: len(few), : few.shape[1]], few)
    np.testing.assert_array_equal(part, dx[: len(few), : few.shape[1]])


@given(
    x=arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5),
                    elements=st.floats(-1e6, 1e6)),
    axis=st.integers(-2, 1),
)  # fmt: skip
def test_softmax_is_a_distribution_that_a_shift_does_not_change(x, axis):
    y = ops.softmax(x, axis)
    np.testing.assert_allclose(y.sum(axis=axis), 1.0, rtol=1e-12)
    assert (y >= 0).all()
    np.testing.assert_allclose(y, ops.softmax(x + 3.0, axis), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("block", [1, 1 << 19])
def test_a_far_sample_does_not_spoil_the_statistics_of_others(block, monkeypatch, rng):
    """Blocks have means of their own in float32; the first is far from the rest."""
    monkeypatch.setattr(normalise, "_BLOCK_BYTES", block)
    x = rng.standard_normal((20, 2, 8, 8)).astype(np.float32)
    x[0] += 1e4
    mean, var = normalise.batch_norm_statistics(ops, x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var((0, 2, 3)), rtol=1e-5)
    assert mean.dtype == var.dtype == np.float32


def test_the_position_of_a_maximum_is_a_byte_while_it_fits():
    x = np.zeros((1, 1, 20, 20), np.float32)
    for kernel, dtype in [(3, np.uint8), (16, np.uint8), (17, np.uint16)]:
        window = Window((kernel, kernel), (1, 1), NONE)
        assert ops.max_pool(x, window, True)[1].dtype == dtype
        assert ops.max_pool(x, window, False)[1] is None
    y, _ = ops.max_pool(
        np.array([[[[1.0, np.nan], [3.0, 2.0]]]]), Window((2, 2), (1, 1), NONE), True
    )
    assert np.isnan(y.item())


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 120),
    table=st.integers(1, 40),
    shape=st.sampled_from([(), (1,), (3,), (31,), (32,), (70,), (5, 9)]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    skew=st.booleans(),
    seed=st.integers(0, 50),
)
def test_rows_of_a_table(count, table, shape, dtype, skew, seed):
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, table, count)
    if skew:  # long runs beside single ones
        indices = np.where(rng.random(count) < 0.6, 0, indices)
    rows = rng.standard_normal((count, *shape)).astype(dtype)
    before = rows.copy()
    found, sums = ops.sum_rows(indices, rows)
    whole = np.zeros((table, *shape))
    np.add.at(whole, indices, rows.astype(float))
    np.testing.assert_array_equal(found, np.unique(indices))
    assert sums.dtype == dtype
    near = {"rtol": 5e-2, "atol": 5e-2} if dtype == np.float16 else {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(sums, whole[found], **near)
    np.testing.assert_array_equal(rows, before)
    both = RowSparse(found, sums), RowSparse(indices[:1], rows[:1])
    np.add.at(whole, indices[:1], rows[:1].astype(float))
    added, total = ops.add_rows(*both)
    np.testing.assert_array_equal(added, np.unique(indices))
    np.testing.assert_allclose(total, whole[added], **near)
    dense = np.zeros((table, *shape), dtype)
    made = ops.add_to_rows(dense, added, total)
    np.testing.assert_array_equal(ops.gather_rows(made, added), total)
    assert not dense.any()
    assert ops.add_to_rows(dense, added, total, out=dense) is dense
    np.testing.assert_array_equal(dense, made)
    twice = ops.map_rows(lambda part, k: RowSparse(part.indices, k * part.rows), added, total, 2)
    np.testing.assert_array_equal(twice[1], 2 * total)
    assert ops.of_rows(lambda part: np.sum(part, dtype="f8"), added, total) == total.sum(dtype="f8")


@pytest.mark.parametrize("width", [4, 64])
def test_infinite_and_missing_numbers_stay_in_their_row(width):
    indices = np.repeat([2, 5, 7], [40, 3, 1])
    rows = np.ones((44, width), np.float32)
    rows[40], rows[43] = np.inf, np.nan
    _, sums = ops.sum_rows(indices, rows)
    np.testing.assert_array_equal(sums[0], 40.0)
    assert np.isinf(sums[1]).all()
    assert np.isnan(sums[2]).all()


def test_functions_of_the_caller_see_arrays():
    def fill(indices, out):
        out[...] = indices[:, None]

    filled = ops.look_up(fill, np.array([3, 1]), (2, 4), np.float32)
    assert filled.dtype == np.float32
    np.testing.assert_array_equal(filled, [[3] * 4, [1] * 4])
    seen = []
    ops.check(seen.append, filled)
    assert seen[0] is filled


def test_layouts_of_sequences(xp, rng):
    there, x = NumpyOps(xp), rng.standard_normal((3, 4, 2))
    skips = np.arange(12).reshape(4, 3, 1) % 5 == 0
    given_ = xp.asarray(x)
    rows = there.time_major(given_, xp.asarray(skips))
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(host(rows), np.where(skips, 0, x.transpose(1, 0, 2)))
    np.testing.assert_array_equal(host(given_), x)
    np.testing.assert_array_equal(host(there.batch_major(rows))[0], host(rows)[:, 0])
    plain = there.time_major(given_)
    assert plain.flags.c_contiguous
    np.testing.assert_array_equal(host(plain), x.transpose(1, 0, 2))
    a, b = (xp.asarray(rng.standard_normal((3, 2, 4))) for _ in range(2))
    assert there.side_by_side([a], None) is a
    skips = np.array([[[0], [0]], [[0], [1]], [[1], [1]]], bool)
    joined = host(there.side_by_side([a, b], xp.asarray(skips)))
    wanted = np.where(skips, 0, np.concatenate([host(a), host(b)], axis=2))
    np.testing.assert_array_equal(joined, wanted)
    assert isinstance(there.host(xp.arange(3)), np.ndarray)


def test_sequences_are_copied_only_if_they_must_be(rng):
    rows = ops.time_major(rng.standard_normal((3, 4, 2)))
    assert np.shares_memory(ops.time_major(ops.batch_major(rows)), rows)
    # Skipped steps are cleared, so the caller's memory must not be used.
    cleared = ops.time_major(rows.transpose(1, 0, 2), np.zeros((4, 3, 1), bool))
    assert not np.shares_memory(cleared, rows)
