"""What the catalogue's layers do not say: other arguments, other inputs, by several opsets."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse

from singanet import FeedForwardNet, Input, layers
from singanet.errors import ArgumentError
from singanet.layers.elementwise import OPERATIONS
from singanet.onnx import save
from singanet.ops.interface import ACTIVATIONS
from tests.onnx.runtime import drawn, expect_same, filled, floats, ran

reference = pytest.importorskip("onnx.reference")

IMAGE, SEQUENCE, LINE, VOLUME = (4, 7, 6), (5, 6), (9,), (2, 3, 5, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def check(layer, shapes, path, *opsets):
    net = drawn(layer, shapes)
    for opset in opsets or (17,):
        model = expect_same(net, floats(shapes), path, opset)
    return model


def built(inputs, made, seed=1):
    """The net of those symbols, with parameters that differ."""
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    net = FeedForwardNet(inputs=inputs, outputs=outputs, seed=0)
    return filled(net, np.random.default_rng(seed))


def names_of(model):
    return [node.op_type for node in model.graph.node]


def it(kind, *given, **more):
    """A call that makes a layer called "it", with its arguments as the test's name."""
    return pytest.param(lambda: kind("it", *given, **more), id=f"{kind.__name__} {given} {more}")


LATER = {"mish": (18,), "gelu": (20,), "gelu_tanh": (20,)}
ELEMENT_WISE = [
    *((it(layers.Activation, m), [SEQUENCE], 17, *LATER.get(m, ())) for m in sorted(ACTIVATIONS)),
    *((it(layers.Activation, m, alpha=0.3), [SEQUENCE])
      for m in ("elu", "celu", "leaky_relu", "softcap")),
    (it(layers.Add), [(3, 4)] * 3),
    (it(layers.Add), [(3, 4), (1, 4)]),
    (it(layers.Average), [(3, 4), (3, 1), (3, 4)]),
    (it(layers.Clip, low=-0.5), [(4,)]),
    (it(layers.Clip, high=0.5), [(4,)]),
    (it(layers.Clip, -0.25, 0.5), [(4,)]),
    (it(layers.GLU, axis=1), [(4, 3)]),
    (it(layers.GatedUnit, 5, mode="gelu_tanh", use_bias=True), [(4, 3)]),
    (it(layers.LogSoftmax, -1), [(4, 3)]),
    (it(layers.Maximum), [(4,)] * 3),
    (it(layers.Merge), [(4,)] * 4),
    (it(layers.Multiply), [(4, 1), (4, 3), (1, 3)]),
    (it(layers.PReLU, channel_shared=True), [IMAGE]),
    (it(layers.PReLU), [LINE]),
    (it(layers.Power, 2), [(4,)]),
    (it(layers.Scale, use_bias=False), [IMAGE]),
    (it(layers.Scale, factor=0.5), [IMAGE]),
    (it(layers.Scale, factor=-2.0, offset=1.5), [()]),
    (it(layers.Softmax, 2), [(4, 3)]),
    (it(layers.Dense, 3, W_transpose=True), [(5,)]),
    (it(layers.Dense, 3, use_bias=False), [(5,)]),
    (it(layers.Dense, 3, W_transpose=True), [(2, 3, 5)]),
    (it(layers.Weight, (2, 3)), [(5,)]),
]  # fmt: skip
OVER_IMAGES = (layers.Conv2D, layers.DepthwiseConv2D, layers.Conv2DTranspose, layers.MaxPooling2D,
               layers.AvgPooling2D)  # fmt: skip
