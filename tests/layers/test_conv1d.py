"""Conv1D, Conv1DTranspose and DepthwiseConv1D."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Input, layers
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import (
    LSTM,
    AvgPooling1D,
    Conv1D,
    Conv1DTranspose,
    Dense,
    DepthwiseConv1D,
    Dropout,
    Embedding,
    Flatten,
    MaxPooling1D,
    MultiHeadAttention,
)
from singanet.loss import MeanSquaredError
from singanet.net import FeedForwardNet
from singanet.optimizer import SGD
from singanet.testing import LayerCase, check_net_gradients


def by_loops(x, weight, stride, pads, dilation=1, groups=1):
    """x (N, C, L), weight (F, C/groups, k)."""
    x = np.pad(x, ((0, 0), (0, 0), pads))
    f, cg, k = weight.shape
    length = (x.shape[2] - dilation * (k - 1) - 1) // stride + 1
    y = np.zeros((len(x), f, length))
    for out in range(f):
        first = out // (f // groups) * cg
        for i in range(length):
            for tap in range(k):
                column = x[:, first : first + cg, i * stride + tap * dilation]
                y[:, out, i] += column @ weight[out, :, tap]
    return y


class TestConv1D(LayerCase):
    in_shapes = (2, 7)

    def make(self):
        return Conv1D("conv", 4)

    def expected(self, params, x):
        weight = params["weight"].reshape(4, 2, 3)
        return by_loops(x, weight, 1, (1, 1)) + params["bias"][:, None]


class TestConv1DOfSingasShape(LayerCase):
    """(L,) is one channel; pad and stride are the user's, which SINGA dropped."""

    in_shapes = (9,)

    def make(self):
        return Conv1D("conv", 3, kernel=4, stride=2, pad=2)

    def expected(self, params, x):
        weight = params["weight"].reshape(3, 1, 4)
        return by_loops(x[:, None], weight, 2, (2, 2)) + params["bias"][:, None]


class TestConv1DInGroups(LayerCase):
    in_shapes = (4, 9)

    def make(self):
        return Conv1D(
            "conv", 6, kernel=2, border_mode="valid", dilation=3, groups=2, use_bias=False
        )

    def expected(self, params, x):
        return by_loops(x, params["weight"].reshape(6, 2, 2), 1, (0, 0), dilation=3, groups=2)


class TestConv1DOfAnEvenKernel(LayerCase):
    in_shapes = (1, 5)

    def make(self):
        return Conv1D("conv", 1, kernel=2, use_bias=False)

    def expected(self, params, x):
        return by_loops(x, params["weight"].reshape(1, 1, 2), 1, (0, 1))


class TestConv1DCausal(LayerCase):
    in_shapes = (2, 7)

    def make(self):
        return Conv1D("conv", 4, border_mode="causal", dilation=2)

    def expected(self, params, x):
        weight = params["weight"].reshape(4, 2, 3)
        return by_loops(x, weight, 1, (4, 0), dilation=2) + params["bias"][:, None]


class TestConv1DCircular(LayerCase):
    in_shapes = (2, 7)

    def make(self):
        return Conv1D("conv", 4, pad=(1, 3), padding_mode="circular")

    def expected(self, params, x):
        x = np.concatenate([x[..., -1:], x, x[..., :3]], axis=-1)
        return by_loops(x, params["weight"].reshape(4, 2, 3), 1, (0, 0)) + params["bias"][:, None]


def test_causal_is_that_of_keras():
    keras = pytest.importorskip("keras")
    theirs = keras.layers.Conv1D(3, 4, strides=2, padding="causal")
    x = np.random.default_rng(0).standard_normal((2, 9, 5)).astype(np.float32)
    wanted = keras.ops.convert_to_numpy(theirs(x))
    ours = Conv1D("conv", 3, 4, 2, "causal")
    ours.build((5, 9))
    kernel, bias = theirs.get_weights()
    ours.params["weight"].value[...] = kernel.transpose(2, 1, 0).reshape(3, -1)
    ours.params["bias"].value[...] = bias
    _, y = LayerCase().run(ours, x.transpose(0, 2, 1), train=False)
    np.testing.assert_allclose(y.transpose(0, 2, 1), wanted, rtol=1e-5, atol=1e-5)


def test_shapes_of_singas_own_test():
    layer = Conv1D("conv", 64, 3, input_sample_shape=(224,))
    assert layer.get_output_sample_shape() == (64, 224)
    assert [(p.name, p.shape) for p in layer.params.values()] == [
        ("conv/weight", (64, 3)),
        ("conv/bias", (64,)),
    ]


def test_two_layers_without_specs_have_names_of_their_own():
    # SINGA's default dicts were shared and changed.
    names = [Conv1D(name, 2, input_sample_shape=(5,)) for name in ("a", "b")]
    for layer in names:
        layer.get_output_sample_shape()
    assert names[1].param_names() == ["b/weight", "b/bias"]


