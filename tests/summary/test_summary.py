"""The summary of a net: its table, the bytes of a step, and multiply-adds."""

from __future__ import annotations

import re
import tracemalloc
from itertools import groupby

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, device, models
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import (
    LSTM,
    RNN,
    Activation,
    Add,
    BatchNormalization,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    MatMul,
    MultiHeadAttention,
    SeparableConv2D,
    TimeDistributed,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.models import build
from singanet.ops import ops_for
from singanet.optimizer import SGD
from singanet.summary import Folded, Row, folded, layer_rows, measure, multiply_adds
from singanet.testing import strict_device


def test_the_columns_and_totals_with_a_batch_size():
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc1", 64, input_sample_shape=(20,)))
    net.add(Dense("fc2", 10))
    lines = net.summary(batch_size=128, width=0).splitlines()
    titles = "name,layer,output shape,parameters,size,status,kept bytes,multiply-adds,from"
    assert re.split(r"  +", lines[0]) == titles.split(",")
    assert " ".join(lines[3].split()) == "fc2 Dense (10,) 650 2.6 kB trained 256 640 fc1"
    assert lines[4] == "1,994 parameters (8.0 kB): 1,994 trained"
    assert lines[5] == "1,920 multiply-adds a sample"
    assert lines[6] == "256 bytes a sample kept for backward"
    found = re.fullmatch(
        r"a training step of 128 samples, at its peak at layer '(\w+)': ([\d.]+) kB = "
        r"([\d.]+) kB parameters \+ ([\d.]+) kB inputs \+ ([\d.]+) kB activations and gradients",
        lines[7],
    )
    assert found is not None
    layer, total, *parts = found.groups()
    assert layer in ("fc1", "fc2")
    assert float(total) == pytest.approx(sum(map(float, parts)), abs=0.2)
    assert float(parts[1]) == pytest.approx(128 * 20 * 4 / 1000, abs=0.05)


def test_without_a_batch_size_no_layer_runs():
    class NeverRun(Layer):
        def setup(self, in_shape):
            return in_shape

    net = FeedForwardNet(seed=0)
    net.add(NeverRun("own", input_sample_shape=(3,)))
    assert "own" in net.summary()


def test_open_axes_are_any_and_close_with_an_extent():
    words = Input("words", (None, 3))
    net = FeedForwardNet(inputs=words, outputs=LSTM("lstm", 4)(words), seed=0)
    assert "(any, 4)" in net.summary()
    assert "at least 0 multiply-adds" in net.summary()
    matrices = 3 * 16 + 4 * 16
    assert f"{7 * matrices:,} multiply-adds a sample" in net.summary(batch_size=2, extent=7)
    with pytest.raises(ArgumentError, match=r"layer 'words': expected extent.*extent=100"):
        net.summary(batch_size=2)


def test_shared_parameters_are_counted_once_and_said():
    x = Input("x", (4,))
    both = Dense("twin", 4)
    net = FeedForwardNet(inputs=x, outputs=Add("sum")(both(x), both(both(x))), seed=0)
    text = net.summary(width=0)
    assert text.count("20  ") == 1
    assert re.search(r"^twin@2 +Dense \(shares twin\) +\(4,\) +0 +16 +", text, re.M)
    assert "20 parameters (80 B): 20 trained" in text


def test_equal_blocks_of_a_large_net_are_one():
    net = models.build("vit_tiny", (3, 32, 32), 10, seed=0)
    text = net.summary(width=0)
    (title,) = re.findall("^.*×.*$", text, re.M)
    assert title == "12 × block1 to block12, each"
    assert len(re.findall("^  …", text, re.M)) == 10  # the first block, by the ends of its names
    assert re.search(r"^norm .* block12_dense_add$", text, re.M)
    whole = net.summary(width=0, fold=False)
    assert whole.count("MultiHeadAttention") == 12
    assert whole.splitlines()[-2:] == text.splitlines()[-2:]


def chain(kinds, readers=()):
    """Rows that read each other in turn, and others by number as ``readers`` say."""
    made = [
        Row(f"l{k}", kind, [(4,)], 20, 20, 16, [f"l{k - 1}"] if k else [])
        for k, kind in enumerate(kinds)
    ]
    for k, source in readers:
        made[k].sources.append(f"l{source}")
    return made


@pytest.mark.parametrize(
    ("kinds", "readers", "blocks"),
    [
        ("x" + "abc" * 12, (), [(12, 3)]),
        ("x" + "ab" * 3 + "q" + "cd" * 15, (), [(3, 2), (15, 2)]),
        # A block of blocks, and blocks that all read the first row.
        ("x" + "abbbbbbc" * 5, (), [(5, 8)]),
        ("x" + "abc" * 12, [(k, 0) for k in range(2, 37, 3)], [(12, 3)]),
        # A row behind them reads the fourth, so that the others are not equal to it.
        ("x" + "abc" * 12 + "z", [(37, 12)], [(4, 3), (8, 3)]),
        # Each reads the block before the last: two together read the two before.
        ("x" + "abc" * 12, [(k, k - 6) for k in range(7, 37, 3)], [(5, 6)]),
        ("abcdefghijklmnopqrstuvwxyzABCDEFGH", (), []),
        ("x" + "abc" * 9, (), []),  # a screen
    ],
)
def test_blocks_are_equal_in_what_they_show_and_read(kinds, readers, blocks):
    found = [part for part in folded(chain(kinds, readers)) if isinstance(part, Folded)]
    assert [(b.count, len(b.rows) // b.count) for b in found] == blocks


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 150, 300])
@pytest.mark.parametrize("model", ["resnet20", "vit_tiny"])
def test_rows_fit_the_terminal_and_are_not_broken(model, width, monkeypatch):
    net = models.build(model, seed=0)
    whole = net.summary(width=0).splitlines()[:-2]
    monkeypatch.setenv("COLUMNS", str(width))
    lines = net.summary().splitlines()
    assert max(map(len, lines)) <= width
    # A line a row, whose name has its beginning and its end.
    for line, row in zip(lines, whole, strict=False):
        name, short = (re.split(r"  +", each.strip(" …"))[0] for each in (row, line))
        assert name.startswith(short.partition("…")[0])
    assert ("parameters" in lines[0]) == (width >= 40)
    assert ("status" in lines[0]) == (width >= 80)


@pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"batch_size": 1.5}, {"extent": -1}])
def test_bad_numbers_and_empty_nets_are_refused(arguments):
    net = FeedForwardNet(seed=0)
    with pytest.raises(CallOrderError, match="an empty net"):
        net.summary()
    net.add(Dense("fc", 2, input_sample_shape=(3,)))
    with pytest.raises(ArgumentError, match=rf"net.summary, {next(iter(arguments))}: expected"):
        net.summary(**arguments)