COUNTED = (layers.Conv2D, layers.Conv2DTranspose)
IMAGE_WINDOWS = [
    {}, {"border_mode": "valid"}, {"kernel": 4, "stride": 1},
    {"kernel": (2, 3), "stride": (3, 1), "pad": (1, 0)},
    {"kernel": 4, "stride": 3, "border_mode": "same"},
]  # fmt: skip
STEP_WINDOWS = [{}, {"kernel": 4, "stride": 1}, {"kernel": 2, "pad": 1}]
UP, COUNT = {"ceil_mode": True}, {"count_include_pad": True}
WINDOWS = [
    *((it(kind, *(6,) * (kind in COUNTED), **given), [IMAGE])
      for kind, given in product(OVER_IMAGES, IMAGE_WINDOWS)),
    *((it(kind, 6, **given), [IMAGE]) for kind, given in product(
        COUNTED, ({"groups": 2, "dilation": (2, 1)},
                  {"use_bias": False, "dilation": 2, "kernel": 2}))),
    *((it(kind, *more, **given), [shape]) for (kind, *more), shape, given in product(
        ((layers.Conv1D, 4), (layers.MaxPooling1D,), (layers.AvgPooling1D,)),
        ((4, 9), (9,)), STEP_WINDOWS)),
    # Pools that round up and count their border.
    *((it(layers.MaxPooling2D, **given), [IMAGE], 17, 19) for given in (
        {"kernel": 3, "stride": 2, "pad": ((1, 0), (0, 1))},
        {"kernel": 2, "stride": 3, "pad": 0, **UP},
        {"kernel": 2, "dilation": 3, "stride": 1, "pad": 2},
        {"kernel": 2, "dilation": 2, "stride": 3, **UP})),
    *((it(layers.AvgPooling2D, **given), [IMAGE], 17, 19) for given in (
        {"kernel": 3, "stride": 2, **COUNT}, {"kernel": 3, "stride": 3, "pad": 1, **UP},
        {"kernel": 3, "stride": 3, "pad": (0, 1), **UP, **COUNT},
        {"kernel": 2, "stride": 4, "pad": 0, **UP, **COUNT})),
    *((it(layers.MaxPooling1D, kernel=2, stride=3, pad=0, **UP), [s]) for s in ((4, 8), LINE)),
    *((it(layers.AvgPooling1D, kernel=3, pad=(0, 1), stride=2, **UP, **COUNT), [s])
      for s in ((4, 8), LINE)),
    *((it(layers.Conv2D, 3, 3, pad=((1, 2), (0, 1)), padding_mode=mode), [IMAGE])
      for mode in ("reflect", "replicate", "circular")),
    *((it(layers.Conv1D, 3, 3, pad=(2, 1), padding_mode=mode), [LINE], 17, 19)
      for mode in ("reflect", "replicate", "circular")),
    *((it(layers.Pad, ((0, 1), (2, 0)), mode=mode), [IMAGE], 17, 19)
      for mode in ("reflect", "replicate", "circular")),
    (it(layers.Conv3D, 4, (1, 2, 3), stride=(1, 2, 1), groups=2), [(4, 3, 5, 4)]),
    (it(layers.Conv3D, 3, 2, dilation=(1, 2, 1), padding_mode="replicate"), [VOLUME]),
    (it(layers.MaxPooling3D, 2, pad=0, **UP), [VOLUME]),
    (it(layers.AvgPooling3D, 3, 2, **COUNT), [VOLUME]),
    (it(layers.DepthwiseConv1D, 2, depth_multiplier=2, border_mode="causal"), [LINE]),
    (it(layers.DepthwiseConv1D, 3, stride=2, use_bias=False), [(4, 9)]),
    (it(layers.DepthwiseConv2D, 2, depth_multiplier=3, use_bias=False, dilation=2), [IMAGE]),
    (it(layers.Conv1D, 3, 3, border_mode="causal", dilation=2), [(4, 9)]),
    (it(layers.Conv1D, 4, dilation=2, groups=2, use_bias=False), [(4, 9)]),
    (it(layers.Conv1DTranspose, 3, 3, stride=2, groups=1), [LINE]),
    (it(layers.Conv1DTranspose, 4, 4, stride=3, groups=2, pad=1), [(2, 9)]),
    (it(layers.Conv2DTranspose, 3, stride=3, pad=0, output_padding=(2, 1)), [IMAGE]),
    (it(layers.Conv3DTranspose, 4, 3, stride=(2, 1, 2), groups=2), [(2, 3, 4, 5)]),
    (it(layers.SeparableConv1D, 5, 3, stride=2), [LINE]),
    (it(layers.SeparableConv2D, 5, 2, depth_multiplier=2, use_bias=False), [IMAGE]),
    (it(layers.SeparableConv2D, 5, 3, stride=2, dilation=(1, 2)), [IMAGE]),
    (it(layers.AdaptiveMaxPooling2D, (5, 3)), [IMAGE]),
    *((it(layers.Resize, (3, 5), interpolation=mode, coordinates=at), [IMAGE], 17, 19)
      for mode in ("linear", "cubic", "nearest") for at in ("align_corners", "half_pixel")),
    (it(layers.Resize, (3, None), antialias=True, exclude_outside=True), [IMAGE], 19),
    (it(layers.Resize, (13, 9), scales=(1.9, 1.5), coordinates="asymmetric"), [IMAGE]),
    *((it(layers.Upsampling2D, size, interpolation=mode), [IMAGE], 17, 19)
      for size in (2, (3, 1)) for mode in ("nearest", "bilinear")),
]  # fmt: skip
NORMS = [
    *((it(layers.LRN, 3, alpha=0.7, beta=0.6, k=2.0), [s]) for s in ((6,), (6, 5), (6, 4, 3))),
    (it(layers.BatchNormalization, center=False), [(3, 5)], 17, 23),
    (it(layers.BatchNormalization, axis=-1, scale=False), [(4, 3, 5)], 17, 23),
    (it(layers.BatchNormalization, axis=-1), [(5,)], 17, 23),
    (it(layers.BatchNormalization, momentum=0.2, epsilon=1e-3), [(5,)], 17, 23),
    (it(layers.BatchNormalization), [IMAGE], 17, 23),
    (it(layers.LayerNorm, axis=1), [SEQUENCE], 17, 23),
    (it(layers.LayerNorm, axis=-2, affine=False, epsilon=1e-3), [SEQUENCE], 17, 23),
    (it(layers.RMSNorm, axis=1), [SEQUENCE], 17, 23),
    (it(layers.RMSNorm, offset=1.0), [SEQUENCE], 17, 23),
    (it(layers.RMSNorm, affine=False, epsilon=1e-3), [SEQUENCE], 17, 23),
    (it(layers.GroupNorm, 2, affine=False), [IMAGE], 17, 23),
    (it(layers.GroupNorm, 2), [(6,)], 17, 23),
    (it(layers.GroupNorm, 4), [IMAGE], 17, 23),
    (it(layers.InstanceNorm, affine=False), [IMAGE], 17, 23),
    (it(layers.InstanceNorm), [(3, 5)], 17, 23),
    (it(layers.L2Norm, epsilon=0.1), [SEQUENCE], 17, 23),
]  # fmt: skip
MOVED = [
    (it(layers.Concat, 2), [(2, 3), (2, 1), (2, 2)]),
    (it(layers.Cropping, 1), [IMAGE]),
    (it(layers.Cropping, ((0, 1), (2, 0))), [IMAGE]),
    (it(layers.Cropping, 0), [IMAGE]),
    (it(layers.EndPadding, 1, -3.5), [IMAGE]),
    (it(layers.Expand, (3, -1, 2)), [(1, 4, 1)]),
    (it(layers.Flatten), [()]),
    *((it(layers.Index, index), [(4, 3)]) for index in (
        [-1], [(None, None, None), (None, None, -1)], [(3, 0, -2), 1], [(-3, -1, None)],
        [(None, None, None)])),
    (it(layers.MatMul, transpose_a=True), [(3, 4), (3, 2)]),
    (it(layers.MatMul), [(2, 3, 4), (2, 4, 5)]),
    (it(layers.Pad, 2, 1.5), [LINE]),
    (it(layers.Permute, (3, 1, 2)), [IMAGE]),
    (it(layers.Reduce, "mean", 1), [IMAGE]),
    (it(layers.Reduce, "sum", (-1, 1), True), [IMAGE]),
    (it(layers.Reduce, "min"), [IMAGE]),
    *((it(layers.Reduce, mode, (1, 3), True), [IMAGE], 17, 18)
      for mode in ("mean", "sum", "min", "max")),
    (it(layers.RepeatVector, 2), [(3, 2)]),
    (it(layers.Reshape, (-1, 6)), [IMAGE]),
    (it(layers.Slice, 2, [1, 3]), [(4, 6)]),
    (it(layers.TimeDistributed, layers.Conv2D("c", 2)), [(3, *IMAGE)]),
    (it(layers.TimeDistributed, layers.Dense("c", 2, W_transpose=True)), [SEQUENCE]),
    (it(layers.TimeDistributed, layers.Dense("c", 2, use_bias=False)), [(2, 3)]),
    (it(layers.TimeDistributed, layers.TimeDistributed("steps", layers.Dense("c", 2))),
     [(2, 3, 4)]),
    (it(layers.PositionEmbedding, 9), [SEQUENCE]),
    (it(layers.PositionEmbedding), [SEQUENCE]),
    (it(layers.PositionEmbedding, 9, first=2), [SEQUENCE]),
    (it(layers.SinusoidalPosition), [(5, 7)]),
    (it(layers.SinusoidalPosition, halves=True), [(5, 7)]),
]  # fmt: skip
BOTH = {"bidirectional": True}
RECURRENT = [
    *((it(layers.RNN, 3, mode, **given), [SEQUENCE]) for mode, given in product(
        ("lstm", "gru", "gru_before", "tanh", "relu"), (
            {"num_stacks": 2, **BOTH}, {"num_stacks": 3, "return_sequences": False},
            {"return_sequences": False, **BOTH},
            {"num_stacks": 2, "return_state": True, "dropout": 0.5, **BOTH},
            {"return_state": True, "return_sequences": False, "use_bias": False},
            {"num_stacks": 2, "go_backwards": True, "return_state": True},
            {"num_stacks": 2, "go_backwards": True, "return_state": True, **BOTH},
            {"go_backwards": True, "return_sequences": False, "use_bias": False}))),
    *((it(layers.RNN, 6, mode, num_stacks=2, input_mode="skip", **BOTH), [SEQUENCE])
      for mode in ("lstm", "gru", "tanh")),
]  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 300}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 3}
TURNED = layers.RotaryEmbedding
ATTENTION = [
    (it(layers.MultiHeadAttention, 2, **given), shapes or [(5, 6)], 17, 23)
    for given, *shapes in (
        ({},),
        ({"causal": True, "use_bias": False, "dropout": 0.3},),
        ({"key_dim": 4, "value_dim": 5}, (3, 6), (5, 4)),
        ({"causal": True}, (3, 6), (5, 4), (5, 7)),
        ({"num_kv_heads": 1, "num_output": 3},),
        ({"causal": True, "window": 2, "scale": 0.6},),
        ({"window": 2},),
        ({"softcap": 0.7},),
        ({"segments": True, "softcap": 0.7}, (5, 6), (5,)),
        ({"segments": True}, (4, 6), (5, 6), (4,), (5,)),
        ({"causal": True, "return_weights": True, "key_dim": 4},),
        ({"rotary": TURNED(100.0), "key_dim": 6},),
        ({"rotary": TURNED(interleaved=True), "key_dim": 4, "num_kv_heads": 1}, (5, 6), (4, 3)),
        ({"relative": layers.RelativePositions(8, 5)},),
        ({"relative": layers.Alibi(), "causal": True}, (7, 6)),
        ({"relative": layers.RelativePositions(4, 3, False), "causal": True}, (7, 6)),
        ({"norm": layers.QueryKeyNorm(offset=1.0), "num_kv_heads": 1},),
        ({"norm": layers.QueryKeyNorm(joint=True), "use_bias": ("key",)}, (5, 6), (4, 3)),
        ({"rotary": TURNED(10.0, scaling=YARN), "key_dim": 6},),
        ({"rotary": TURNED(10.0, scaling=DYNAMIC), "key_dim": 6},),
        ({"rotary": TURNED(10.0, True, fraction=0.7), "key_dim": 6}, (5, 6), (4, 3)),
    )
]
FORMS = [*ELEMENT_WISE, *WINDOWS, *NORMS, *MOVED, *RECURRENT, *ATTENTION]


