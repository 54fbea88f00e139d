"""What the catalogue's layers do not say: other arguments, other inputs, by several opsets."""

from __future__ import annotations

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

IMAGE, SEQUENCE, LINE = (4, 7, 6), (5, 6), (9,)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def check(layer, shapes, path, opsets=(17,), count=3):
    net = drawn(layer, shapes)
    for opset in opsets:
        model = expect_same(net, floats(shapes, count), path, opset)
    return model


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("mode", sorted(ACTIVATIONS))
def test_activations(mode, path):
    later = {"mish": 18, "gelu": 20, "gelu_tanh": 20}
    check(layers.Activation("act", mode), [SEQUENCE], path, sorted({17, later.get(mode, 17)}))
    if mode in ("elu", "celu", "leaky_relu", "softcap"):
        check(layers.Activation("act", mode, alpha=0.3), [SEQUENCE], path)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: layers.Add("it"), [(3, 4)] * 3),
        (lambda: layers.Add("it"), [(3, 4), (1, 4)]),
        (lambda: layers.Average("it"), [(3, 4), (3, 1), (3, 4)]),
        (lambda: layers.Clip("it", low=-0.5), [(4,)]),
        (lambda: layers.Clip("it", high=0.5), [(4,)]),
        (lambda: layers.Clip("it", -0.25, 0.5), [(4,)]),
        (lambda: layers.GLU("it", axis=1), [(4, 3)]),
        (lambda: layers.GatedUnit("it", 5, mode="gelu_tanh", use_bias=True), [(4, 3)]),
        (lambda: layers.LogSoftmax("it", -1), [(4, 3)]),
        (lambda: layers.Maximum("it"), [(4,)] * 3),
        (lambda: layers.Merge("it"), [(4,)] * 4),
        (lambda: layers.Multiply("it"), [(4, 1), (4, 3), (1, 3)]),
        (lambda: layers.PReLU("it", channel_shared=True), [IMAGE]),
        (lambda: layers.PReLU("it"), [LINE]),
        (lambda: layers.Power("it", 2), [(4,)]),
        (lambda: layers.Scale("it", use_bias=False), [IMAGE]),
        (lambda: layers.Scale("it", factor=0.5), [IMAGE]),
        (lambda: layers.Scale("it", factor=-2.0, offset=1.5), [()]),
        (lambda: layers.Softmax("it", 2), [(4, 3)]),
    ],
)
def test_functions_of_each_element(make, shapes, path):
    check(make(), shapes, path)


WINDOWS = [
    {},
    {"border_mode": "valid"},
    {"kernel": 4, "stride": 1},
    {"kernel": (2, 3), "stride": (3, 1), "pad": (1, 0)},
    {"kernel": 4, "stride": 3, "border_mode": "same"},
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    "kind",
    [layers.Conv2D, layers.DepthwiseConv2D, layers.Conv2DTranspose, layers.MaxPooling2D,
     layers.AvgPooling2D],
)  # fmt: skip
def test_windows_over_images(kind, window, path):
    count = (6,) if kind in (layers.Conv2D, layers.Conv2DTranspose) else ()
    check(kind("it", *count, **window), [IMAGE], path)