def test_the_lines_of_a_recorded_step_and_of_its_peak_on_a_device():
    net = FeedForwardNet([Dense("fc1", 64, input_sample_shape=(20,)), Dense("fc2", 10)], seed=0)
    (line,) = [line for line in net.summary(128, width=0).splitlines() if "recorded" in line]
    first, *_ = str(net.memory(128)).splitlines()
    assert line == f"recorded, as steps are from the second on: {first}"
    here = net.summary(4)
    net.to_device(strict_device())
    for each in (here, net.summary(4)):
        assert "a training step of 4 samples, at its peak" in each


SCRATCH = 6 << 20
"""What kernels may take for a moment: blocks of 2 MB, and the small arrays around them."""


def mlp():
    first = [Dense("fc1", 64, input_sample_shape=(20,)), Activation("relu1")]
    layers = [*first, Dropout("drop", 0.5), Dense("fc2", 10)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)


def test_each_buffer_is_counted_at_the_first_layer_that_keeps_it():
    footprint = measure(mlp())
    # fc1: the caller's input; relu1: its output; drop: a byte a unit; fc2: its input.
    assert [footprint.kept(name) for name in ("fc1", "relu1", "drop", "fc2")] == [0, 256, 64, 256]
    assert footprint.kept("fc2", 7) == 7 * 256
    assert footprint.all_kept(3) == 3 * (256 + 64 + 256)
    assert footprint.fed(5) == 5 * 20 * 4


