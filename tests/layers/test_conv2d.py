"""Conv2D."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from singanet.errors import ArgumentError, ShapeError, SignatureError, UnknownNameError
from singanet.layers import AvgPooling1D, Context, Conv1D, Conv2D, Conv3D, MaxPooling2D
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


def cross_correlation(x, weight, bias, kernel, stride, pads, dilation=(1, 1), groups=1):
    """Windows by strides over the padded image, contracted with the kernels by einsum."""
    (n, c), (f, (kh, kw)) = x.shape[:2], (len(weight), kernel)
    padded = np.pad(x, ((0, 0), (0, 0), *pads))
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = sliding_window_view(padded, extent, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    windows = windows.reshape(n, groups, c // groups, *windows.shape[2:])
    kernels = weight.reshape(groups, f // groups, c // groups, kh, kw)
    y = np.einsum("ngcijab,gfcab->ngfij", windows, kernels).reshape(n, f, *windows.shape[3:5])
    return y if bias is None else y + bias[:, None, None]


class ConvCase(LayerCase):
    """``arguments`` of the layer; ``geometry`` is what they must mean, written out by hand."""

    in_shapes = (2, 6, 5)
    outputs = 3
    arguments: dict = {}
    geometry: dict = {}

    def make(self):
        return Conv2D("conv", self.outputs, **self.arguments)

    def expected(self, params, x):
        geometry = {"kernel": (3, 3), "stride": (1, 1), "pads": ((1, 1), (1, 1))} | self.geometry
        return cross_correlation(x, params["weight"], params.get("bias"), **geometry)


class TestDefaults(ConvCase):
    pass


class TestValid(ConvCase):
    arguments = {"border_mode": "valid"}
    geometry = {"pads": ((0, 0), (0, 0))}


class TestWithoutBias(ConvCase):
    arguments = {"use_bias": False, "kernel": 1}
    geometry = {"kernel": (1, 1), "pads": ((0, 0), (0, 0))}


class TestOneByOneStrided(ConvCase):
    arguments = {"kernel": 1, "stride": 2}
    geometry = {"kernel": (1, 1), "stride": (2, 2), "pads": ((0, 0), (0, 0))}


class TestPairs(ConvCase):
    in_shapes = (2, 5, 8)
    arguments = {"kernel": (3, 5), "stride": (1, 2)}
    geometry = {"kernel": (3, 5), "stride": (1, 2), "pads": ((1, 1), (2, 2))}


class TestEvenKernelSame(ConvCase):
    """Of an odd total the larger half comes after, so that stride 1 keeps the size."""

    arguments = {"kernel": (2, 4)}
    geometry = {"kernel": (2, 4), "pads": ((0, 1), (1, 2))}


class TestStrideThreeLeavesRowsUnused(ConvCase):
    in_shapes = (2, 9, 7)
    arguments = {"kernel": 2, "stride": 3, "border_mode": "valid"}
    geometry = {"kernel": (2, 2), "stride": (3, 3), "pads": ((0, 0), (0, 0))}


class TestPadOverridesBorderMode(ConvCase):
    arguments = {"pad": (2, 0), "border_mode": "same", "stride": 2}
    geometry = {"pads": ((2, 2), (0, 0)), "stride": (2, 2)}


class TestUnevenPad(ConvCase):
    arguments = {"pad": ((2, 0), (0, 1)), "stride": 2}
    geometry = {"pads": ((2, 0), (0, 1)), "stride": (2, 2)}


class TestReflected(ConvCase):
    arguments = {"pad": ((2, 0), 1), "padding_mode": "reflect", "stride": (1, 2)}

    def expected(self, params, x):
        rows, columns = [2, 1, 0, 1, 2, 3, 4, 5], [1, 0, 1, 2, 3, 4, 3]
        geometry = {"kernel": (3, 3), "stride": (1, 2), "pads": ((0, 0), (0, 0))}
        return cross_correlation(
            x[:, :, rows][..., columns], params["weight"], params["bias"], **geometry
        )


class TestPadWiderThanKernel(ConvCase):
    in_shapes = (1, 2, 3)
    arguments = {"kernel": 2, "pad": 3}
    geometry = {"kernel": (2, 2), "pads": ((3, 3), (3, 3))}


class TestDilation(ConvCase):
    in_shapes = (2, 8, 9)
    arguments = {"dilation": (2, 3)}
    geometry = {"dilation": (2, 3), "pads": ((2, 2), (3, 3))}


class TestDilationStrided(ConvCase):
    in_shapes = (2, 8, 9)
    arguments = {"dilation": 2, "stride": (2, 3), "border_mode": "valid"}
    geometry = {"dilation": (2, 2), "stride": (2, 3), "pads": ((0, 0), (0, 0))}


class TestGroups(ConvCase):
    in_shapes = (4, 5, 6)
    outputs = 6
    arguments = {"groups": 2}
    geometry = {"groups": 2}


class TestGroupsStridedDilated(ConvCase):
    in_shapes = (6, 7, 8)
    outputs = 3
    arguments = {"groups": 3, "stride": 2, "dilation": 2, "kernel": (2, 3)}
    geometry = {"groups": 3, "stride": (2, 2), "dilation": (2, 2), "kernel": (2, 3),
                "pads": ((1, 1), (2, 2))}  # fmt: skip


class TestDepthwise(ConvCase):
    in_shapes = (4, 5, 6)
    outputs = 4
    arguments = {"groups": 4}
    geometry = {"groups": 4}


class TestDepthwiseWithMultiplier(ConvCase):
    in_shapes = (3, 5, 6)
    outputs = 6
    arguments = {"groups": 3, "stride": 2, "kernel": 4}
    geometry = {"groups": 3, "stride": (2, 2), "kernel": (4, 4), "pads": ((1, 2), (1, 2))}


class TestManyChannels(ConvCase):
    """More channels than columns: the kernels may choose another layout."""

    in_shapes = (9, 4, 3)
    outputs = 11
    batch = 2


class TestWholeImage(ConvCase):
    in_shapes = (3, 4, 5)
    arguments = {"kernel": (4, 5), "border_mode": "valid"}
    geometry = {"kernel": (4, 5), "pads": ((0, 0), (0, 0))}


class TestOneRow(ConvCase):
    in_shapes = (2, 1, 9)
    arguments = {"kernel": (1, 3), "stride": (1, 2)}
    geometry = {"kernel": (1, 3), "stride": (1, 2), "pads": ((0, 0), (1, 1))}


def run(layer, x, dy=None, **params):
    """Forward, and backward for ``dy``, with the parameters given."""
    layer.build(x.shape[1:])
    for suffix, value in params.items():
        layer.params[suffix].retype(value)
    ctx = Context(numpy_ops, np.random.default_rng(0),
                  {suffix: p.value for suffix, p in layer.params.items()}, True)  # fmt: skip
    y = layer.forward(ctx, x)
    return (y, None, None) if dy is None else (y, *layer.backward(ctx, dy))


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


def test_output_shape_and_parameters_of_singa():
    layer = Conv2D("conv", 64, 3, 1, input_sample_shape=(3, 224, 224))
    assert layer.get_output_sample_shape() == (64, 224, 224)
    assert layer.param_names() == ["conv/weight", "conv/bias"]
    assert [param.shape for param in layer.params.values()] == [(64, 27), (64,)]


def test_weights_are_channel_major_then_rows_then_columns():
    x = np.zeros((1, 2, 3, 4), np.float32)
    x[0, 1, 2, 3] = 1.0
    layer = Conv2D("conv", 1, kernel=(3, 4), border_mode="valid", use_bias=False)
    weight = np.arange(24, dtype=np.float32)[None]
    y, _, _ = run(layer, x, weight=weight)
    assert y.item() == weight[0, 1 * 12 + 2 * 4 + 3]


def test_default_weights_are_glorot_uniform_over_the_group():
    layer = Conv2D("conv", 128, 3, groups=2, input_sample_shape=(64, 8, 8))
    layer.get_output_sample_shape()
    weight, bias = layer.param_values()
    # 32·9 connections come into a unit and 64·9 leave one of the input.
    bound = np.sqrt(6 / (32 * 9 + 64 * 9))
    assert 0.98 * bound < np.abs(weight).max() <= bound
    assert weight.var() == pytest.approx(bound**2 / 3, rel=0.02)
    assert not bias.any()


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_any_geometry(size, kernel, stride, pad, dilation, groups, per_group, seed):
    """Forward by the formula; backward as the adjoint: <conv(x), dy> = <x, dx> = <w, dw>."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, groups * per_group[0], *size))
    outputs = groups * per_group[1]
    layer = Conv2D("conv", outputs, kernel, stride, border_mode="valid", pad=pad, use_bias=False,
                   dilation=dilation, groups=groups)  # fmt: skip
    ph, pw = pad or (0, 0)
    rows = size[0] + 2 * ph - dilation[0] * (kernel[0] - 1)
    columns = size[1] + 2 * pw - dilation[1] * (kernel[1] - 1)
    if rows < 1 or columns < 1:
        with pytest.raises(ShapeError, match="layer 'conv'"):
            layer.build(x.shape[1:])
        return
    out = (-(-rows // stride[0]), -(-columns // stride[1]))
    weight = rng.standard_normal((outputs, per_group[0] * kernel[0] * kernel[1]))
    dy = rng.standard_normal((2, outputs, *out))
    y, dx, grads = run(layer, x, dy, weight=weight)
    pads = ((ph, ph), (pw, pw))
    want = cross_correlation(x, weight, None, kernel, stride, pads, dilation, groups)
    np.testing.assert_allclose(y, want, rtol=1e-10, atol=1e-10)
    both = np.sum(want * dy)
    assert np.sum(x * dx) == pytest.approx(both, rel=1e-9, abs=1e-9)
    assert np.sum(weight * grads["weight"]) == pytest.approx(both, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("shape", "outputs", "options"),
    [
        ((4, 3, 11, 9), 8, {}),
        ((2, 16, 14, 14), 8, {"kernel": 1}),
        ((2, 3, 23, 20), 8, {"kernel": 7, "stride": 2, "pad": 3}),
        ((2, 6, 12, 10), 4, {"groups": 2, "stride": (2, 1), "pad": 1}),
        ((2, 8, 12, 10), 8, {"groups": 8, "pad": 1}),
        ((2, 4, 12, 13), 5, {"dilation": (2, 3), "pad": (2, 1), "stride": (1, 2)}),
        ((2, 40, 9, 5), 48, {"pad": 1}),
    ],
)
def test_agrees_with_pytorch(shape, outputs, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape).astype(np.float32)
    layer = Conv2D("conv", outputs, **{"pad": 0, **options})
    layer.build(shape[1:])
    fan_in = layer.params["weight"].shape[1]
    weight = (rng.standard_normal((outputs, fan_in)) / np.sqrt(fan_in)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)

    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    kernel = layer.window.kernel
    theirs = torch.nn.functional.conv2d(
        leaves[0], leaves[1].reshape(outputs, -1, *kernel), leaves[2],
        options.get("stride", 1), options.get("pad", 0), options.get("dilation", 1),
        options.get("groups", 1),
    )  # fmt: skip
    # Scaled so that every gradient is of order one, as the tolerance presumes.
    dy = (rng.standard_normal(theirs.shape) / np.sqrt(theirs[:, 0].numel())).astype(np.float32)
    theirs.backward(torch.tensor(dy))
    y, dx, grads = run(layer, x, dy, weight=weight, bias=bias)
    ours = [y, dx, grads["weight"], grads["bias"]]
    for got, want in zip(ours, [theirs.detach(), *(leaf.grad for leaf in leaves)], strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(("pad", "groups"), [((2, 1), 1), ((0, 3), 2)])
def test_padding_modes_are_those_of_pytorch(mode, pad, groups):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 4, 7, 6)).astype(np.float32)
    theirs = torch.nn.Conv2d(4, 6, 3, (1, 2), pad, groups=groups, padding_mode=mode)
    leaf = torch.tensor(x, requires_grad=True)
    wanted = theirs(leaf)
    dy = rng.standard_normal(wanted.shape).astype(np.float32)
    wanted.backward(torch.tensor(dy))
    weight, bias = (p.detach().numpy() for p in (theirs.weight, theirs.bias))
    layer = Conv2D("conv", 6, 3, (1, 2), pad=pad, groups=groups, padding_mode=mode)
    y, dx, grads = run(layer, x, dy, weight=weight.reshape(6, -1), bias=bias)
    peers = [wanted.detach(), leaf.grad, theirs.weight.grad.reshape(6, -1), theirs.bias.grad]
    for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def test_images_come_out_as_views_of_channels_last_memory():
    """So that the next layer's kernels need no transposition."""
    x = np.ones((2, 3, 6, 5), np.float32)
    y, dx, _ = run(Conv2D("conv", 4), x, np.ones((2, 4, 6, 5), np.float32))
    assert y.shape == (2, 4, 6, 5)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert dx.shape == x.shape
    assert dx.strides[1] == dx.itemsize


def test_channels_last_input_gives_the_same(rng):
    x = rng.standard_normal((2, 3, 6, 5))
    dy = rng.standard_normal((2, 4, 6, 5))
    weight = rng.standard_normal((4, 27))
    outcomes = []
    for order in (
        np.ascontiguousarray,
        lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
    ):
        y, dx, grads = run(Conv2D("conv", 4), order(x), order(dy), weight=weight,
                           bias=np.zeros(4))  # fmt: skip
        outcomes.append([y, dx, grads["weight"], grads["bias"]])
    for a, b in zip(*outcomes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"filters": 0}, "filters"),
        ({"filters": 2.5}, "filters"),
        ({"filters": True}, "filters"),
        ({"filters": 4, "groups": 0}, "groups"),
        ({"filters": 4, "groups": "2"}, "groups"),
        ({"filters": 4, "kernel_size": 0}, "kernel_size"),
        ({"filters": 4, "kernel_size": (3,)}, "kernel_size"),
        ({"filters": 4, "kernel_size": (3, 3, 3)}, "kernel_size"),
        ({"filters": 4, "kernel_size": (3, 1.5)}, "kernel_size"),
        ({"filters": 4, "kernel_size": None}, "kernel_size"),
        ({"filters": 4, "strides": 0}, "strides"),
        ({"filters": 4, "strides": (1, -1)}, "strides"),
        ({"filters": 4, "dilation_rate": 0}, "dilation_rate"),
        ({"filters": 4, "padding": -1}, "padding"),
        ({"filters": 4, "padding": None}, "padding"),
        ({"filters": 4, "padding": (1, (0, -1))}, "padding"),
        ({"filters": 4, "padding": (1, 1, 1)}, "padding"),
        ({"filters": 4, "padding_mode": "constant"}, "padding_mode"),
        ({"filters": 4, "padding": "causal"}, "padding"),
        ({"filters": 4, "padding": "full"}, "padding"),
        ({"filters": 4, "data_format": "NHWC"}, "data_format"),
        ({"filters": 4, "cudnn_prefer": "slowest"}, "cudnn_prefer"),
        ({"filters": 4, "workspace_byte_limit": 0}, "workspace_byte_limit"),
    ],
)
def test_refuses_bad_arguments(arguments, what):
    errors = (ArgumentError, UnknownNameError)
    with pytest.raises(errors, match=rf"layer 'conv', argument {what}: expected .*received"):
        Conv2D("conv", **arguments)