@pytest.mark.parametrize(
    "given", [{"groups": 2, "dilation": (2, 1)}, {"use_bias": False, "dilation": 2, "kernel": 2}]
)
@pytest.mark.parametrize("kind", [layers.Conv2D, layers.Conv2DTranspose])
def test_groups_and_dilations(kind, given, path):
    check(kind("it", 6, **given), [IMAGE], path)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (layers.MaxPooling2D, {"kernel": 3, "stride": 2, "pad": ((1, 0), (0, 1))}),
        (layers.MaxPooling2D, {"kernel": 2, "stride": 3, "ceil_mode": True, "pad": 0}),
        (layers.MaxPooling2D, {"kernel": 2, "dilation": 3, "stride": 1, "pad": 2}),
        (layers.MaxPooling2D, {"kernel": 2, "dilation": 2, "ceil_mode": True, "stride": 3}),
        (layers.AvgPooling2D, {"kernel": 3, "stride": 2, "count_include_pad": True}),
        (layers.AvgPooling2D, {"kernel": 3, "stride": 3, "pad": 1, "ceil_mode": True}),
        (layers.AvgPooling2D, {"kernel": 3, "stride": 3, "pad": (0, 1), "ceil_mode": True,
                               "count_include_pad": True}),
        (layers.AvgPooling2D, {"kernel": 2, "stride": 4, "pad": 0, "ceil_mode": True,
                               "count_include_pad": True}),
    ],
)  # fmt: skip
def test_pools_that_round_up_and_count_their_border(kind, given, path):
    check(kind("it", **given), [IMAGE], path, (17, 19))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (layers.MaxPooling1D, {"kernel": 2, "stride": 3, "ceil_mode": True, "pad": 0}),
        (layers.AvgPooling1D, {"kernel": 3, "pad": (0, 1), "ceil_mode": True,
                               "count_include_pad": True, "stride": 2}),
    ],
)  # fmt: skip
def test_pools_of_sequences_that_round_up(kind, given, path):
    check(kind("it", **given), [(4, 8)], path)
    check(kind("it", **given), [(9,)], path)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders_of_what_is_there(mode, path):
    check(layers.Conv2D("it", 3, 3, pad=((1, 2), (0, 1)), padding_mode=mode), [IMAGE], path)
    check(layers.Conv1D("it", 3, 3, pad=(2, 1), padding_mode=mode), [(9,)], path, (17, 19))
    check(layers.Pad("it", ((0, 1), (2, 0)), mode=mode), [IMAGE], path, (17, 19))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: layers.Conv3D("it", 4, (1, 2, 3), stride=(1, 2, 1), groups=2), (4, 3, 5, 4)),
        (lambda: layers.Conv3D("it", 3, 2, dilation=(1, 2, 1), padding_mode="replicate"),
         (2, 3, 5, 4)),
        (lambda: layers.MaxPooling3D("it", 2, ceil_mode=True, pad=0), (2, 3, 5, 4)),
        (lambda: layers.AvgPooling3D("it", 3, 2, count_include_pad=True), (2, 3, 5, 4)),
        (lambda: layers.DepthwiseConv1D("it", 2, depth_multiplier=2, border_mode="causal"), (9,)),
        (lambda: layers.DepthwiseConv1D("it", 3, stride=2, use_bias=False), (4, 9)),
        (lambda: layers.Conv1DTranspose("it", 3, 3, stride=2, groups=1), (9,)),
        (lambda: layers.Conv1DTranspose("it", 4, 4, stride=3, groups=2, pad=1), (2, 9)),
        (lambda: layers.SeparableConv2D("it", 5, 2, depth_multiplier=2, use_bias=False), IMAGE),
        (lambda: layers.Conv3DTranspose("it", 4, 3, stride=(2, 1, 2), groups=2), (2, 3, 4, 5)),
        (lambda: layers.SeparableConv1D("it", 5, 3, stride=2), (9,)),
        (lambda: layers.AdaptiveMaxPooling2D("it", (5, 3)), IMAGE),
        (lambda: layers.SeparableConv2D("it", 5, 3, stride=2, dilation=(1, 2)), IMAGE),
    ],
)  # fmt: skip
def test_volumes_and_other_convolutions(make, shape, path):
    check(make(), [shape], path)


def test_windows_that_see_the_past_alone(path):
    check(layers.Conv1D("it", 3, 3, border_mode="causal", dilation=2), [(4, 9)], path)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_elements_that_an_input_says(axis, path):
    x, places = Input("in0", (4, 3)), Input("places", (4, 3), "int32")
    spread = Input("spread", (1, 3) if axis == 1 else (4, 1))
    kinds = (
        layers.Gather("it", axis),
        layers.Gather("wide", axis),
        layers.Gather("few", axis, [-1, 0]),
    )
    outputs = [kinds[0](x, places), kinds[1](spread, places), kinds[2](x)]
    net = FeedForwardNet(inputs=[x, places, spread], outputs=outputs, seed=0)
    rng = np.random.default_rng(2)
    feed = floats([(4, 3)], 2) | {
        "places": rng.integers(-1, 1, (2, 4, 3), dtype=np.int32),
        "spread": rng.standard_normal((2, *spread.shape)).astype(np.float32),
    }
    expect_same(net, feed, path)