def test_the_same_is_counted_on_a_device(xp):
    if xp.__name__ == "numpy":
        pytest.skip("the other tests are about NumPy")
    places = {"cupy": device.cuda}
    like = device.Device("device_like", ops_for(xp.zeros(1)))
    net, here = build("resnet20", (1, 8, 8), seed=0), measure(build("resnet20", (1, 8, 8), seed=0))
    net.to_device(places.get(xp.__name__, lambda: like)())
    there = measure(net)
    assert there.shapes == here.shapes
    for name in here.shapes:
        assert there.kept(name, 10) == pytest.approx(here.kept(name, 10), rel=0.05)
    # Where kernels of oneDNN work in memory of their own, NumPy's make arrays.
    assert there.peak(32)[0] == pytest.approx(here.peak(32)[0], rel=0.2)


def three(middle):
    layers = [Dense("a", 8, input_sample_shape=(4,)), middle, Dense("out", 2)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)


def moments(net, size):
    """The layers at work in a step of ``size`` samples, with the most live bytes of each."""
    log = measure(net).log(size)
    live = zip(log.moments[1:], log.timeline("array").live(len(log.moments))[1:], strict=True)
    at_work = groupby(live, lambda pair: pair[0][:2])
    return [(layer, max(size for _, size in each)) for (layer, _), each in at_work]


@pytest.mark.parametrize("size", [2, 3])
def test_the_moments_of_a_step_add_up_by_hand(size):
    net = three(Activation("t", "tanh"))
    wide, narrow = 4 * 8 * size, 4 * 2 * size
    assert moments(net, size) == [
        ("a", wide),
        ("t", 2 * wide),  # its input and its output
        ("out", wide + narrow),
        ("", wide + 2 * narrow),  # the gradient of the loss beside the output
        ("out", wide + narrow + wide + 4 * (8 * 2 + 2)),
        ("t", 3 * wide),  # what it keeps, and both gradients
        ("a", wide + 4 * (4 * 8 + 8) + 4 * size),  # a sum over rows is a product with ones
    ]


def test_what_a_layer_in_python_keeps_is_counted():
    class Keeps(Layer):
        """y = 2x, by a class that does not say that it is pure."""

        def setup(self, in_shape):
            return in_shape

        def forward(self, ctx, x):
            ctx.save(slope=2 * np.ones_like(x))
            return 2 * x

        def backward(self, ctx, dy):
            return ctx.saved["slope"] * dy, {}

    wide = 4 * 8 * 2
    # The slope and both gradients.
    assert dict(moments(three(Keeps("keeps")), 2))["keeps"] == 3 * wide
    assert measure(three(Keeps("keeps"))).kept("keeps", 2) == wide


def test_what_two_layers_keep_is_counted_once():
    x = Input("x", (8,))
    h = Activation("tanh", "tanh")(Dense("fc", 8)(x))
    net = FeedForwardNet(inputs=x, outputs=Add("sum")(Dense("a", 8)(h), Dense("b", 8)(h)), seed=0)
    footprint = measure(net)
    assert [footprint.kept(name) for name in ("tanh", "a", "b", "sum")] == [32, 0, 0, 0]


@pytest.mark.parametrize(
    ("model", "batch_size"), [("mlp", 8192), ("lenet", 64), ("lenet", 128), ("resnet20", 32)]
)
@pytest.mark.few(1, full=0)
def test_the_peak_is_that_of_a_real_step_but_for_scratch(model, batch_size):
    net = build(model, seed=0)
    shape = net.layers[0].in_shapes
    x = np.ones((batch_size, *shape), np.float32)
    y = np.zeros(batch_size, np.int64)
    sgd = SGD(lr=0.0)
    # The step by the layers is meant: a recorded program takes its arena, and no more, at once.
    net.programs.enabled = False
    net.step(x, y, sgd)
    predicted, _ = measure(net).peak(batch_size)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    net.step(x, y, sgd)
    measured = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert predicted > 2 * SCRATCH  # else the test would say little
    assert 0.99 * predicted <= measured <= 1.01 * predicted + SCRATCH