@pytest.mark.parametrize(
    ("make", "shapes", "opsets"),
    [pytest.param(*make.values, s, opsets, id=make.id) for make, s, *opsets in FORMS],
)
def test_a_layer_with_its_arguments(make, shapes, opsets, path):
    check(make(), shapes, path, *opsets)


def test_what_a_graph_calls_its_operators_arrays_and_rows(path):
    assert names_of(check(layers.RMSNorm("it"), [SEQUENCE], path, 23)) == ["RMSNormalization"]
    assert names_of(check(layers.GroupNorm("it", 2), [IMAGE], path, 21)) == ["GroupNormalization"]
    model = check(layers.Concat("it", 0), [(3,), (3,)], path)  # samples one after the other
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "it_rows"
    model = check(layers.Weight("it", (2, 3)), [(5,)], path)
    assert [tensor.name for tensor in model.graph.initializer][-1] == "it/weight"


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_elements_that_an_input_says(axis, path):
    x, places = Input("in0", (4, 3)), Input("places", (4, 3), "int32")
    spread = Input("spread", (1, 3) if axis == 1 else (4, 1))
    each, wide = layers.Gather("it", axis), layers.Gather("wide", axis)
    few = layers.Gather("few", axis, [-1, 0])
    net = built([x, places, spread], [each(x, places), wide(spread, places), few(x)])
    rng = np.random.default_rng(2)
    feed = floats([(4, 3)], 2) | {
        "places": rng.integers(-1, 1, (2, 4, 3), dtype=np.int32),
        "spread": rng.standard_normal((2, *spread.shape)).astype(np.float32),
    }
    expect_same(net, feed, path)


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("lstm", {"num_stacks": 2, "return_state": True, **BOTH}), ("gru", {"go_backwards": True}),
        ("gru", {"go_backwards": True, "return_state": True, **BOTH}),
        ("tanh", {"return_sequences": False}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("steps", [5, None])
def test_recurrent_layers_under_a_mask(mode, given, steps, path):
    x, mask = Input("in0", (steps, 4)), Input("mask", (steps,), "bool")
    net = built([x, mask], layers.RNN("it", 3, mode, **given)(x, mask))
    there = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1] * 5], bool)
    expect_same(net, floats([(5, 4)], 4) | {"mask": there}, path)


