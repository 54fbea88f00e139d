"""What `summary` prints and refuses."""

import re

import pytest

from singanet import FeedForwardNet, Input, models
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import LSTM, Add, Dense, Layer
from singanet.summary import Folded, Row, folded
from singanet.testing import strict_device


def test_the_columns_and_totals_with_a_batch_size():
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc1", 64, input_sample_shape=(20,)))
    net.add(Dense("fc2", 10))
    lines = net.summary(batch_size=128, width=0).splitlines()
    assert re.split(r"  +", lines[0]) == [
        "name", "layer", "output shape", "parameters", "size", "status", "kept bytes",
        "multiply-adds", "from",
    ]  # fmt: skip
    assert lines[3].split() == [
        "fc2", "Dense", "(10,)", "650", "2.6", "kB", "trained", "256", "640", "fc1",
    ]  # fmt: skip
    assert lines[4:7] == [
        "1,994 parameters (8.0 kB): 1,994 trained",
        "1,920 multiply-adds a sample",
        "256 bytes a sample kept for backward",
    ]
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
def test_bad_numbers_are_refused(arguments):
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc", 2, input_sample_shape=(3,)))
    with pytest.raises(ArgumentError, match=rf"net.summary, {next(iter(arguments))}: expected"):
        net.summary(**arguments)


def test_an_empty_net_says_so():
    with pytest.raises(CallOrderError, match="an empty net"):
        FeedForwardNet().summary()


def test_the_recorded_step_takes_what_the_planner_says():
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc1", 64, input_sample_shape=(20,)))
    net.add(Dense("fc2", 10))
    (line,) = [line for line in net.summary(128, width=0).splitlines() if "recorded" in line]
    first, *_ = str(net.memory(128)).splitlines()
    assert line == f"recorded, as steps are from the second on: {first}"


def test_the_peak_of_a_step_is_told_of_a_net_on_a_device():
    net = models.build("mlp", (1, 6, 6), 3, seed=0)
    here = net.summary(4)
    net.to_device(strict_device())
    there = net.summary(4)
    assert "a training step of 4 samples, at its peak" in here
    assert "a training step of 4 samples, at its peak" in there