def test_depthwise_kernels_and_output_padding(path):
    layer = layers.DepthwiseConv2D("it", 2, depth_multiplier=3, use_bias=False, dilation=2)
    check(layer, [IMAGE], path)
    check(layers.Conv2DTranspose("it", 3, stride=3, pad=0, output_padding=(2, 1)), [IMAGE], path)


@pytest.mark.parametrize("shape", [(4, 9), (9,)])
@pytest.mark.parametrize("given", [{}, {"kernel": 4, "stride": 1}, {"kernel": 2, "pad": 1}])
def test_windows_over_sequences(shape, given, path):
    check(layers.Conv1D("it", 4, **given), [shape], path)
    check(layers.MaxPooling1D("it", **given), [shape], path)
    check(layers.AvgPooling1D("it", **given), [shape], path)


def test_groups_of_sequences(path):
    check(layers.Conv1D("it", 4, dilation=2, groups=2, use_bias=False), [(4, 9)], path)


@pytest.mark.parametrize("shape", [(6,), (6, 5), (6, 4, 3)])
def test_response_normalisation_of_any_rank(shape, path):
    check(layers.LRN("it", 3, alpha=0.7, beta=0.6, k=2.0), [shape], path)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [2, (3, 1)])
def test_upsampling(mode, size, path):
    check(layers.Upsampling2D("it", size, interpolation=mode), [IMAGE], path, (17, 19))


NORMS = [
    (lambda: layers.BatchNormalization("it", center=False), (3, 5)),
    (lambda: layers.BatchNormalization("it", axis=-1, scale=False), (4, 3, 5)),
    (lambda: layers.BatchNormalization("it", axis=-1), (5,)),
    (lambda: layers.BatchNormalization("it", momentum=0.2, epsilon=1e-3), (5,)),
    (lambda: layers.BatchNormalization("it"), IMAGE),
    (lambda: layers.LayerNorm("it", axis=1), SEQUENCE),
    (lambda: layers.LayerNorm("it", axis=-2, affine=False, epsilon=1e-3), SEQUENCE),
    (lambda: layers.RMSNorm("it", axis=1), SEQUENCE),
    (lambda: layers.RMSNorm("it", offset=1.0), SEQUENCE),
    (lambda: layers.RMSNorm("it", affine=False, epsilon=1e-3), SEQUENCE),
    (lambda: layers.GroupNorm("it", 2, affine=False), IMAGE),
    (lambda: layers.GroupNorm("it", 2), (6,)),
    (lambda: layers.GroupNorm("it", 4), IMAGE),
    (lambda: layers.InstanceNorm("it", affine=False), IMAGE),
    (lambda: layers.InstanceNorm("it"), (3, 5)),
    (lambda: layers.L2Norm("it", epsilon=0.1), SEQUENCE),
]


@pytest.mark.parametrize(("make", "shape"), NORMS)
def test_normalisations(make, shape, path):
    check(make(), [shape], path, (17, 23))