def test_masks_that_travel(path):
    ids = Input("ids", (5,))
    x = layers.Embedding("table", 6, 4, mask_index=0)(ids)
    x = layers.GRU("gru", 4)(layers.MultiHeadAttention("attention", 2, mask="boolean")(x))
    kinds = [layers.Reduce(mode, mode, axes=1, keepdims=mode == "min")
             for mode in ("mean", "max", "sum", "min")]  # fmt: skip
    net = FeedForwardNet(inputs=ids, outputs=[kind(x) for kind in kinds], seed=0)
    feed = {"ids": np.array([[1, 2, 0, 3, 0], [0, 0, 0, 0, 0], [5, 4, 3, 2, 1]])}
    expect_same(net, feed, path)
    x = Input("x", (5, 3))
    masked = layers.Masking("there", -1.0)(x)
    rows = layers.Reduce("all", "max")(layers.Activation("act", "tanh")(masked))
    net = FeedForwardNet(inputs=x, outputs=[rows, masked.mask], seed=0)
    values = floats([(5, 3)])["in0"]
    values[:, 1::2] = -1.0
    values[1, 3, 2] = 0.5
    expect_same(net, {"x": values}, path)


def test_what_has_no_form_is_refused_by_its_reason(path):
    def attention(**given):
        return layers.MultiHeadAttention("kept", 2, **given)

    for layer, shape, why in (
        (layers.GRU("kept", 3, stateful=2), (5, 4), r"'kept' \(GRU\): stateful=True"),
        (attention(rotary=TURNED(scaling=DYNAMIC)), (None, 8), "angles that depend on a free"),
        (attention(relative=layers.RelativePositions()), (None, 8), "positions with a free number"),
    ):
        x = Input("x", shape)
        with pytest.raises(ArgumentError, match=why):
            save(FeedForwardNet(inputs=x, outputs=layer(x), seed=0), path)