def test_layers_follow_each_other_in_a_net(rng):
    net = FeedForwardNet(seed=0)
    net.add(Conv1D("conv1", 3, 3, input_sample_shape=(12,)))
    net.add(MaxPooling1D("max", 2, 2, border_mode="valid"))
    net.add(Conv1D("conv2", 2, 3, stride=2))
    net.add(AvgPooling1D("avg", 3, 1))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 2))
    check_net_gradients(net, rng.standard_normal((3, 12)))


@pytest.mark.parametrize(
    ("what", "value"),
    [("kernel_size", (1, 3)), ("kernel_size", 0), ("kernel_size", "3"), ("strides", 0),
     ("strides", None), ("padding", -1), ("padding", (0, 1, 2)), ("padding", ((0, 1), 2)),
     ("dilation_rate", 1.5)],
)  # fmt: skip
def test_refuses_bad_arguments(what, value):
    with pytest.raises(ArgumentError, match=rf"'conv', argument {what}: expected an int of at"):
        Conv1D("conv", 2, **{what: value})


@pytest.mark.parametrize("shape", [(), (2, 3, 4), (0, 5), (2, 0), [(2, 5), (2, 5)]])
def test_refuses_what_is_no_sequence(shape):
    with pytest.raises(ShapeError, match=r"layer 'conv': expected .*\(channels, length\)"):
        Conv1D("conv", 2).build(shape)


def test_refuses_a_sequence_shorter_than_the_kernel():
    with pytest.raises(
        ShapeError, match=r"'conv': expected sequences at least as long as the kernel 5.*\(2, 4\)"
    ):
        Conv1D("conv", 2, 5, border_mode="valid").build((2, 4))