def test_later_opsets_have_operators_for_normalisations(path):
    assert operators(check(layers.RMSNorm("it"), [SEQUENCE], path, (23,))) == ["RMSNormalization"]
    model = check(layers.GroupNorm("it", 2), [IMAGE], path, (21,))
    assert operators(model) == ["GroupNormalization"]


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: layers.Concat("it", 2), [(2, 3), (2, 1), (2, 2)]),
        (lambda: layers.Cropping("it", 1), [IMAGE]),
        (lambda: layers.Cropping("it", ((0, 1), (2, 0))), [IMAGE]),
        (lambda: layers.Cropping("it", 0), [IMAGE]),
        (lambda: layers.EndPadding("it", 1, -3.5), [IMAGE]),
        (lambda: layers.Expand("it", (3, -1, 2)), [(1, 4, 1)]),
        (lambda: layers.Flatten("it"), [()]),
        (lambda: layers.Index("it", [-1]), [(4, 3)]),
        (lambda: layers.Index("it", [(None, None, None), (None, None, -1)]), [(4, 3)]),
        (lambda: layers.Index("it", [(3, 0, -2), 1]), [(4, 3)]),
        (lambda: layers.Index("it", [(-3, -1, None)]), [(4, 3)]),
        (lambda: layers.Index("it", [(None, None, None)]), [(4, 3)]),
        (lambda: layers.MatMul("it", transpose_a=True), [(3, 4), (3, 2)]),
        (lambda: layers.MatMul("it"), [(2, 3, 4), (2, 4, 5)]),
        (lambda: layers.Pad("it", 2, 1.5), [LINE]),
        (lambda: layers.Permute("it", (3, 1, 2)), [IMAGE]),
        (lambda: layers.Reduce("it", "mean", 1), [IMAGE]),
        (lambda: layers.Reduce("it", "sum", (-1, 1), True), [IMAGE]),
        (lambda: layers.Reduce("it", "min"), [IMAGE]),
        (lambda: layers.RepeatVector("it", 2), [(3, 2)]),
        (lambda: layers.Reshape("it", (-1, 6)), [IMAGE]),
        (lambda: layers.Slice("it", 2, [1, 3]), [(4, 6)]),
        (lambda: layers.TimeDistributed("it", layers.Conv2D("c", 2)), [(3, *IMAGE)]),
        (lambda: layers.TimeDistributed("it", layers.Dense("c", 2, W_transpose=True)), [SEQUENCE]),
        (lambda: layers.TimeDistributed("it", layers.Dense("c", 2, use_bias=False)), [(2, 3)]),
        (lambda: layers.TimeDistributed(
            "it", layers.TimeDistributed("steps", layers.Dense("c", 2))), [(2, 3, 4)]),
    ],
)  # fmt: skip
def test_elements_moved_about(make, shapes, path):
    check(make(), shapes, path)


@pytest.mark.parametrize("mode", ["mean", "sum", "min", "max"])
def test_axes_that_became_an_input(mode, path):
    check(layers.Reduce("it", mode, (1, 3), True), [IMAGE], path, (17, 18))


def test_batches_one_after_the_other(path):
    model = check(layers.Concat("it", 0), [(3,), (3,)], path)
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "it_rows"


RECURRENT = [
    {"bidirectional": True, "num_stacks": 2},
    {"num_stacks": 3, "return_sequences": False},
    {"bidirectional": True, "return_sequences": False},
    {"bidirectional": True, "num_stacks": 2, "return_state": True, "dropout": 0.5},
    {"return_state": True, "return_sequences": False, "use_bias": False},
    {"num_stacks": 2, "go_backwards": True, "return_state": True},
    {"num_stacks": 2, "go_backwards": True, "bidirectional": True, "return_state": True},
    {"go_backwards": True, "return_sequences": False, "use_bias": False},
]


@pytest.mark.parametrize("given", RECURRENT, ids=str)
@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh", "relu"])
def test_recurrent_layers(mode, given, path):
    check(layers.RNN("it", 3, mode, **given), [SEQUENCE], path)


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh"])
def test_recurrent_layers_without_input_matrices(mode, path):
    layer = layers.RNN("it", 6, mode, num_stacks=2, input_mode="skip", bidirectional=True)
    check(layer, [SEQUENCE], path)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padded_sequences_taken_backwards(bidirectional, path):
    layer = layers.LSTM(
        "it", 3, bidirectional=bidirectional, go_backwards=True, return_state=True, num_stacks=2
    )
    shapes = [(5, 4), *[((1 + bidirectional) * 2, 3)] * 2]
    with_lengths(layer, shapes, [5, 0, 3], path)


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("lstm", {"bidirectional": True, "num_stacks": 2, "return_state": True}),
        ("gru", {"go_backwards": True}),
        ("gru", {"go_backwards": True, "bidirectional": True, "return_state": True}),
        ("tanh", {"return_sequences": False}),
    ],
)
@pytest.mark.parametrize("steps", [5, None])
def test_recurrent_layers_under_a_mask(mode, given, steps, path):
    x, mask = Input("in0", (steps, 4)), Input("mask", (steps,), "bool")
    made = layers.RNN("it", 3, mode, **given)(x, mask)
    outputs = list(made) if isinstance(made, tuple) else [made]
    net = filled(FeedForwardNet(inputs=[x, mask], outputs=outputs), np.random.default_rng(1))
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