def with_lengths(layer, shapes, lengths, path, kind="float32"):
    """The layer with sequences of ``lengths``, which come last."""
    inputs = [Input(f"in{k}", shape) for k, shape in enumerate(shapes)]
    inputs.append(Input("lengths", (), None if kind == "float32" else kind))
    feed = floats([tuple(6 if axis is None else axis for axis in s) for s in shapes], len(lengths))
    expect_same(built(inputs, layer(*inputs)), {**feed, "lengths": np.array(lengths, kind)}, path)


@pytest.mark.parametrize("mode", ["lstm", "gru", "relu"])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent_layers_with_states_and_lengths(mode, states, path):
    count = (2 if mode == "lstm" else 1) * states
    layer = layers.RNN("it", 3, mode, num_stacks=2, return_state=True, **BOTH)
    with_lengths(layer, [(5, 4), *[(4, 3)] * count], [5, 2, 1], path)
    one = layers.RNN("it", 3, mode, return_sequences=False)
    with_lengths(one, [(None, 4), *[(1, 3)] * count], [6, 3], path, "int32")
    if mode == "lstm" and states:
        for both in (False, True):
            more = {"go_backwards": True, "return_state": True, "bidirectional": both}
            layer = layers.LSTM("it", 3, num_stacks=2, **more)
            with_lengths(layer, [(5, 4), *[((1 + both) * 2, 3)] * 2], [5, 0, 3], path)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 1, 4)])