@pytest.mark.parametrize(("stride", "pad", "dilation", "groups"), [(1, 1, 1, 1), (2, 3, 2, 4)])
def test_equals_pytorch(stride, pad, dilation, groups, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: Conv1D("conv", 8, 5, stride, pad=pad, dilation=dilation, groups=groups)
    case.in_shapes = (4, 30)
    layer = case.built()
    x = rng.standard_normal((6, 4, 30)).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dx, grads = layer.backward(ctx, dy)
    w, b = layer.param_values()
    xt, wt, bt = (
        torch.from_numpy(a).requires_grad_() for a in (x, w.reshape(8, 4 // groups, 5), b)
    )
    yt = torch.nn.functional.conv1d(xt, wt, bt, stride, pad, dilation, groups)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, wt.grad.reshape(8, -1), bt.grad]
    for got, want in zip([y, dx, grads["weight"], grads["bias"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


class TestConv1DTranspose(LayerCase):
    in_shapes = (2, 4)

    def make(self):
        return Conv1DTranspose("up", 3, 4, 2, pad=(1, 0))

    def expected(self, params, x):
        weight, full = params["weight"].reshape(2, 3, 4), np.zeros((len(x), 3, 10))
        for i in range(4):
            full[:, :, 2 * i : 2 * i + 4] += np.einsum("nc,cfk->nfk", x[:, :, i], weight)
        return full[:, :, 1:] + params["bias"][:, None]


class TestDepthwiseConv1D(LayerCase):
    in_shapes = (2, 6)

    def make(self):
        return DepthwiseConv1D("depth", 3, border_mode="causal", depth_multiplier=2)

    def expected(self, params, x):
        parts = [by_loops(x[:, c : c + 1], params["weight"].reshape(2, 2, 1, 3)[c], 1, (2, 0))
                 for c in (0, 1)]  # fmt: skip
        return np.concatenate(parts, axis=1) + params["bias"][:, None]


@pytest.mark.parametrize(("stride", "pad", "extra", "dilation"), [(1, 1, 0, 2), (3, 0, 2, 1)])
def test_the_transpose_equals_pytorch(stride, pad, extra, dilation, rng):
    torch = pytest.importorskip("torch")
    layer = Conv1DTranspose("up", 6, 3, stride, pad=pad, output_padding=extra, dilation=dilation)
    layer.build((4, 2))
    x = rng.standard_normal((5, 4, 2)).astype(np.float32)
    layer.params["weight"].value[...] = rng.standard_normal((4, 18))
    weight, bias = map(torch.tensor, layer.param_values())
    _, y = LayerCase().run(layer, x, train=False)
    wanted = torch.nn.functional.conv_transpose1d(
        torch.tensor(x), weight.reshape(4, 6, 3), bias, stride, pad, extra, 1, dilation
    )
    np.testing.assert_allclose(y, wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_sequences_of_one_channel_go_through():
    for layer in (Conv1DTranspose("up", 2, stride=2), DepthwiseConv1D("d", depth_multiplier=2)):
        layer.build((4,))
        _, y = LayerCase().run(layer, np.ones((3, 4), np.float32), train=False)
        assert y.shape == (3, *layer.get_output_sample_shape())


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


OF_STEPS = {
    "Conv1D": lambda **form: layers.Conv1D("it", 4, 3, 2, pad=(1, 0), **form),
    "Conv1DTranspose": lambda **form: layers.Conv1DTranspose("it", 2, 3, 2, **form),
    "DepthwiseConv1D": lambda **form: layers.DepthwiseConv1D("it", 2, depth_multiplier=2, **form),
    "SeparableConv1D": lambda **form: layers.SeparableConv1D("it", 4, border_mode="causal", **form),
    "MaxPooling1D": lambda **form: layers.MaxPooling1D("it", 2, **form),
    "AvgPooling1D": lambda **form: layers.AvgPooling1D("it", 3, 2, **form),
    "AdaptiveAvgPooling1D": lambda **form: layers.AdaptiveAvgPooling1D("it", 4, **form),
    "AdaptiveMaxPooling1D": lambda **form: layers.AdaptiveMaxPooling1D("it", 4, **form),
    "GlobalAvgPooling1D": lambda **form: layers.GlobalAvgPooling1D("it", **form),
    "GlobalMaxPooling1D": lambda **form: layers.GlobalMaxPooling1D("it", keepdims=True, **form),
    "Pad": lambda **form: layers.Pad("it", [(2, 1)], 0.5, **form),
    "Cropping": lambda **form: layers.Cropping("it", [(2, 1)], **form),
}
LAST = {"data_format": "channels_last"}


@pytest.mark.parametrize("make", OF_STEPS.values(), ids=OF_STEPS)
def test_channels_last_are_channels_first_turned_and_back(make, tmp_path, rng):
    x = rng.normal(size=(2, 7, 6)).astype(np.float32)
    start = Dense("start", 6, input_sample_shape=(7, 6))
    last = FeedForwardNet([start, make(**LAST), Flatten("flat"), Dense("out", 3)], seed=1)
    transposed = [layers.Permute("there", (2, 1)), make(data_format="channels_first")]
    if len(last["it"].out_shapes) == 2:
        transposed.append(layers.Permute("back", (2, 1)))
    first = FeedForwardNet(
        [
            Dense("start", 6, input_sample_shape=(7, 6)),
            *transposed,
            Flatten("flat"),
            Dense("out", 3),
        ],
        seed=1,
    )
    for a, b in zip(first.params(), last.params(), strict=True):
        a.value[...] = b.value
    y = rng.normal(size=(2, 3)).astype(np.float32)
    first.loss, last.loss, sgd = MeanSquaredError(), MeanSquaredError(), SGD(lr=0.1)
    for _ in range(3):  # the third is recorded
        for net in (first, last):
            net.step(x, y, sgd)
        for a, b in zip(first.params(), last.params(), strict=True):
            np.testing.assert_allclose(a.value, b.value, 1e-4, 1e-6, err_msg=a.name)
    wanted = first.forward(False, x)
    np.testing.assert_allclose(last.forward(False, x), wanted, 1e-4, 1e-6)
    again = FeedForwardNet.from_config(last.to_config())
    assert again["it"].data_format == "channels_last"
    onnx = pytest.importorskip("singanet.onnx")
    onnx.save(last, str(tmp_path / "net.onnx"))
    loaded = onnx.load(str(tmp_path / "net.onnx"))
    np.testing.assert_allclose(loaded.forward(False, x), wanted, 1e-4, 1e-6)


STEPS = [
    [Embedding("before", 9, 6, input_sample_shape=(7,))],
    [LSTM("before", 6, input_sample_shape=(7, 6))],
    [LSTM("before", 6, input_sample_shape=(7, 6)), Dropout("drop"), Dense("more", 6)],
    [Conv1D("before", 6, 3, input_sample_shape=(7, 6), **LAST)],
    [MultiHeadAttention("before", 2, 3, input_sample_shape=(7, 6))],
]


@pytest.mark.parametrize("before", STEPS, ids=lambda before: type(before[0]).__name__)
@pytest.mark.parametrize("make", OF_STEPS.values(), ids=OF_STEPS)
def test_behind_steps_the_axis_has_to_be_said(make, before):
    with pytest.raises(ArgumentError, match="data_format.*behind 'before'.*channels_last"):
        FeedForwardNet([*before, make()])
    for form in ("channels_first", "channels_last"):
        FeedForwardNet([*before, make(data_format=form)])


def test_a_symbol_of_steps_is_refused_where_the_layer_is_called():
    ids = Input("ids", (7,), dtype="int64")
    layer = Conv1D("conv", 4)
    with pytest.raises(ArgumentError, match="data_format"):
        layer(Embedding("table", 9, 6)(ids))
    assert not layer.params


def test_descriptions_without_a_format_have_channels_first():
    net = FeedForwardNet(
        [Embedding("table", 9, 6, input_sample_shape=(7,)), Conv1D("c", 4, data_format="NCHW")]
    )
    config = net.to_config()
    del config["layers"][-1]["arguments"]["data_format"]
    assert FeedForwardNet.from_config(config)["c"].out_shapes == (4, 6)


def test_only_sequences_have_channels_last():
    with pytest.raises(ArgumentError, match="transpose the images"):
        layers.Conv2D("conv", 4, **LAST)
