"""Convolutions of one to three axes, transposed, depthwise and separable; sizes of images."""

import inspect
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import layers
from singanet.errors import ArgumentError, ShapeError, SignatureError, UnknownNameError
from singanet.layers import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    DepthwiseConv2D,
    Resize,
    Upsampling2D,
)
from singanet.net import FeedForwardNet
from singanet.ops.numpy import windows
from singanet.testing import LayerCase, check_net_gradients
from tests.kit.layers import beside_torch, case, cases, expect_refused, refuses, run


def each(value, rank):
    return value if isinstance(value, tuple) else (value,) * rank


def correlated(x, weight, stride=1, pads=0, dilation=1, groups=1, mode="constant"):
    """By a loop over the taps: x (N, C, ...), weight (F, C/groups, ...), pads an int or pairs."""
    f, share, *kernel = weight.shape
    rank = len(kernel)
    pads = [pad if isinstance(pad, tuple) else (pad, pad) for pad in each(pads, rank)]
    x = np.pad(x, ((0, 0), (0, 0), *pads), mode=mode)
    axes = list(zip(x.shape[2:], kernel, each(stride, rank), each(dilation, rank), strict=True))
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes]
    y = np.zeros((len(x), f, *out))
    for tap in np.ndindex(*kernel):
        seen = x[(..., *(slice(t * d, t * d + s * (n - 1) + 1, s)
                         for t, n, (_, _, s, d) in zip(tap, out, axes, strict=True)))]  # fmt: skip
        for g in range(groups):
            own, part = (
                slice(g * f // groups, (g + 1) * f // groups),
                seen[:, g * share :][:, :share],
            )
            y[:, own] += np.einsum("nc...,fc->nf...", part, weight[(own, slice(None), *tap)])
    return y


def stamped(x, weight, stride, pads, extra=0, dilation=1, groups=1):
    """Every pixel stamps its kernel: x (N, C, ...), weight (C, F/groups, ...)."""
    _, share, *kernel = weight.shape
    rank, per_group = len(kernel), x.shape[1] // groups
    stride, extra, dilation = (each(value, rank) for value in (stride, extra, dilation))
    axes = list(zip(x.shape[2:], kernel, stride, dilation, extra, strict=True))
    y = np.zeros((len(x), share * groups, *((n - 1) * s + d * (k - 1) + 1 + e
                                            for n, k, s, d, e in axes)))  # fmt: skip
    for tap in np.ndindex(*kernel):
        at = tuple(slice(t * d, t * d + s * (n - 1) + 1, s)
                   for t, (n, _, s, d, _) in zip(tap, axes, strict=True))  # fmt: skip
        for c in range(x.shape[1]):
            first = c // per_group * share
            for k in range(share):
                y[(slice(None), first + k, *at)] += x[:, c] * weight[(c, k, *tap)]
    inside = (
        slice(before, n - after) for n, (before, after) in zip(y.shape[2:], pads, strict=True)
    )
    return y[(..., *inside)]


def added(y, params):
    """``y`` plus the bias of each channel."""
    return y + params["bias"].reshape(-1, *[1] * (y.ndim - 2)) if "bias" in params else y


def geometry(given, kernel=3):
    """The part of a layer's arguments that the formula takes as they are."""
    named = ("kernel", "stride", "dilation", "groups")
    return {"kernel": kernel, **{name: given[name] for name in named if name in given}}


def conv(shape, filters, pads, mode="constant", **given):
    """A convolution; ``pads`` and ``mode`` are what ``given`` must mean, written out by hand."""
    rank = max(len(shape) - 1, 1)
    of = geometry(given)
    kernel = each(of.pop("kernel"), rank)

    def expected(p, x):
        x = x[:, None] if len(shape) == 1 else x
        weight = p["weight"].reshape(filters, -1, *kernel)
        return added(correlated(x, weight, pads=pads, mode=mode, **of), p)

    return case(lambda: getattr(layers, f"Conv{rank}D")("conv", filters, **given), shape, expected)


def transposed(shape, filters, pads, extra=0, **given):
    rank, of = len(shape) - 1, geometry(given)
    kernel = each(of.pop("kernel"), rank)
    of.setdefault("stride", 1)

    def expected(p, x):
        weight = p["weight"].reshape(shape[0], -1, *kernel)
        return added(stamped(x, weight, pads=pads, extra=extra, **of), p)

    kind = getattr(layers, f"Conv{rank}DTranspose")
    return case(lambda: kind("up", filters, **given), shape, expected)


def depthwise(shape, pads, **given):
    rank, of = len(shape) - 1, geometry(given)
    kernel = each(of.pop("kernel"), rank)

    def expected(p, x):
        weight = p["weight"].reshape(-1, 1, *kernel)
        return added(correlated(x, weight, pads=pads, groups=shape[0], **of), p)

    return case(lambda: getattr(layers, f"DepthwiseConv{rank}D")("it", **given), shape, expected)


def separable(shape, filters, pads, **given):
    rank, of = len(shape) - 1, geometry(given)
    kernel = each(of.pop("kernel"), rank)

    def expected(p, x):
        depth = p["depthwise_weight"].reshape(-1, 1, *kernel)
        inner = correlated(x, depth, pads=pads, groups=shape[0], **of)
        return added(np.einsum("nc...,fc->nf...", inner, p["pointwise_weight"]), p)

    kind = getattr(layers, f"SeparableConv{rank}D")
    return case(lambda: kind("it", filters, **given), shape, expected)


def bilinear(x, factors):
    """Each output pixel from the four around its centre, coordinates kept on the image."""
    _, _, h, w = x.shape
    y = np.empty((*x.shape[:2], h * factors[0], w * factors[1]))
    for i, j in np.ndindex(*y.shape[2:]):
        row = min(max((i + 0.5) / factors[0] - 0.5, 0), h - 1)
        column = min(max((j + 0.5) / factors[1] - 0.5, 0), w - 1)
        top, left = int(row), int(column)
        below, right = min(top + 1, h - 1), min(left + 1, w - 1)
        down, across = row - top, column - left
        y[:, :, i, j] = (
            (1 - down) * ((1 - across) * x[:, :, top, left] + across * x[:, :, top, right])
            + down * ((1 - across) * x[:, :, below, left] + across * x[:, :, below, right])
        )  # fmt: skip
    return y


def lines(n, m):
    """The weights of ``n`` positions in each of ``m``, on lines between their centres."""
    at = (np.arange(m) + 0.5) * n / m - 0.5
    return np.array([np.interp(at, range(n), one) for one in np.eye(n)]).T


IMAGE, WIDE = (2, 6, 5), (2, 8, 9)
EVERYTHING = {"pad": ((1, 2), 0, (0, 1)), "padding_mode": "circular", "use_bias": False}
IN_BANDS = depthwise((2, 7, 6), (0, 2), kernel=(2, 3), stride=(2, 1), dilation=(3, 1), pad=(0, 2),
                     depth_multiplier=3, use_bias=False)  # fmt: skip
CASES = {
    "defaults": conv(IMAGE, 3, 1),
    "valid": conv(IMAGE, 3, 0, border_mode="valid"),
    "without bias": conv(IMAGE, 3, 0, kernel=1, use_bias=False),
    "one by one, strided": conv(IMAGE, 3, 0, kernel=1, stride=2),
    "pairs": conv((2, 5, 8), 3, (1, 2), kernel=(3, 5), stride=(1, 2)),
    # Of an odd total the larger half comes after, so that stride 1 keeps the size.
    "even kernel, same": conv(IMAGE, 3, ((0, 1), (1, 2)), kernel=(2, 4)),
    "rows left unused": conv((2, 9, 7), 3, 0, kernel=2, stride=3, border_mode="valid"),
    "pad overrides border_mode": conv(IMAGE, 3, (2, 0), stride=2, pad=(2, 0), border_mode="same"),
    "uneven pad": conv(IMAGE, 3, ((2, 0), (0, 1)), stride=2, pad=((2, 0), (0, 1))),
    "reflected": conv(IMAGE, 3, ((2, 0), 1), "reflect", stride=(1, 2), pad=((2, 0), 1),
                      padding_mode="reflect"),
    "pad wider than the kernel": conv((1, 2, 3), 3, 3, kernel=2, pad=3),
    "dilation": conv(WIDE, 3, (2, 3), dilation=(2, 3)),
    "dilation, strided": conv(WIDE, 3, 0, dilation=2, stride=(2, 3), border_mode="valid"),
    "groups": conv((4, 5, 6), 6, 1, groups=2),
    "groups, strided, dilated": conv((6, 7, 8), 3, ((1, 1), (2, 2)), groups=3, stride=2, dilation=2,
                                     kernel=(2, 3)),
    "a group a channel": conv((4, 5, 6), 4, 1, groups=4),
    "two filters a channel": conv((3, 5, 6), 6, ((1, 2), (1, 2)), groups=3, stride=2, kernel=4),
    # The kernels may choose another layout.
    "more channels than columns": conv((9, 4, 3), 11, 1),
    "whole image": conv((3, 4, 5), 3, 0, kernel=(4, 5), border_mode="valid"),
    "one row": conv((2, 1, 9), 3, (0, 1), kernel=(1, 3), stride=(1, 2)),
    "1D": conv((2, 7), 4, 1),
    # (L,) is one channel; pad and stride are the user's, which SINGA dropped.
    "1D of SINGA's shape": conv((9,), 3, 2, kernel=4, stride=2, pad=2),
    "1D in groups": conv((4, 9), 6, 0, kernel=2, dilation=3, groups=2, border_mode="valid",
                         use_bias=False),
    "1D, even kernel": conv((1, 5), 1, ((0, 1),), kernel=2, use_bias=False),
    "1D, causal": conv((2, 7), 4, ((4, 0),), dilation=2, border_mode="causal"),
    "1D, circular": conv((2, 7), 4, ((1, 3),), "wrap", pad=(1, 3), padding_mode="circular"),
    "3D": conv((2, 4, 3, 5), 3, (1, 0, (0, 1)), kernel=(3, 1, 2)),
    "3D of everything": conv((2, 5, 4, 3), 4, EVERYTHING["pad"], "wrap", kernel=(2, 2, 1),
                             stride=(2, 1, 2), dilation=(2, 1, 1), groups=2, **EVERYTHING),
    "transposed": transposed((2, 3, 4), 3, ((1, 1), (1, 1))),
    # 'same' gives the input's size times the stride.
    "transposed, strided": transposed((2, 3, 4), 2, ((1, 2), (1, 2)), (1, 2), kernel=4,
                                      stride=(2, 3), use_bias=False),
    "transposed, in groups": transposed((4, 3, 3), 6, ((1, 1), (0, 0)), (2, 0), kernel=(2, 3),
                                        stride=3, pad=(1, 0), output_padding=(2, 0), dilation=2,
                                        groups=2),
    "transposed 1D": transposed((2, 4), 3, ((1, 0),), kernel=4, stride=2, pad=(1, 0)),
    "transposed 3D": transposed((4, 2, 3, 2), 6, ((0, 0),) * 3, kernel=(2, 3, 1), stride=(2, 1, 3),
                                border_mode="valid", groups=2),
    "depthwise": depthwise((3, 5, 4), 1),
    "depthwise, multiplied": IN_BANDS,
    "depthwise, one pixel": depthwise((4, 1, 1), 0, kernel=1, use_bias=False),
    # Without padding, so that windows are views of the image as it came.
    "depthwise, one channel": depthwise((1, 4, 5), 0, kernel=(3, 2), border_mode="valid",
                                        use_bias=False),
    "depthwise, pixels": depthwise((1, 4, 5), 0, kernel=1, border_mode="valid", use_bias=False),
    "depthwise, a column": depthwise((1, 6, 2), 0, kernel=(2, 2), stride=(2, 1),
                                     border_mode="valid", use_bias=False),
    "depthwise 1D": depthwise((2, 6), ((2, 0),), border_mode="causal", depth_multiplier=2),
    "separable": separable((2, 5, 4), 3, 0, kernel=(3, 2), stride=(2, 1), border_mode="valid",
                           depth_multiplier=2),
    "separable, one channel": separable((1, 5, 4), 2, 0, border_mode="valid", use_bias=False),
    "separable 1D": separable((2, 5), 3, ((2, 0),), kernel=2, dilation=2, border_mode="causal",
                              depth_multiplier=2),
    "resized": case(lambda: Resize("it", (5, 2)), (2, 3, 4), lambda p, x: np.einsum(
        "ih,nchw,jw->ncij", lines(3, 5), x, lines(4, 2))),
    "resized, nearest": case(
        lambda: Resize("it", (6,), interpolation="nearest", coordinates="asymmetric"), (2, 4),
        lambda p, x: x[..., [0, 1, 1, 2, 3, 3]]),
    "nearest": case(lambda: Upsampling2D("up", (2, 3)), (2, 3, 4),
                    lambda p, x: np.kron(x, np.ones((2, 3)))),
    "bilinear": case(lambda: Upsampling2D("up", (2, 3), interpolation="bilinear"), (2, 3, 4),
                     lambda p, x: bilinear(x, (2, 3))),
    "bilinear of one row": case(lambda: Upsampling2D("up", 4, interpolation="bilinear"), (2, 1, 2),
                                lambda p, x: bilinear(x, (4, 4))),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_a_depthwise_convolution_in_bands(monkeypatch):
    monkeypatch.setattr(windows, "SCRATCH_BYTES", 1)
    IN_BANDS.test_layer(np)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)), groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 2), st.integers(1, 3)), seed=st.integers(0, 99)
)  # fmt: skip
def test_any_geometry(size, kernel, stride, pad, dilation, groups, per_group, seed):
    """Forward by the formula; backward as the adjoint: <conv(x), dy> = <x, dx> = <w, dw>."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, groups * per_group[0], *size))
    outputs = groups * per_group[1]
    layer = Conv2D("conv", outputs, kernel, stride, border_mode="valid", pad=pad, use_bias=False,
                   dilation=dilation, groups=groups)  # fmt: skip
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(n + 2 * p - d < 1 for n, p, d in zip(size, pad or (0, 0), spans, strict=True)):
        with pytest.raises(ShapeError, match="layer 'conv'"):
            layer.build(x.shape[1:])
        return
    weight = rng.standard_normal((outputs, per_group[0] * kernel[0] * kernel[1]))
    kernels = weight.reshape(outputs, per_group[0], *kernel)
    want = correlated(x, kernels, stride, pad or 0, dilation, groups)
    dy = rng.standard_normal(want.shape)
    y, dx, grads = run(layer, x, dy, weight=weight)
    np.testing.assert_allclose(y, want, rtol=1e-10, atol=1e-10)
    both = np.sum(want * dy)
    assert np.sum(x * dx) == pytest.approx(both, rel=1e-9, abs=1e-9)
    assert np.sum(weight * grads["weight"]) == pytest.approx(both, rel=1e-9, abs=1e-9)


# -- peers ----------------------------------------------------------------------------------------


def beside(shape, filters, kernel=3, mode=None, **given):
    """A convolution and PyTorch's; a border by ``mode`` is put there before."""
    rank, given = len(shape) - 1, {"pad": 0, **given}
    more = {} if mode is None else {"padding_mode": mode}

    def theirs(f, x, p):
        options = {"padding" if name == "pad" else name: value for name, value in given.items()}
        if mode is not None:
            pad = each(options.pop("padding"), rank)
            x = f.pad(x, [n for n in pad[::-1] for _ in (0, 1)], mode.replace("zeros", "constant"))
        weight = p["weight"].reshape(filters, -1, *each(kernel, rank))
        return getattr(f, f"conv{rank}d")(x, weight, p["bias"], **options)

    kind = getattr(layers, f"Conv{rank}D")
    return partial(kind, "it", filters, kernel, **given, **more), shape, theirs