@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_attention_under_a_mask(kind, shape, path):
    x, y, mask = Input("in0", (3, 6)), Input("in1", (4, 6)), Input("mask", shape)
    layer = layers.MultiHeadAttention("it", 2, mask=kind, causal=len(shape) == 2, num_kv_heads=1)
    net = built([x, y, mask], layer(x, y, mask), seed=0)
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, (3, *shape)).astype(np.float32)
    values[0] = 0
    if kind == "added":
        values = np.where(values == 0, -np.inf, rng.standard_normal(values.shape))
    expect_same(net, floats([(3, 6), (4, 6)]) | {"mask": values.astype(np.float32)}, path)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("steps", [6, None])
def test_attention_with_lengths_of_which_some_are_zero(causal, steps, path):
    layer = layers.MultiHeadAttention("it", 2, causal=causal)
    with_lengths(layer, [(steps, 6)], [6, 0, 2], path)
    two = layers.MultiHeadAttention("it", 3, causal=causal)
    with_lengths(two, [(steps, 6), (steps, 5)], [1, 6], path)


def test_sequences_of_any_length(path):
    ids = Input("ids", (None,))
    x = layers.Embedding("table", 9, 6)(ids)
    x = layers.SinusoidalPosition("waves")(layers.PositionEmbedding("places", 1000, first=2)(x))
    x = layers.MultiHeadAttention("attention", 2, causal=True, window=9)(x)
    x = layers.MultiHeadAttention("biased", 2, causal=True, relative=layers.Alibi())(x)
    x = layers.MultiHeadAttention("turned", 4, 2, num_kv_heads=2, rotary=TURNED())(x)
    x = layers.MultiHeadAttention("near", 2, window=7)(x)
    x = layers.TimeDistributed("norm", layers.BatchNormalization("bn"))(layers.LayerNorm("ln")(x))
    x = layers.TimeDistributed("scores", layers.Dense("fc", 4))(layers.GRU("gru", 5)(x))
    net = built(ids, x, seed=3)
    for steps in (1, 200):
        feed = {"ids": np.random.default_rng(0).integers(0, 9, (2, steps))}
        model = expect_same(net, feed, path)
    ports = (*model.graph.input, *model.graph.output)
    dims = [[d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim] for p in ports]
    assert dims == [["batch", "ids_1"], ["batch", "ids_1", 4]]