def test_states_from_batch_to_batch_are_refused(path):
    net = FeedForwardNet([layers.GRU("kept", 3, stateful=2, input_sample_shape=(5, 4))], seed=0)
    with pytest.raises(ArgumentError) as caught:
        save(net, path)
    assert "'kept' (GRU): stateful=True" in caught.value.received


def with_lengths(layer, shapes, lengths, path, kind="float32"):
    """The layer with sequences of ``lengths``, which come last."""
    inputs = [Input(f"in{k}", shape) for k, shape in enumerate(shapes)]
    inputs.append(Input("lengths", (), None if kind == "float32" else kind))
    made = layer(*inputs)
    outputs = list(made) if isinstance(made, tuple) else [made]
    net = filled(FeedForwardNet(inputs=inputs, outputs=outputs, seed=0), np.random.default_rng(1))
    feed = floats([tuple(6 if axis is None else axis for axis in s) for s in shapes], len(lengths))
    expect_same(net, {**feed, "lengths": np.array(lengths, kind)}, path)


@pytest.mark.parametrize("mode", ["lstm", "gru", "relu"])
@pytest.mark.parametrize("states", [False, True])
def test_recurrent_layers_with_states_and_lengths(mode, states, path):
    count = 2 if mode == "lstm" else 1
    shapes = [(5, 4), *[(4, 3)] * (count * states)]
    layer = layers.RNN("it", 3, mode, num_stacks=2, bidirectional=True, return_state=True)
    with_lengths(layer, shapes, [5, 2, 1], path)
    one = layers.RNN("it", 3, mode, return_sequences=False)
    with_lengths(one, [(None, 4), *[(1, 3)] * (count * states)], [6, 3], path, "int32")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 300}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 3}


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ({}, [(5, 6)]),
        ({"causal": True, "use_bias": False, "dropout": 0.3}, [(5, 6)]),
        ({"key_dim": 4, "value_dim": 5}, [(3, 6), (5, 4)]),
        ({"causal": True}, [(3, 6), (5, 4), (5, 7)]),
        ({"num_kv_heads": 1, "num_output": 3}, [(5, 6)]),
        ({"causal": True, "window": 2, "scale": 0.6}, [(5, 6)]),
        ({"softcap": 0.7}, [(5, 6)]),
        ({"segments": True, "softcap": 0.7}, [(5, 6), (5,)]),
        ({"segments": True}, [(4, 6), (5, 6), (4,), (5,)]),
        ({"causal": True, "return_weights": True, "key_dim": 4}, [(5, 6)]),
        ({"rotary": layers.RotaryEmbedding(100.0), "key_dim": 6}, [(5, 6)]),
        (
            {"rotary": layers.RotaryEmbedding(interleaved=True), "key_dim": 4, "num_kv_heads": 1},
            [(5, 6), (4, 3)],
        ),
        ({"relative": layers.RelativePositions(8, 5)}, [(5, 6)]),
        ({"relative": layers.RelativePositions(4, 3, False), "causal": True}, [(7, 6)]),
        ({"norm": layers.QueryKeyNorm(offset=1.0), "num_kv_heads": 1}, [(5, 6)]),
        ({"norm": layers.QueryKeyNorm(joint=True), "use_bias": ("key",)}, [(5, 6), (4, 3)]),
        ({"rotary": layers.RotaryEmbedding(10.0, scaling=YARN), "key_dim": 6}, [(5, 6)]),
        ({"rotary": layers.RotaryEmbedding(10.0, scaling=DYNAMIC), "key_dim": 6}, [(5, 6)]),
        (
            {"rotary": layers.RotaryEmbedding(10.0, True, fraction=0.7), "key_dim": 6},
            [(5, 6), (4, 3)],
        ),
    ],
)
def test_attention(given, shapes, path):
    check(layers.MultiHeadAttention("it", 2, **given), shapes, path, (17, 23))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"rotary": layers.RotaryEmbedding(scaling=DYNAMIC)},
            "angles that depend on a free number",
        ),
        (
            {"relative": layers.RelativePositions()},
            "relative positions with a free number of steps",
        ),
    ],
)
def test_what_depends_on_an_open_number_of_steps_has_no_form(given, why, tmp_path):
    x = Input("x", (None, 8))
    net = FeedForwardNet(inputs=x, outputs=layers.MultiHeadAttention("it", 2, **given)(x))
    with pytest.raises(ArgumentError, match=why):
        save(net, tmp_path / "it.onnx")


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 1, 4)])
@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_attention_under_a_mask(kind, shape, path):
    x, y, mask = Input("in0", (3, 6)), Input("in1", (4, 6)), Input("mask", shape)
    layer = layers.MultiHeadAttention("it", 2, mask=kind, causal=len(shape) == 2, num_kv_heads=1)
    net = filled(
        FeedForwardNet(inputs=[x, y, mask], outputs=layer(x, y, mask)), np.random.default_rng(0)
    )
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, (3, *shape)).astype(np.float32)
    values[0] = 0
    if kind == "added":
        values = np.where(values == 0, -np.inf, rng.standard_normal(values.shape))
    feed = floats([(3, 6), (4, 6)]) | {"mask": values.astype(np.float32)}
    expect_same(net, feed, path)


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
    x = layers.SinusoidalPosition("waves")(layers.PositionEmbedding("places", 1000)(x))
    x = layers.MultiHeadAttention("attention", 2, causal=True)(x)
    rotary = layers.RotaryEmbedding()
    x = layers.MultiHeadAttention("turned", 4, 2, num_kv_heads=2, rotary=rotary)(x)
    x = layers.TimeDistributed("norm", layers.BatchNormalization("bn"))(layers.LayerNorm("ln")(x))
    x = layers.TimeDistributed("scores", layers.Dense("fc", 4))(layers.GRU("gru", 5)(x))
    net = filled(FeedForwardNet(inputs=ids, outputs=x, seed=0), np.random.default_rng(3))
    for steps in (1, 200):
        feed = {"ids": np.random.default_rng(0).integers(0, 9, (2, steps))}
        model = expect_same(net, feed, path)
    dims = [
        [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]
        for port in (*model.graph.input, *model.graph.output)
    ]
    assert dims == [["batch", "ids_1"], ["batch", "ids_1", 4]]


