"""What a fit shows: lines and bars, the history and its picture, and advice on kernels."""

import io
import math
import re

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, device, models
from singanet.errors import ArgumentError, FileAccessError
from singanet.layers import Conv2D, Dense, Flatten, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import backends, selection
from singanet.ops.llvm import LlvmOps
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn import library
from singanet.optimizer import SGD
from singanet.training import History
from singanet.training import display as faster
from singanet.training.display import EpochLine
from singanet.training.measures import Measures
from tests.charts import NEEDED, groups, lines, points, texts
from tests.terminals import pseudo_terminal


def measured(loss, samples):
    measures = Measures(None, {})
    measures.add_loss(loss, samples)
    return measures


@pytest.mark.parametrize(("logs", "said"), [
    ({"loss": 0.5, "accuracy": 0.25, "val_loss": 0.75},
     r"loss 0\.5000  accuracy 0\.2500  val_loss 0\.7500"), ({"loss": 2.0}, r"loss 2\.0000"),
    ({"loss": 2.0, "bytes_sent": 1234567.25, "bytes_received": 12.0},
     r"loss 2\.0000  bytes_sent 1\.2 MB  bytes_received 12 B"),
])  # fmt: skip
def test_without_a_terminal_one_line_at_the_end(logs, said):
    stream = io.StringIO()
    with EpochLine("epoch 1/2", 10, stream) as line:
        assert not line.due()
        line.finish(logs, 320)
        assert stream.getvalue() == ""
    assert re.fullmatch(rf"epoch 1/2  {said}  [\d,]+ samples/s\n", stream.getvalue())
    # One that breaks off leaves none.
    stream = io.StringIO()
    line = EpochLine("epoch 1/1", 2, stream)
    line.finish(logs, 32)
    with pytest.raises(KeyboardInterrupt), line:
        raise KeyboardInterrupt
    assert stream.getvalue() == ""


@pytest.fixture
def every_batch(monkeypatch):
    """A bar is drawn at every batch, as if each took long."""
    monkeypatch.setattr("singanet.base.progress.INTERVAL", -1)
    monkeypatch.setattr("singanet.training.display.SHORT", -1)


@pytest.fixture
def terminal(every_batch):
    with pseudo_terminal(80) as made:
        yield made


def test_a_bar_on_a_terminal_and_the_figures_in_the_end(terminal):
    with EpochLine("epoch 1/2", 10, terminal.stream) as line:
        line.show(measured(2.0, 96), 3)
        line.show(measured(1.0, 320), 10)
        line.finish({"loss": 1.0, "accuracy": 0.5}, 320)
    terminal.close()
    first, *bars, last = terminal.frames
    assert first.startswith("epoch 1/2 0/10 |")
    for bar, done, loss in zip(bars, ("3", "10"), ("2.0000", "1.0000"), strict=True):
        assert bar.startswith(f"epoch 1/2 {done}/10 |█")
        assert re.search(rf"\| loss {loss} [\d,]+ samples/s 00:00<00:00$", bar)
    assert re.fullmatch(r"epoch 1/2  loss 1\.0000  accuracy 0\.5000  [\d,]+ samples/s", last)


BAR = "epoch 9/10 125/250 |{bar}| loss 1.2500 50,000 samples/s 00:02<00:02"
PAIRS = "epoch 9/10  loss 1.2500 val 1.5000  accuracy 0.5000 val 0.7500  50,000 samples/s"
WHOLE = "loss 1.2500  accuracy 0.5000  val_loss 1.5000  val_accuracy 0.7500"