def test_padding_that_never_wins_a_maximum(path):
    x = Input("in0", (2, 4, 4))
    padded = layers.EndPadding("end", 1, float("-inf"))(x)
    pool = layers.MaxPooling2D("it", 3, 2, border_mode="valid")
    expect_same(FeedForwardNet(inputs=x, outputs=pool(padded)), floats([(2, 4, 4)]), path)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint16", "int64"])
def test_indices_of_any_type(kind, path):
    ids = Input("ids", (3, 2), kind)
    net = FeedForwardNet(inputs=ids, outputs=layers.Embedding("it", 5, 3)(ids), seed=0)
    expect_same(net, {"ids": np.array([[[0, 1], [2, 3], [4, 0]]], kind)}, path)


@pytest.mark.parametrize("how", ["==", "!=", ">", ">=", "<", "<="])
def test_comparisons_and_choices(how, path):
    a, b, ids = Input("in0", (4,)), Input("in1", (4,)), Input("ids", (4,), "int8")
    seen = layers.Compare("seen", how)(a, b)
    outputs = [
        seen, layers.Compare("half", how, 0.5)(ids), layers.Compare("one", how, 1)(ids),
        layers.Where("both")(layers.Compare("zero", how, 0.0)(a), a, b),
        layers.Where("filled", a=-3.5)(ids, b), layers.Where("masked", b=0.25)(seen, a),
        *(layers.Cast(f"to {kind}", kind)(x) for kind, x in (("int32", a), ("bool", b))),
        layers.Cast("floats")(seen),
    ]  # fmt: skip
    net = FeedForwardNet(inputs=[a, b, ids], outputs=outputs, seed=0)
    feed = floats([(4,), (4,)]) | {"ids": np.array([[0, 1, 2, -1]] * 3, np.int8)}
    feed["in1"][:, 2] = feed["in0"][:, 2]
    expect_same(net, feed, path)


@pytest.mark.parametrize("mode", sorted(OPERATIONS))
def test_functions_without_a_layer_of_their_own(mode, path):
    shapes = [(4, 3)] * OPERATIONS[mode].inputs
    net, feed = drawn(layers.Operation("it", mode), shapes), floats(shapes)
    for name, x in feed.items():
        # Where all of them have values.
        low = 1.1 if mode in ("acosh", "modulo", "remainder", "power") else 0.1
        feed[name] = np.abs(np.tanh(x)) * 0.8 + low if mode != "round" else 3 * x
    if mode in ("modulo", "remainder"):
        feed["in0"] = 5 * floats(shapes, seed=8)["in0"]
        feed["in1"][1] *= -1
    if mode in ("truncate", "floor", "ceil", "sign", "abs", "sin", "erf", "sinh"):
        feed["in0"] = 2 * floats(shapes)["in0"]
    expect_same(net, feed, path)


def test_sparse_inputs_are_fed_as_arrays(path):
    x = Input("x", (20,), sparse=True)
    net = FeedForwardNet(inputs=x, outputs=layers.Dense("fc", 3)(x), seed=0)
    save(net, path)
    rows = np.where(np.random.default_rng(0).random((4, 20)) < 0.2, 1.5, 0).astype(np.float32)
    want = net.forward(False, scipy.sparse.csr_array(rows))
    np.testing.assert_allclose(ran(path, {"x": rows})["fc"], want, atol=1e-6)


@pytest.mark.parametrize("opset", [17, 23])
def test_operators_of_the_double_type(opset, path):
    net = drawn(layers.MultiHeadAttention("it", 2, causal=True), [(4, 6)])
    net.as_type("float64")
    save(net, path, opset)
    x = np.random.default_rng(0).standard_normal((2, 4, 6))
    (found,) = reference.ReferenceEvaluator(str(path)).run(None, {"in0": x})
    np.testing.assert_allclose(found, net.forward(False, x), rtol=1e-12)