def test_padding_that_never_wins_a_maximum(path):
    x = Input("in0", (2, 4, 4))
    padded = layers.EndPadding("end", 1, float("-inf"))(x)
    pool = layers.MaxPooling2D("it", 3, 2, border_mode="valid")
    expect_same(FeedForwardNet(inputs=x, outputs=pool(padded)), floats([(2, 4, 4)]), path)


def test_fixed_sequences_take_the_positions_that_they_need(path):
    check(layers.PositionEmbedding("it", 9), [SEQUENCE], path)
    check(layers.PositionEmbedding("it"), [SEQUENCE], path)
    check(layers.SinusoidalPosition("it"), [(5, 7)], path)


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
        seen,
        layers.Compare("half", how, 0.5)(ids),
        layers.Compare("one", how, 1)(ids),
        layers.Where("both")(layers.Compare("zero", how, 0.0)(a), a, b),
        layers.Where("filled", a=-3.5)(ids, b),
        layers.Where("masked", b=0.25)(seen, a),
        layers.Cast("cut", "int32")(a),
        layers.Cast("floats")(seen),
        layers.Cast("truth", "bool")(b),
    ]
    net = FeedForwardNet(inputs=[a, b, ids], outputs=outputs, seed=0)
    feed = floats([(4,), (4,)]) | {"ids": np.array([[0, 1, 2, -1]] * 3, np.int8)}
    feed["in1"][:, 2] = feed["in0"][:, 2]
    expect_same(net, feed, path)


def test_dense_layers_turned_and_without_offset(path):
    check(layers.Dense("it", 3, W_transpose=True), [(5,)], path)
    check(layers.Dense("it", 3, use_bias=False), [(5,)], path)
    check(layers.Dense("it", 3, W_transpose=True), [(2, 3, 5)], path)


@pytest.mark.parametrize("mode", sorted(OPERATIONS))
def test_functions_without_a_layer_of_their_own(mode, path):
    shapes = [(4, 3)] * OPERATIONS[mode].inputs
    net = drawn(layers.Operation("it", mode), shapes)
    feed = floats(shapes)
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


def test_parameters_as_arrays(path):
    model = check(layers.Weight("it", (2, 3)), [(5,)], path)
    assert [tensor.name for tensor in model.graph.initializer][-1] == "it/weight"


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