@pytest.mark.parametrize(("columns", "bar", "validation", "lines"), [
    (
        20, "125/250 loss 1.2500", "1/2",
        "epoch 9/10\n  loss 1.2500\n  val 1.5000\n  accuracy 0.5000\n  val 0.7500\n"
        "  50,000 samples/s"
    ),
    (
        40, "epoch 9/10 125/250 loss 1.2500 00:02", "epoch 9/10, validation 1/2 00:01",
        PAIRS.replace("  ", "\n  ").replace("\n", "", 1)
    ),
    (80, BAR, "epoch 9/10, validation 1/2 |{bar}| 00:01<00:01", PAIRS),
    (
        200, BAR, "epoch 9/10, validation 1/2 |{bar}| 00:01<00:01",
        f"epoch 9/10  {WHOLE}  50,000 samples/s"
    )
])  # fmt: skip
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(
    columns, bar, validation, lines, every_batch, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr("singanet.base.progress.time.perf_counter", lambda: now[0])
    logs = {"loss": 1.25, "accuracy": 0.5, "val_loss": 1.5, "val_accuracy": 0.75}
    with (
        pseudo_terminal(columns) as terminal,
        EpochLine("epoch 9/10", 250, terminal.stream) as line,
    ):
        now[0] = 2.0
        line.show(measured(1.25, 100_000), 125)
        line.trained()
        batches = line.validating([1, 2], 2)
        next(batches)
        now[0] = 3.0
        assert list(batches) == [2]
        line.finish(logs, 100_000)
    frames = [re.sub(r"\|[^|]*\|", "|{bar}|", frame) for frame in terminal.frames]
    assert {bar, validation} <= {*frames}
    assert max(map(len, terminal.frames)) <= columns
    assert terminal.lines == lines.split("\n")


def test_the_bar_is_brought_up_to_date_ten_times_a_second_at_most(terminal, monkeypatch):
    with EpochLine("epoch 1/2", 10, terminal.stream) as line:
        assert line.due()
        monkeypatch.setattr("singanet.base.progress.INTERVAL", 3600)
        line.show(measured(2.0, 96), 3)
        assert not line.due()


def test_an_epoch_after_a_short_one_has_a_bar_only_if_it_is_longer(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("singanet.base.progress.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(EpochLine, "_short", False)
    with pseudo_terminal(80) as terminal:
        for epoch, seconds in enumerate((0.3, 0.3, 0.7, 0.7), 1):
            with EpochLine(f"epoch {epoch}/4", 10, terminal.stream) as line:
                now[0] += seconds
                if line.due():
                    line.show(measured(1.0, 320), 5)
    drawn = [frame.split(" |")[0] for frame in terminal.frames]
    assert drawn == ["epoch 1/4 0/10", "epoch 1/4 5/10", "epoch 3/4 5/10"] + [
        f"epoch 4/4 {done}/10" for done in (0, 5)
    ]


class Unsized:
    """Batches whose number nobody knows: 3, or those of ``counts`` in turn."""

    def __init__(self, *counts):
        self.counts = iter(counts)

    def __iter__(self):
        for _ in range(next(self.counts, 3)):
            yield np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)


def test_the_bar_of_a_fit_knows_its_length_after_the_first_epoch(terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal.stream)
    net = singanet.FeedForwardNet([Dense("fc", 1, input_sample_shape=(2,))])
    net.compile(SGD(lr=0.1), singanet.loss.SquaredError())
    net.fit(Unsized(3, 3, 5), epochs=3, validation_data=Unsized(2, 2, 2))
    terminal.close()
    told, bar = {}, re.compile(r"(epoch ./3(?:, validation)?) (\d+/\S+) ")
    for found in filter(None, map(bar.match, terminal.frames)):
        told.setdefault(found[1], []).append(found[2])
    # The total of data that have become more is unknown again.
    assert {name: " ".join(counts) for name, counts in told.items()} == {
        "epoch 1/3": "0/? 1/? 2/? 3/?", "epoch 1/3, validation": "0/? 1/? 2/?",
        "epoch 2/3": "0/3 1/3 2/3 3/3", "epoch 2/3, validation": "0/2 1/2 2/2",
        "epoch 3/3": "0/3 1/3 2/3 3/3 4/? 5/?", "epoch 3/3, validation": "0/2 1/2 2/2",
    }  # fmt: skip


def test_validation_and_samples_of_an_earlier_process_are_not_in_the_speed(monkeypatch):
    def line_of(times, validated, *arguments, **options):
        now, stream = iter(times), io.StringIO()
        monkeypatch.setattr("singanet.training.display.time.perf_counter", lambda: next(now, 9.0))
        with EpochLine("epoch 1/1", 3, stream, **options) as line:
            if validated:
                line.trained()
                assert list(line.validating([1, 2], 2)) == [1, 2]
            line.finish(*arguments)
        return stream.getvalue()

    told = line_of((0.0, 2.0, 3.0), True, {"loss": 1.0, "val_loss": 2.0}, 100)
    assert told == "epoch 1/1  loss 1.0000  val_loss 2.0000  50 samples/s\n"
    told = line_of((0.0, 2.0), False, {"loss": 1.0}, 100, counted=("tokens", 4), before=80)
    assert told == "epoch 1/1  loss 1.0000  40 tokens/s\n"


def recorded(*epochs):
    made = History()
    for k, logs in enumerate(epochs):
        made.record(k, logs)
    return made


@pytest.fixture
def history():
    return recorded({"loss": 2.0, "val_loss": 2.5, "accuracy": 0.1},
                    {"loss": 1.0, "val_loss": 1.5, "accuracy": 0.5},
                    {"loss": 0.5, "val_loss": 1.75, "accuracy": 1 / 3})  # fmt: skip


def test_is_a_dict_of_lists_in_which_what_an_epoch_did_not_measure_is_nan(history):
    assert history["loss"] == [2.0, 1.0, 0.5]
    assert list(history) == ["loss", "val_loss", "accuracy"]
    assert history.epochs == [0, 1, 2]
    assert history.row(1) == {"loss": 1.0, "val_loss": 1.5, "accuracy": 0.5}
    history = recorded({"loss": 1.0}, {"loss": 2.0, "lr": 0.1}, {"lr": 0.2})
    history._amend({"more": 7.0, "lr": 0.3})
    nan = math.nan
    for name, wanted in {"loss": [1, 2, nan], "lr": [nan, 0.1, 0.3], "more": [nan, nan, 7]}.items():
        np.testing.assert_array_equal(history[name], wanted)


@NEEDED
def test_only_measured_values_are_marked_as_not_finite():
    history = recorded({"loss": 1.0, "score": 1.0}, {"loss": 1.0})
    assert not groups(history.plot(), "mark")
    for k in (2, 3):
        history.record(k, {"loss": math.nan, "score": 2.0})
    marks = {name: len(points(mark)) for name, mark in groups(history.plot(), "mark").items()}
    assert marks == {"loss": 1}
    assert "epoch · \u00d7 not finite" in texts(history.plot())


@NEEDED
def test_the_picture_has_a_chart_a_quantity_and_a_line_a_name(history, tmp_path):
    for name in ("history.jpg", "history.pdf", "history"):
        with pytest.raises(ArgumentError, match=r"history\.plot.*a file name that ends in \.svg"):
            history.plot(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    text = history.plot(tmp_path / "history.svg")
    assert (tmp_path / "history.svg").read_text(encoding="utf-8") == text
    found = lines(text)
    assert list(found) == list(history)
    assert [len(each) for each in found.values()] == [3, 3, 3]
    # Left to right; a falling loss goes down, which in SVG is a rising y.
    assert found["loss"] == sorted(found["loss"])
    assert found["loss"][0][1] < found["loss"][1][1] < found["loss"][2][1]
    low, high = found["loss"][2][1], found["val_loss"][0][1]
    # 2.5 is the highest of the chart and 0.5 the lowest; 1.5 lies in the middle of them.
    assert found["val_loss"][1][1] == pytest.approx((low + high) / 2, abs=0.11)
    assert found["accuracy"][0][0] > found["loss"][2][0]  # side by side


@NEEDED
@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [math.nan, 2.0], [math.inf, math.nan]])
def test_any_history_can_be_drawn(values, tmp_path):
    history = recorded(*({"<loss> & more": value} for value in values))
    finite = sum(math.isfinite(value) for value in values)
    assert sum(map(len, lines(history.plot()).values())) == finite
    assert "nan" not in "".join(texts(history.plot()))
    with pytest.raises(FileAccessError):
        history.plot(tmp_path / "missing" / "file.svg")


SAID = "pip install onednn-cpu-gomp"


@pytest.fixture
def without(monkeypatch):
    """A Linux machine without the library, on which nobody has said what kernels to take."""
    monkeypatch.delenv("SINGANET_OPS", raising=False)
    monkeypatch.setattr(selection, "_chosen", numpy_ops)
    # The device that there is has the kernels that were chosen before.
    made = device.Device("cpu", numpy_ops)
    monkeypatch.setattr(device, "cpu", lambda: made)
    for module in (library, faster):
        monkeypatch.setattr(module, "find_library", lambda: None)
        monkeypatch.setattr(module, "has_wheel", lambda: True)
    monkeypatch.setattr(faster, "_advised", False)


def net_of(channels=64, size=16):
    """4 · 9 · channels² · size² multiply-adds, half of them or more in the second convolution."""
    x = image = Input("image", (channels, size, size))
    for k in range(2):
        x = Conv2D(f"conv{k}", channels, 3)(x)
    net = FeedForwardNet(inputs=image, outputs=Dense("fc", 2)(Flatten("flat")(x)), seed=0)
    net.compile(SGD(lr=0.01), SoftmaxCrossEntropy(), metrics=[])
    return net


def fit_images(net, **options):
    net.fit(np.zeros((2, 16, 16, 16), np.float32), np.array([0, 1]), batch_size=2, **options)


def test_a_net_of_convolutions_says_it_once_unless_progress_is_hidden(without, capsys):
    fit_images(net_of(16), verbose=False)
    assert SAID not in capsys.readouterr().err
    for _ in range(2):
        fit_images(net_of(16))
    told = capsys.readouterr().err
    assert told.count(SAID) == 1
    assert "1.2 to 1.8 times as fast" in told


@pytest.mark.parametrize("size", [3, 4])
def test_it_is_said_from_a_million_multiply_adds_on(without, size):
    # Two of 59² channels · 9 · 16 places are 1,002,528; of 9 places 563,922.
    assert bool(faster.advice(net_of(59, size))) is (size == 4)


@pytest.mark.parametrize("why", ["there", "no wheel", "by name", "LLVM", "dense"])
def test_nothing_is_said_where_nothing_is_to_be_gained(without, why, monkeypatch):
    net = net_of()
    assert SAID in faster.advice(net)
    if why == "there":
        monkeypatch.setattr(faster, "find_library", lambda: "/usr/lib/libdnnl.so.3")
    elif why == "no wheel":
        monkeypatch.setattr(faster, "has_wheel", lambda: False)
    elif why == "by name":
        monkeypatch.setenv("SINGANET_OPS", "numpy")
    elif why == "LLVM":
        net.to_device(device.Device("cpu", LlvmOps()))
    else:
        net = models.build("mlp")
    assert faster.advice(net) == ""


def test_devices_tell_what_it_would_bring(without, monkeypatch):
    (missing,) = [each for each in backends() if each.name == "onednn"]
    assert not missing.available
    assert SAID in missing.detail
    gains = library.GAIN, library.GAIN_OVER_LLVM
    assert any(gain in missing.detail for gain in gains)
    assert any(gain in device.describe() for gain in gains)
    monkeypatch.setattr(library, "has_wheel", lambda: False)
    assert not any(gain in device.describe() for gain in gains)
