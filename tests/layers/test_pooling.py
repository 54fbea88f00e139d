"""Max and average pooling over windows, to so many positions, and over all."""

from functools import partial
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import layers
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import AvgPooling2D, GlobalAvgPooling2D, MaxPooling1D, MaxPooling2D
from tests.kit.layers import beside_torch, case, cases, expect_refused, refuses, run

IMAGE = (2, 7, 6)


def pooled(x, function, kernel=3, stride=2, pads=1):
    """By a loop over positions: ``function`` of the part of each window that is on ``x``."""
    rank = x.ndim - 2
    kernel, stride, pads = (v if isinstance(v, tuple) else (v,) * rank
                            for v in (kernel, stride, pads))  # fmt: skip
    pads = [pad if isinstance(pad, tuple) else (pad, pad) for pad in pads]
    axes = list(zip(x.shape[2:], kernel, stride, pads, strict=True))
    y = np.empty((*x.shape[:2], *((n + a + b - k) // s + 1 for n, k, s, (a, b) in axes)))
    for at in np.ndindex(*y.shape[2:]):
        starts = [i * s - a for i, (_, _, s, (a, _)) in zip(at, axes, strict=True)]
        window = (slice(max(i, 0), i + k) for i, (_, k, _, _) in zip(starts, axes, strict=True))
        y[(..., *at)] = function(x[(..., *window)], axis=tuple(range(2, x.ndim)))
    return y


def apart(rng, shape):
    """Values without a tie in reach of differences, below zero, so that no padding wins."""
    return rng.permutation(int(np.prod(shape))).reshape(shape) / 10.0 - 1000.0


def pooling(kind, shape, pads, kernel=3, stride=None, counted=0, **given):
    """A layer; ``pads`` are what ``given`` must mean, ``counted`` are zeros that count."""
    rank = max(len(shape) - 1, 1)
    more = {} if kernel == 3 else {"kernel": kernel}
    more |= {} if stride is None else {"stride": stride}
    of = {"kernel": kernel, "stride": kernel if stride is None else stride}

    def expected(p, x):
        x = x[:, None] if len(shape) == 1 else x
        y = (pooled(np.pad(x, counted), np.mean, pads=0, **of) if counted else
             pooled(x, np.max if kind == "Max" else np.mean, pads=pads, **of))  # fmt: skip
        return y[:, 0] if len(shape) == 1 else y

    make = partial(getattr(layers, f"{kind}Pooling{rank}D"), "pool", **more, **given)
    return case(make, shape, expected, apart if kind == "Max" else None)


WINDOWS = {
    "defaults of SINGA": (IMAGE, 1, {"stride": 2}),
    "stride is the kernel": (IMAGE, (1, (0, 1)), {"kernel": (3, 2)}),
    "uneven pad": (IMAGE, ((2, 0), 1), {"pad": ((2, 0), 1), "stride": 2}),
    "stride 1": (IMAGE, 1, {"stride": 1}),
    "disjoint": (IMAGE, 0, {"kernel": 2, "border_mode": "valid"}),
    "gaps": ((2, 9, 8), 0, {"kernel": (2, 1), "stride": 3, "border_mode": "valid"}),
    "even kernel, same": (IMAGE, ((0, 1), (1, 2)), {"kernel": (2, 4), "stride": (1, 3)}),
    "even kernel, turned": (IMAGE, ((1, 2), (0, 1)), {"kernel": (4, 2), "stride": (3, 1)}),
    "pad overrides border_mode": (IMAGE, (1, 0), {"kernel": (3, 2), "pad": (1, 0),
                                                  "stride": (2, 1), "border_mode": "same"}),
    "whole image": (IMAGE, 0, {"kernel": (7, 6), "stride": 1, "border_mode": "valid"}),
    "1D": ((3, 8), 1, {"stride": 2}),
    "1D of SINGA's shape": ((9,), 2, {"kernel": 4, "stride": 3, "pad": 2}),
    "3D": ((2, 4, 3, 5), ((1, 0), 0, 0), {"kernel": (2, 3, 1), "stride": (1, 2, 2),
                                          "pad": ((1, 0), 0, 0)}),
}  # fmt: skip
EDGES = {"pad": ((1, 0), (2, 1)), "count_include_pad": True, "stride": 2}


def parts(size, out):
    """Position by position, by the formula as it is written."""
    return [slice(floor(i * size / out), ceil((i + 1) * size / out)) for i in range(out)]


def over_all(kind, shape, **given):
    def expected(p, x):
        axes = tuple(range(2, x.ndim))
        return (np.max if kind == "Max" else np.mean)(x, axis=axes, **given)

    layer = getattr(layers, f"Global{kind}Pooling{len(shape) - 1}D")
    return case(lambda: layer("pool", **given), shape, expected)


CASES = {
    **{f"{kind}, {name}": pooling(kind, shape, pads, **given)
       for name, (shape, pads, given) in WINDOWS.items() for kind in ("Max", "Avg")},
    "Avg, pad counted": pooling("Avg", IMAGE, None,
                                counted=((0, 0), (0, 0), (1, 0), (2, 1)), **EDGES),
    "Avg 3D, pad counted": pooling("Avg", (2, 4, 3, 5), None, 2, pad=(0, 1, 0),
                                   counted=((0, 0), (0, 0), (0, 0), (1, 1), (0, 0)),
                                   count_include_pad=True),
    "adaptive Avg": case(
        lambda: layers.AdaptiveAvgPooling2D("pool", (3, 2)), (2, 5, 4),
        lambda p, x: np.stack([[x[:, :, a, b].mean((2, 3)) for b in parts(4, 2)]
                               for a in parts(5, 3)]).transpose(2, 3, 0, 1),
    ),
    "adaptive Max": case(
        lambda: layers.AdaptiveMaxPooling2D("pool", (3, None)), (2, 5, 4),
        lambda p, x: np.stack([x[:, :, a].max(2) for a in parts(5, 3)], axis=2),
    ),
    "adaptive, more positions than there are": case(
        lambda: layers.AdaptiveAvgPooling1D("pool", 5), (2, 3),
        lambda p, x: np.stack([x[:, :, a].mean(2) for a in parts(3, 5)], axis=2),
    ),
    **{f"global {kind} of {shape}": over_all(kind, shape)
       for kind, shapes in (("Avg", [(3, 7), (3, 4, 5), (3, 1, 1), (3, 2, 4, 3)]),
                            ("Max", [(3, 7), (3, 4, 5)])) for shape in shapes},
    "global Avg keeps axes": over_all("Avg", (3, 2, 4), keepdims=True),
    "global Max keeps axes": over_all("Max", (3, 2, 4, 3), keepdims=True),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


# -- which gets the gradient, and exact numbers ---------------------------------------------------


def test_of_equal_values_the_first_in_row_major_order_gets_the_whole_gradient():
    x = np.array([[[[1, 7, 7], [7, 7, 0], [2, 7, 7]]]], np.float32)
    dy = np.array([[[[1, 10], [100, 1000]]]], np.float32)
    y, dx, _ = run(MaxPooling2D("pool", 2, 1, "valid"), x, dy)
    assert (y == 7).all()
    np.testing.assert_array_equal(dx[0, 0], [[0, 11, 0], [100, 1000, 0], [0, 0, 0]])
    x = np.array([[[[1.0, 5], [5, 5]]]], np.float32)
    y, dx, _ = run(layers.GlobalMaxPooling2D("pool"), x, np.array([[7.0]], np.float32))
    assert (y.tolist(), dx.tolist()) == ([[5.0]], [[[[0, 7], [0, 0]]]])
    x = np.array([[[[1.0, 2]]]], np.float32)
    _, dx, _ = run(layers.GlobalMaxPooling2D("pool"), x, np.array([[np.inf]], np.float32))
    assert dx.tolist() == [[[[0, np.inf]]]]


def test_a_constant_image_passes_on_every_gradient_once():
    x, dy = np.full((2, 3, 5, 5), -2.0), np.random.default_rng(0).standard_normal((2, 3, 3, 3))
    y, dx, _ = run(MaxPooling2D("pool", 3, 2), x, dy)
    assert (y == -2.0).all()
    np.testing.assert_allclose(dx.sum(axis=(2, 3)), dy.sum(axis=(2, 3)), rtol=1e-12)


def test_a_window_larger_than_a_byte_counts():
    x = np.zeros((1, 1, 20, 20))
    x[0, 0, 19, 18] = 1.0
    _, dx, _ = run(MaxPooling2D("pool", 20, 1, "valid"), x, np.full((1, 1, 1, 1), 3.0))
    assert dx[0, 0, 19, 18] == 3.0
    assert np.count_nonzero(dx) == 1


def test_means_by_hand():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    dy = np.array([[[[4, 8], [12, 16]]]], np.float32)
    y, dx, _ = run(AvgPooling2D("pool", 2, 1, "valid"), x, dy)
    np.testing.assert_array_equal(y[0, 0], [[3, 4], [6, 7]])
    np.testing.assert_array_equal(dx[0, 0], [[1, 3, 2], [4, 10, 6], [3, 7, 4]])
    # Padding is not counted, as by cuDNN in SINGA; its CPU divided by the padding as well.
    y, dx, _ = run(AvgPooling2D("pool", 3, 2), np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(y, np.ones((1, 1, 2, 2)))
    np.testing.assert_allclose(dx.sum(), 4.0, rtol=1e-12)
    # SINGA took a third of every second element.
    y = run(layers.AvgPooling1D("pool", 3, 2, border_mode="valid"), np.array([[1.0, 2, 6, 4, 2]]))
    assert y.tolist() == [[3, 4]]


def test_float32_stays_exact_over_many_positions():
    y = run(GlobalAvgPooling2D("pool"), np.full((1, 1, 1000, 1000), 0.1, np.float32))
    assert y.item() == pytest.approx(np.float32(0.1), rel=1e-6)


# -- peers ----------------------------------------------------------------------------------------

IMAGES, VOLUMES = (4, 13, 11), (4, 6, 7, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kernel", "stride", "pad"),
                         [(3, 2, 1), (2, 2, 0), ((3, 2), (1, 2), (1, 0)), (5, 3, 2)])  # fmt: skip
@pytest.mark.parametrize("kind", ["Max", "Avg"])  # fmt: skip
def test_agrees_with_pytorch(kind, kernel, stride, pad, dtype):
    more = {} if kind == "Max" else {"count_include_pad": False}
    make = partial(getattr(layers, f"{kind}Pooling2D"), "pool", kernel, stride, pad=pad)
    beside_torch(make, IMAGES, lambda f, x, p: getattr(f, f"{kind.lower()}_pool2d")(
        x, kernel, stride, pad, **more), dtype)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_of_volumes_agrees_with_pytorch(dtype, ceil):
    window = {"pad": (0, 1, 1), "ceil_mode": ceil}
    beside_torch(partial(layers.MaxPooling3D, "pool", (2, 3, 2), 2, **window), VOLUMES,
                 lambda f, x, p: f.max_pool3d(x, (2, 3, 2), 2, (0, 1, 1), ceil_mode=ceil),
                 dtype)  # fmt: skip
    beside_torch(partial(layers.AvgPooling3D, "pool", (2, 3, 2), count_include_pad=True, **window),
                 VOLUMES, lambda f, x, p: f.avg_pool3d(x, (2, 3, 2), None, (0, 1, 1), ceil),
                 dtype)  # fmt: skip


@given(
    st.tuples(*[st.integers(1, 4)] * 2), st.one_of(st.none(), st.tuples(*[st.integers(1, 4)] * 2)),
    st.tuples(*[st.integers(0, 2)] * 2), st.integers(1, 2), *[st.booleans()] * 2
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_agrees_with_pytorch_whatever_the_window(kernel, stride, pad, dilation, ceil, count):
    pad = tuple(min(p, k // 2) for p, k in zip(pad, kernel, strict=True))
    more = {"dilation": dilation, "ceil_mode": ceil}
    for dtype in (np.float32, np.float64):
        beside_torch(partial(MaxPooling2D, "pool", kernel, stride, pad=pad, **more), (3, 9, 8),
                     lambda f, x, p: f.max_pool2d(x, kernel, stride, pad, **more),
                     dtype)  # fmt: skip
        beside_torch(partial(AvgPooling2D, "pool", kernel, stride, pad=pad, ceil_mode=ceil,
                             count_include_pad=count), (3, 9, 8),
                     lambda f, x, p: f.avg_pool2d(x, kernel, stride, pad, ceil, count),
                     dtype)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Avg", "Max"])
@pytest.mark.parametrize(("shape", "out"), [((3, 7), 3), ((3, 6, 9), (None, 4)), ((3, 6, 8), 1),
                                            ((2, 4, 5, 6), (2, 5, 4))])  # fmt: skip
def test_adaptive_pooling_agrees_with_pytorch(dtype, kind, shape, out):
    rank = len(shape) - 1
    x = np.random.default_rng(0).integers(0, 4, (2, *shape)) * 1.0  # of which many are equal
    beside_torch(partial(getattr(layers, f"Adaptive{kind}Pooling{rank}D"), "pool", out), shape,
                 lambda f, x, p: getattr(f, f"adaptive_{kind.lower()}_pool{rank}d")(x, out),
                 dtype, x=x)  # fmt: skip


# -- refusals -------------------------------------------------------------------------------------

BAD = [*[("pool_size", value) for value in (0, -2, "3")], ("strides", 0), ("strides", (1, 2, 3)),
       *[("padding", value) for value in (((1, 2, 3), 1), (0, -1), 0.5, "SAME", None)],
       ("data_format", "NHWC")]  # fmt: skip
CHANNELS, STEPS = r"\(channels, height, width\)", r"\(channels, length\)"
SMALL = "padding smaller than the kernel"
WRONG_SHAPES = [
    *[row for kind in (MaxPooling2D, AvgPooling2D) for row in (
        (kind("it"), CHANNELS, (8,)),
        (kind("it"), "one input", [(1, 8, 8)]),
        (kind("it", border_mode="valid"), "images at least as large", (1, 2, 8)),
        (kind("it", border_mode="valid"), "images at least as large", (1, 8, 2)),
        # Windows that would see nothing but padding have no maximum and no mean.
        (kind("it", kernel=2, pad=2), SMALL, (1, 8, 8)),
        (kind("it", pad=3), SMALL, (1, 8, 8)),
        (kind("it", kernel=(3, 1), pad=(0, 1)), SMALL, (1, 8, 8)),
    )],
    (MaxPooling1D("it"), f"expected .*{STEPS}", (2, 3, 4)),
    (MaxPooling1D("it", 5, border_mode="valid"), "expected sequences at least as long", (4,)),
    (MaxPooling1D("it", 2, pad=2), f"expected {SMALL}", (4,)),
    (layers.AdaptiveMaxPooling1D("it", 2), STEPS, (3, 4, 5)),
    *[(GlobalAvgPooling2D("it"), f"expected .*{CHANNELS}", shape)
      for shape in ((3,), (3, 4), [(3, 4, 4), (3, 4, 4)])],
    (GlobalAvgPooling2D("it"), r"at least one position.*\(3, 0, 4\)", (3, 0, 4)),
    (layers.GlobalAvgPooling1D("it"), f"expected .*{STEPS}", (3, 4, 4)),
]  # fmt: skip


@refuses([
    *[(partial(kind, "it", **{argument: value}), ArgumentError, f"argument {argument}: expected")
      for kind in (MaxPooling2D, AvgPooling2D) for argument, value in BAD],
    (lambda: MaxPooling1D("it", (2, 2)), ArgumentError, "argument pool_size: expected an int"),
    (lambda: layers.MaxPooling3D("it", 2, pad=(1, 1)), ArgumentError, "argument padding: expected"),
    *[(partial(layers.AdaptiveAvgPooling2D, "it", size), ArgumentError, "argument output_size")
      for size in (0, 1.5, (2,), (2, 0), "ab", True)],
    *[(partial(layer.build, shape), ShapeError, words) for layer, words, shape in WRONG_SHAPES],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    if error is ShapeError:
        assert make.func.__self__.out_shapes is None


def test_max_has_the_reference_values_of_singa():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    dy = np.array([[[[0.1, 0.2], [0.3, 0.4]]]], np.float32)
    y, dx, _ = run(MaxPooling2D("pool", 2, 1, "valid"), x, dy)
    np.testing.assert_array_equal(y[0, 0], [[5, 6], [8, 9]])
    want = np.array([[0, 0, 0], [0, 0.1, 0.2], [0, 0.3, 0.4]], np.float32)
    np.testing.assert_array_equal(dx[0, 0], want)