def test_the_peak_names_the_layer_at_work():
    net = FeedForwardNet(seed=0)
    net.add(Dense("small", 4, input_sample_shape=(4,)))
    net.add(Dense("large", 5000))
    net.add(Dense("last", 2))
    # The gradient of the large layer's weight outweighs all activations of one sample.
    peak, layer = measure(net).peak(1)
    assert layer == "large"
    assert 4 * 5 * 5000 <= peak <= 4 * (5 * 5000 + 3 * 5000)


def test_measuring_leaves_the_net_as_it_was(rng):
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    net.add(Dense("fc", 6, input_sample_shape=(4,)))
    net.add(BatchNormalization("bn"))
    net.add(Dropout("drop", 0.5))
    x = rng.standard_normal((5, 4), np.float32)
    net.forward(True, x)
    values = [value.copy() for value in net.param_values()]
    live = net.param_values()
    state = net.rng.bit_generator.state
    measure(net)
    assert net.rng.bit_generator.state == state
    for value, kept, array in zip(net.param_values(), values, live, strict=True):
        assert value is array
        np.testing.assert_array_equal(value, kept)
    # A forward that was under way goes on.
    assert next(net.backward(np.ones((5, 6), np.float32))).layer == "drop"


def test_running_state_is_put_back_when_a_layer_fails():
    class Fails(Activation):
        def forward(self, ctx, x):
            raise ZeroDivisionError

    net = FeedForwardNet(seed=0)
    net.add(BatchNormalization("bn", input_sample_shape=(4,)))
    net.add(Fails("fails"))
    before = [value.copy() for value in net.param_values()]
    with pytest.raises(ZeroDivisionError):
        measure(net)
    for value, kept in zip(net.param_values(), before, strict=True):
        np.testing.assert_array_equal(value, kept)


def test_lengths_are_those_of_whole_sequences():
    words, lengths = Input("words", (None, 3)), Input("lengths", ())
    h = LSTM("lstm", 4, return_sequences=False)(words, lengths)
    net = FeedForwardNet(inputs=[words, lengths], outputs=Dense("fc", 2)(h), seed=0)
    short, long = measure(net, extent=5), measure(net, extent=50)
    assert long.shapes["words"] == [(50, 3)]
    assert long.kept("lstm", 8) > 5 * short.kept("lstm", 8)


def test_indices_are_fed_as_indices():
    net = FeedForwardNet(seed=0)
    net.add(Embedding("table", 1, 3, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    assert measure(net).fed(2) == 2 * 5 * 8


def test_frozen_layers_keep_nothing():
    net = mlp()
    assert measure(net).kept("relu1") == 256
    net.freeze("fc2")
    assert measure(net).kept("relu1") == 0
    assert measure(net).kept("fc2") == 256


def test_several_inputs_and_outputs():
    a, b = Input("a", (3,)), Input("b", (2, 3))
    h = Add("sum")(Dense("da", 6)(a), Flatten("flat")(b))
    net = FeedForwardNet(inputs=[a, b], outputs=[Dense("left", 2)(h), Dense("right", 3)(h)], seed=0)
    footprint = measure(net)
    assert footprint.fed(10) == 10 * 9 * 4
    assert footprint.kept("left") + footprint.kept("right") == 6 * 4


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


def test_counts_by_hand():
    """A separable convolution costs its two steps, and padding counts like the image."""
    steps = count(DepthwiseConv2D("d", 3, 2, depth_multiplier=2), (3, 6, 5))
    steps += count(Conv2D("p", 4, 1), (6, 3, 3))
    assert count(SeparableConv2D("s", 4, 3, 2, depth_multiplier=2), (3, 6, 5)) == steps
    assert count(Conv2D("c", 2, 3, border_mode="same"), (1, 4, 4)) == 4 * 4 * 2 * 9
    for transposed, a in ((True, (5, 2, 4)), (False, (5, 4, 2))):
        assert count(MatMul("m", transpose_a=transposed), a, (5, 2, 3)) == 5 * 4 * 2 * 3
    layer = RNN("r", 4, "lstm", num_stacks=2, bidirectional=True)
    first, second = 2 * 4 * (3 * 4 + 4 * 4), 2 * 4 * (8 * 4 + 4 * 4)
    assert count(layer, (7, 3)) == 7 * (first + second)
    assert count(RNN("r", 4), (-1, 3)) is None


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
