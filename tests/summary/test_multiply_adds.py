"""Multiply-adds against published figures, and against counting them one by one."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import (
    RNN,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Dense,
    DepthwiseConv2D,
    Layer,
    MatMul,
    MultiHeadAttention,
    SeparableConv2D,
    TimeDistributed,
)
from singanet.models import build
from singanet.summary import layer_rows, multiply_adds


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("resnet18", 1.81e9),  # torchvision's documentation, as for the next two
        ("resnet34", 3.66e9),
        ("resnet50", 4.09e9),
        ("mobilenet", 569e6),  # Howard et al., 2017, table 4
    ],
)
def test_ready_nets_cost_what_was_published(model, published):
    total = sum(row.multiply_adds for row in layer_rows(build(model)))
    assert total == pytest.approx(published, rel=0.003)


def count(layer, *in_shapes):
    shapes = list(in_shapes)
    out = layer.build(shapes[0] if len(shapes) == 1 else shapes)
    return multiply_adds(layer, shapes, out if isinstance(out, list) else [out])


@pytest.mark.parametrize(
    "layer",
    [
        Conv3D("c", 4, 3, pad=0, use_bias=False, input_sample_shape=(2, 5, 4, 3)),
        Dense("c", 5, use_bias=False, input_sample_shape=(3, 7)),
        Conv2D("c", 4, 3, pad=0, groups=2, use_bias=False, input_sample_shape=(6, 8, 7)),
        Conv2D("c", 4, (3, 2), stride=2, pad=0, dilation=2, use_bias=False,
               input_sample_shape=(2, 8, 7)),
        DepthwiseConv2D("c", 3, pad=0, depth_multiplier=2, use_bias=False,
                        input_sample_shape=(3, 6, 5)),
        Conv2DTranspose("c", 4, 3, stride=2, pad=0, groups=2, use_bias=False,
                        input_sample_shape=(6, 4, 5)),
        Conv1D("c", 5, 3, pad=0, use_bias=False, input_sample_shape=(2, 9)),
        Conv1D("c", 5, 3, pad=0, use_bias=False, input_sample_shape=(9,)),
        Dense("c", 5, use_bias=False, input_sample_shape=(7,)),
        TimeDistributed("c", Dense("d", 5, use_bias=False), input_sample_shape=(3, 7)),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_ones_under_weights_of_one_add_up_to_the_count(layer):
    net = FeedForwardNet(seed=0)
    net.add(layer)
    for value in net.param_values():
        value[...] = 1
    total = float(net.forward(False, np.ones((1, *layer.in_shapes), np.float32)).sum())
    (row,) = layer_rows(net)
    assert row.multiply_adds == total


def test_a_separable_convolution_costs_its_two_steps():
    steps = count(DepthwiseConv2D("d", 3, 2, depth_multiplier=2), (3, 6, 5))
    steps += count(Conv2D("p", 4, 1), (6, 3, 3))
    assert count(SeparableConv2D("s", 4, 3, 2, depth_multiplier=2), (3, 6, 5)) == steps


def test_padding_is_counted_like_the_image():
    assert count(Conv2D("c", 2, 3, border_mode="same"), (1, 4, 4)) == 4 * 4 * 2 * 9


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_product_has_three_extents(transposed):
    a = (5, 2, 4) if transposed else (5, 4, 2)
    assert count(MatMul("m", transpose_a=transposed), a, (5, 2, 3)) == 5 * 4 * 2 * 3


def test_a_recurrent_layer_multiplies_by_every_matrix_at_every_step():
    layer = RNN("r", 4, "lstm", num_stacks=2, bidirectional=True)
    first = 2 * 4 * (3 * 4 + 4 * 4)
    second = 2 * 4 * (8 * 4 + 4 * 4)
    assert count(layer, (7, 3)) == 7 * (first + second)


def test_attention_projects_and_then_meets_every_pair():
    layer = MultiHeadAttention("a", 2, key_dim=3, value_dim=5)
    projections = 4 * 8 * 6 + 9 * 7 * 6 + 9 * 7 * 10 + 4 * 10 * 8
    assert count(layer, (4, 8), (9, 7), ()) == projections + 4 * 9 * 2 * (3 + 5)
    grouped = MultiHeadAttention("a", 4, key_dim=3, num_kv_heads=2, num_output=5, mask="added")
    projections = 7 * (8 * 12 + 8 * 6 + 8 * 6 + 12 * 5)
    assert count(grouped, (7, 8), (7, 7)) == projections + 7 * 7 * 4 * (3 + 3)


class Own(Layer):
    def setup(self, in_shape):
        return in_shape


class Counted(Own):
    def multiply_adds(self, in_shapes, out_shapes):
        return in_shapes[0][0] * 3


def test_a_users_own_layer_answers_itself_or_is_unknown():
    assert count(Counted("own"), (5,)) == 15
    assert count(Own("own"), (5,)) is None
    assert count(TimeDistributed("t", Own("own")), (2, 5)) is None
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc", 5, input_sample_shape=(4,)))
    net.add(Own("own"))
    lines = net.summary(width=0).splitlines()
    assert lines[3].split() == ["own", "Own", "(5,)", "0", "?", "fc"]
    assert lines[-1] == "at least 20 multiply-adds a sample"


def test_axes_of_any_extent_leave_it_unknown():
    assert count(RNN("r", 4), (-1, 3)) is None
