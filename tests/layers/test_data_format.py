"""The axis of features of layers over steps: ``data_format``."""

import numpy as np
import pytest

from singanet import Input, layers
from singanet.errors import ArgumentError
from singanet.layers import LSTM, Conv1D, Dense, Dropout, Embedding, Flatten, MultiHeadAttention
from singanet.loss import MeanSquaredError
from singanet.net import FeedForwardNet
from singanet.optimizer import SGD

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
            Dense("start", 6, input_sample_shape=(7, 6)), *transposed, Flatten("flat"),
            Dense("out", 3)
        ],
        seed=1,
    )  # fmt: skip
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