def beside_transposed(shape, filters, kernel=3, **given):
    rank = len(shape) - 1

    def theirs(f, x, p):
        options = {"padding" if name == "pad" else name: value for name, value in given.items()}
        weight = p["weight"].reshape(shape[0], -1, *each(kernel, rank))
        return getattr(f, f"conv_transpose{rank}d")(x, weight, p["bias"], **options)

    kind = getattr(layers, f"Conv{rank}DTranspose")
    return partial(kind, "it", filters, kernel, **given), shape, theirs


def beside_depthwise(times, stride):
    return (
        partial(DepthwiseConv2D, "it", 3, stride, depth_multiplier=times, pad=1),
        (8, 15, 13),
        lambda f, x, p: f.conv2d(x, p["weight"].reshape(-1, 1, 3, 3), p["bias"], stride, 1, 1, 8),
    )


def both_convolutions(f, x, p):
    inner = f.conv2d(x, p["depthwise_weight"].reshape(4, 1, 3, 3), None, 2, 2, 2, groups=4)
    return f.conv2d(inner, p["pointwise_weight"].reshape(6, 4, 1, 1))


PEERS = {
    "1D": beside((4, 30), 8, 5, pad=1),
    "1D, strided": beside((4, 30), 8, 5, stride=2, pad=3, dilation=2, groups=4),
    "2D": beside((3, 11, 9), 8),
    "2D, pixels": beside((16, 14, 14), 8, 1),
    "2D, large kernel": beside((3, 23, 20), 8, 7, stride=2, pad=3),
    "2D, groups": beside((6, 12, 10), 4, groups=2, stride=(2, 1), pad=1),
    "2D, a group a channel": beside((8, 12, 10), 8, groups=8, pad=1),
    "2D, dilated": beside((4, 12, 13), 5, dilation=(2, 3), pad=(2, 1), stride=(1, 2)),
    "2D, many channels": beside((40, 9, 5), 48, pad=1),
    **{f"2D, {mode}, {pad}": beside((4, 7, 6), 6, mode=mode, stride=(1, 2), pad=pad, groups=groups)
       for mode in ("zeros", "reflect", "replicate", "circular")
       for pad, groups in (((2, 1), 1), ((0, 3), 2))},
    "3D": beside((4, 6, 7, 5), 8, stride=(1, 2, 1), pad=1),
    "3D, groups": beside((4, 6, 7, 5), 8, groups=2, pad=(2, 0, 1), dilation=(1, 2, 1)),
    "3D, reflected": beside((4, 6, 7, 5), 8, mode="reflect", groups=4, pad=1, stride=2),
    # Outer windows that meet padding alone.
    "3D, far out": beside((4, 6, 7, 5), 8, pad=(4, 0, 0)),
    "transposed 1D": beside_transposed((4, 2), 6, pad=1, dilation=2),
    "transposed 1D, strided": beside_transposed((4, 2), 6, stride=3, pad=0, output_padding=2),
    "transposed": beside_transposed((4, 6, 7), 6, pad=1),
    "transposed, strided": beside_transposed((4, 6, 7), 6, stride=2, pad=1, output_padding=1),
    "transposed, groups": beside_transposed((4, 6, 7), 6, stride=3, pad=0, output_padding=2,
                                            dilation=2, groups=2),
    "transposed 3D": beside_transposed((4, 3, 4, 5), 6, (3, 2, 3), stride=(2, 1, 3), pad=(1, 0, 1),
                                       output_padding=(1, 0, 2), dilation=(1, 2, 1), groups=2),
    "depthwise": beside_depthwise(1, 1),
    "depthwise, strided": beside_depthwise(1, 2),
    "depthwise, multiplied": beside_depthwise(3, 2),
    "separable": (partial(layers.SeparableConv2D, "it", 6, 3, 2, pad=2, dilation=2, use_bias=False),
                  (4, 9, 8), both_convolutions),
    **{f"resized, {mode}{' to corners' * corners}{' antialiased' * smooth}, {size}": (
        partial(Resize, "it", size, interpolation="cubic" if mode == "bicubic" else "linear",
                coordinates="align_corners" if corners else "half_pixel", antialias=smooth,
                cubic=-0.5 if smooth else -0.75,
                exclude_outside=smooth), (2, 4, 5, 3)[:len(size) + 1],
        lambda f, x, p, size=size, mode=mode, corners=corners, smooth=smooth:
        f.interpolate(x, size, mode=mode, align_corners=corners, antialias=smooth))
       for mode, size, corners, smooth in (
           ("linear", (7,), False, False), ("bilinear", (3, 9), True, False),
           ("trilinear", (6, 3, 5), False, False), ("bicubic", (3, 9), False, False),
           ("bilinear", (2, 3), False, True), ("bicubic", (2, 9), False, True))},
    **{f"{mode}, {size}": (partial(Upsampling2D, "it", size, mode=mode), (3, 5, 6),
                           lambda f, x, p, size=size, mode=mode:
                           f.interpolate(x, scale_factor=size, mode=mode))
       for mode in ("nearest", "bilinear") for size in ((2, 2), (3, 5))},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_pytorch(name, dtype):
    beside_torch(*PEERS[name], dtype)


def test_default_weights_are_glorot_uniform_over_the_group():
    layer = Conv2D("conv", 128, 3, groups=2, input_sample_shape=(64, 8, 8))
    layer.get_output_sample_shape()
    weight, bias = layer.param_values()
    # 32·9 connections come into a unit and 64·9 leave one of the input.
    bound = np.sqrt(6 / (32 * 9 + 64 * 9))
    assert 0.98 * bound < np.abs(weight).max() <= bound
    assert weight.var() == pytest.approx(bound**2 / 3, rel=0.02)
    assert not bias.any()


def test_a_transposed_convolution_shares_the_weight_of_the_convolution():
    up = Conv2DTranspose("up", 3, 3, 2, use_bias=False, input_sample_shape=(5, 4, 4))
    down = Conv2D("down", 5, 3, 2, use_bias=False, W_specs=up.params["weight"])
    assert down.build(up.get_output_sample_shape()) == (5, 4, 4)
    assert down.params["weight"] is up.params["weight"]


def test_images_are_views_of_channels_last_memory_and_weights_channel_major():
    x = np.ones((2, 3, 6, 5), np.float32)
    y, dx, _ = run(Conv2D("conv", 4), x, np.ones((2, 4, 6, 5), np.float32))
    assert y.shape == (2, 4, 6, 5)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert dx.shape == x.shape
    assert dx.strides[1] == dx.itemsize
    x, weight = np.zeros((1, 2, 3, 4), np.float32), np.arange(24, dtype=np.float32)[None]
    x[0, 1, 2, 3] = 1.0
    layer = Conv2D("conv", 1, kernel=(3, 4), border_mode="valid", use_bias=False)
    assert run(layer, x, weight=weight).item() == weight[0, 1 * 12 + 2 * 4 + 3]


def test_singas_arguments_are_taken_by_name_and_nobody_sees_them():
    singas = {"cudnn_prefer": "autotune", "workspace_byte_limit": 2048}
    for kind, *rest in (
        (Conv2D, 4), (Conv1D, 4), (Conv3D, 4), (layers.MaxPooling2D,), (layers.AvgPooling1D,)
    ):  # fmt: skip
        assert not singas.keys() & inspect.signature(kind).parameters.keys()
        layer = kind("c", *rest, **singas)
        assert not singas.keys() & layer.arguments.keys()
        assert layer.to_config() == kind("c", *rest).to_config()
        assert kind("c", *rest, data_format="NCHW").window == layer.window
    with pytest.raises(SignatureError, match="positional"):
        Conv2D("c", 4, 3, 1, "same", "fastest", 1024)


def test_layers_follow_each_other_in_a_net(rng):
    parts = [
        Conv1D("conv1", 3, 3, input_sample_shape=(12,)),
        layers.MaxPooling1D("max", 2, 2, border_mode="valid"), Conv1D("conv2", 2, 3, stride=2),
        layers.AvgPooling1D("avg", 3, 1), layers.Flatten("flat"), layers.Dense("fc", 2),
    ]  # fmt: skip
    net = FeedForwardNet(parts, seed=0)
    check_net_gradients(net, rng.standard_normal((3, 12)))


def test_a_subclass_sees_sequences_and_may_be_called_by_position(rng):
    class Doubled(Conv1D):
        def __init__(self, name, nb_kernels, factor=2.0):
            super().__init__(name, nb_kernels, 3, 1, "same", use_bias=False)
            self.factor = factor

        def forward(self, ctx, x):
            assert x.shape == (2, 3, 7)
            return self.factor * super().forward(ctx, x)

        def backward(self, ctx, dy):
            assert dy.shape == (2, 4, 7)
            return super().backward(ctx, self.factor * dy)

    kinds = Doubled("conv", 4), Conv1D("conv", 4, use_bias=False)
    x, dy = rng.standard_normal((2, 3, 7)), rng.standard_normal((2, 4, 7))
    found = []
    for layer in kinds:
        layer.build((3, 7))
        layer.params["weight"].value[...] = np.arange(36).reshape(4, 9)
        ctx, y = LayerCase().run(layer, x, train=True)
        found.append([y, layer.backward(ctx, dy)[0]])
    for doubled, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(doubled, 2 * plain)


def test_causal_is_that_of_keras(rng):
    keras = pytest.importorskip("keras")
    theirs, ours = (
        keras.layers.Conv1D(3, 4, strides=2, padding="causal"),
        Conv1D("conv", 3, 4, 2, "causal"),
    )
    x = rng.standard_normal((2, 9, 5)).astype(np.float32)
    wanted = keras.ops.convert_to_numpy(theirs(x))
    ours.build((5, 9))
    kernel, bias = theirs.get_weights()
    ours.params["weight"].value[...] = kernel.transpose(2, 1, 0).reshape(3, -1)
    ours.params["bias"].value[...] = bias
    _, y = LayerCase().run(ours, x.transpose(0, 2, 1), train=False)
    np.testing.assert_allclose(y.transpose(0, 2, 1), wanted, rtol=1e-5, atol=1e-5)


def of_keras(axes, kernel, stride, padding, extra, dilation, rng):
    """Outputs of Keras' layer and of ours by the same weights, channels first."""
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    size = (4, 5, 3)[:axes]
    x = rng.standard_normal((2, *size, 2)).astype(np.float32)
    peer = getattr(keras.layers, f"Conv{axes}DTranspose")(
        3, kernel, stride, padding, output_padding=extra, dilation_rate=dilation
    )
    wanted = np.asarray(peer(x).detach())
    mine = getattr(layers, f"Conv{axes}DTranspose")(
        "up", 3, kernel, stride, f"keras_{padding}", output_padding=extra, dilation=dilation
    )
    mine.build((2, *size))
    weight = np.moveaxis(np.asarray(peer.kernel), (-1, -2), (0, 1))
    mine.params["weight"].retype(weight.reshape(2, -1))
    _, y = LayerCase().run(mine, np.moveaxis(x, -1, 1).copy(), train=False)
    return y, np.moveaxis(wanted, -1, 1)


SETTINGS = [
    (kernel, stride, padding, extra, dilation)
    for kernel in range(1, 8)
    for stride in range(1, 6)
    for padding in ("same", "valid")
    for extra in (None, *range(min(stride, 3)))
    for dilation in ((1, 2) if stride == 1 else (1,))
]


@pytest.mark.parametrize("axes", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_pads_as_keras(axes, rng):
    for setting in SETTINGS if axes == 1 else rng.permutation(len(SETTINGS))[:40]:
        given = setting if axes == 1 else SETTINGS[setting]
        y, wanted = of_keras(axes, *given, rng)
        np.testing.assert_allclose(y, wanted, atol=2e-5, err_msg=str(given))


def test_a_decoder_of_keras_by_its_file_of_weights(tmp_path, rng):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    x, up = rng.standard_normal((2, 4, 5, 3)).astype(np.float32), keras.layers.Conv2DTranspose
    theirs = [up(4, 3, strides=2, padding="same"), up(2, (2, 5), strides=(3, 2), padding="same")]
    peer = keras.Sequential([keras.Input((4, 5, 3)), *theirs])
    peer.save_weights(tmp_path / "decoder.weights.h5")
    one = Conv2DTranspose("one", 4, 3, 2, border_mode="keras_same", input_sample_shape=(3, 4, 5))
    net = FeedForwardNet([one, Conv2DTranspose("two", 2, (2, 5), (3, 2), border_mode="keras_same")])
    assert net.load(tmp_path / "decoder.weights.h5").complete
    y = net.predict(x.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(y.transpose(0, 2, 3, 1), peer.predict(x, verbose=0), atol=1e-5)


# -- shapes and refusals --------------------------------------------------------------------------


BAD = [
    (Conv2D, {"filters": [0, 2.5, True], "groups": [0, "2"], "strides": [0, (1, -1)],
              "kernel_size": [0, (3,), (3, 3, 3), (3, 1.5), None], "dilation_rate": [0],
              "padding": [-1, None, (1, (0, -1)), (1, 1, 1), "causal", "full"],
              "padding_mode": ["constant"], "data_format": ["NHWC"], "cudnn_prefer": ["slowest"],
              "workspace_byte_limit": [0]}),
    (Conv1D, {"kernel_size": [(1, 3), 0, "3"], "strides": [0, None], "dilation_rate": [1.5],
              "padding": [-1, (0, 1, 2), ((0, 1), 2)]}),
    (Conv3D, {"kernel_size": [(3, 3)]}),
    (Conv2DTranspose, {"filters": [0], "output_padding": [3]}),
    (DepthwiseConv2D, {"depth_multiplier": [0]}),
    (layers.SeparableConv2D, {"depth_multiplier": [0]}),
    (Upsampling2D, {"interpolation": ["bilinaer"], "size": [1.5]}),
    (partial(Resize, size=(2, 2)), {"size": [0, (2, -1), "2"], "scales": [2, (1.0,), (0.0, 1.0)],
                                    "interpolation": ["area"], "coordinates": ["corner"],
                                    "rounding": ["up"], "cubic": ["keys"]}),
]  # fmt: skip
CHANNELS, STEPS = r"\(channels, height, width\)", r"\(channels, length\)"
WRONG_SHAPES = [
    (Conv2D("it", 4), rf"{CHANNELS}; received \(28, 28\)", (28, 28)),
    (Conv2D("it", 4), "one input of sample shape", [(1, 4, 4), (1, 4, 4)]),
    (Conv2D("it", 4, border_mode="valid"), r"kernel \(3, 3\).*received sample shape \(1, 2, 9\)",
     (1, 2, 9)),
    (Conv2D("it", 4, border_mode="valid", dilation=4), r"dilation \(4, 4\)", (1, 8, 9)),
    (Conv2D("it", 4, groups=2), "divisible by groups=2; received 3 channels and filters=4",
     (3, 8, 8)),
    (Conv2D("it", 4, groups=3), "divisible by groups=3; received 3 channels and filters=4",
     (3, 8, 8)),
    (Conv2D("it", 4, groups=2), "divisible by groups=2", (3, 8, 8)),
    (Conv2D("it", 3, groups=2), "divisible by groups=2", (4, 8, 8)),
    (Conv2D("it", 4), "each at least 1", (0, 8, 8)),
    (Conv2D("it", 4, padding_mode="reflect", pad=3), "at least the size of the border", (1, 3, 5)),
    *[(Conv1D("it", 2), f"expected .*{STEPS}", shape)
      for shape in ((), (2, 3, 4), (0, 5), (2, 0), [(2, 5), (2, 5)])],
    (Conv1D("it", 2, 5, border_mode="valid"),
     r"expected sequences at least as long as the kernel 5.*\(2, 4\)", (2, 4)),
    (Conv3D("it", 2), r"\(channels, depth, height, width\)", (3, 4, 5)),
    (Conv2DTranspose("it", 2), f"expected .*{CHANNELS}", (3, 4)),
    (Conv2DTranspose("it", 2, groups=2), "expected .*divisible by groups=2.*3 channels", (3, 4, 4)),
    (Conv2DTranspose("it", 3, groups=2), "expected .*divisible by groups=2", (4, 4, 4)),
    (Conv2DTranspose("it", 2, 3, pad=2), "expected images larger than the padding", (3, 2, 2)),
    (DepthwiseConv2D("it"), f"expected .*{CHANNELS}", (3, 4)),
    (DepthwiseConv2D("it", 5, border_mode="valid"), "expected images at least as large", (3, 4, 4)),
    (layers.SeparableConv2D("it", 3), CHANNELS, (4, 5)),
    (Upsampling2D("it"), f"expected .*{CHANNELS}", (3, 4)),
    (Resize("it", (2, 2, 2)), "at least 3 axes", (3, 4)),
]  # fmt: skip


@refuses([
    *[(partial(kind, "it", **{"filters": 4} | {argument: value} if "filters" in
               inspect.signature(kind).parameters else {argument: value}),
       (ArgumentError, UnknownNameError), f"argument {argument}: expected .*received")
      for kind, bad in BAD for argument, values in bad.items() for value in values],
    *[(partial(layer.build, shape), ShapeError, words) for layer, words, shape in WRONG_SHAPES],
    (lambda: Conv2DTranspose("it", 2, stride=2, output_padding=2), ArgumentError,
     "argument output_padding: .*numbers below the"),
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    if error is ShapeError:
        layer = make.func.__self__
        assert layer.params == {}
        assert layer.out_shapes is None


def test_the_reference_values_of_singa():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    w = np.array([[1, 1, 0, 0, 0, -1, 0, 1, 0]], np.float32)
    dy = np.array([[[[0.1, 0.2], [0.3, 0.4]]]], np.float32)
    layer = Conv2D("conv", 1, kernel=3, stride=2, pad=1)
    y, dx, grads = run(layer, x, dy, weight=w, bias=np.ones(1, np.float32))
    np.testing.assert_array_equal(y.ravel(), [3, 7, -3, 12])
    # Each element written out by hand: which window position meets which pixel.
    (d0, d1, d2, d3), (x0, x1, x2, x3, x4, x5, x6, x7, x8) = dy.ravel(), x.ravel()
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = w.ravel()
    by_hand = [d0 * w4, d0 * w5 + d1 * w3, d1 * w4,
               d0 * w7 + d2 * w1, d0 * w8 + d1 * w6 + d2 * w2 + d3 * w0, d1 * w7 + d3 * w1,
               d2 * w4, d2 * w5 + d3 * w3, d3 * w4]  # fmt: skip
    np.testing.assert_allclose(dx.ravel(), by_hand, rtol=1e-6)
    by_hand = [d3 * x4, d2 * x3 + d3 * x5, d2 * x4,
               d1 * x1 + d3 * x7, d0 * x0 + d1 * x2 + d2 * x6 + d3 * x8, d0 * x1 + d2 * x7,
               d1 * x4, d0 * x3 + d1 * x5, d0 * x4]  # fmt: skip
    assert grads["weight"].shape == (1, 9)
    np.testing.assert_allclose(grads["weight"].ravel(), by_hand, rtol=1e-6)
    np.testing.assert_allclose(grads["bias"], [1.0], rtol=1e-6)