def test_singas_arguments_are_taken_by_name_and_nobody_sees_them():
    """By every layer with windows; in SINGA's places they would be taken for ours."""
    singas = {"cudnn_prefer": "autotune", "workspace_byte_limit": 2048}
    for kind, *rest in ((Conv2D, 4), (Conv1D, 4), (Conv3D, 4), (MaxPooling2D,), (AvgPooling1D,)):
        assert not singas.keys() & inspect.signature(kind).parameters.keys()
        layer = kind("c", *rest, **singas)
        assert not singas.keys() & layer.arguments.keys()
        assert layer.to_config() == kind("c", *rest).to_config()
        assert kind("c", *rest, data_format="NCHW").window == layer.window
    with pytest.raises(SignatureError, match="positional"):
        Conv2D("c", 4, 3, 1, "same", "fastest", 1024)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({}, (28, 28), r"\(channels, height, width\); received \(28, 28\)"),
        ({}, [(1, 4, 4), (1, 4, 4)], r"one input of sample shape"),
        (
            {"border_mode": "valid"},
            (1, 2, 9),
            r"kernel \(3, 3\).*received sample shape \(1, 2, 9\)",
        ),
        ({"border_mode": "valid", "dilation": 4}, (1, 8, 9), r"dilation \(4, 4\)"),
        ({"groups": 2}, (3, 8, 8), r"divisible by groups=2; received 3 channels and filters=4"),
        ({"groups": 3}, (3, 8, 8), r"divisible by groups=3; received 3 channels and filters=4"),
        ({}, (0, 8, 8), r"each at least 1"),
        ({"padding_mode": "reflect", "pad": 3}, (1, 3, 5), r"at least the size of the border"),
    ],
)
def test_refuses_samples_that_do_not_fit(options, shape, message):
    layer = Conv2D("conv", 4, **options)
    with pytest.raises(ShapeError, match=f"layer 'conv'.*{message}"):
        layer.build(shape)
    assert layer.params == {}
    assert layer.out_shapes is None
    assert Conv2D("conv", 4).build((1, 8, 8)) == (4, 8, 8)
