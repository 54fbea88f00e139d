import io
import re

import numpy as np
import pytest

import singanet
from singanet.layers import Dense
from singanet.training.display import EpochLine
from singanet.training.measures import Measures
from tests.terminals import pseudo_terminal


def measured(loss, samples):
    measures = Measures(None, {})
    measures.add_loss(loss, samples)
    return measures


def test_without_a_terminal_one_line_at_the_end():
    stream = io.StringIO()
    with EpochLine("epoch 1/2", 10, stream) as line:
        assert not line.due()
        line.finish({"loss": 0.5, "accuracy": 0.25, "val_loss": 0.75}, 320)
        assert stream.getvalue() == ""
    line = r"epoch 1/2  loss 0\.5000  accuracy 0\.2500  val_loss 0\.7500  [\d,]+ samples/s\n"
    assert re.fullmatch(line, stream.getvalue())


def test_a_net_without_a_metric_shows_none():
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 1, stream) as line:
        line.finish({"loss": 2.0}, 32)
    assert re.fullmatch(r"epoch 1/1  loss 2\.0000  [\d,]+ samples/s\n", stream.getvalue())


def test_bytes_are_said_as_people_say_them():
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 1, stream) as line:
        line.finish({"loss": 2.0, "bytes_sent": 1234567.25, "bytes_received": 12.0}, 32)
    assert "  bytes_sent 1.2 MB  bytes_received 12 B  " in stream.getvalue()


def test_an_epoch_that_breaks_off_leaves_no_line():
    stream = io.StringIO()
    line = EpochLine("epoch 1/1", 2, stream)
    line.finish({"loss": 2.0}, 32)
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


@pytest.mark.parametrize(
    ("columns", "bar", "validation", "lines"),
    [
        (
            20,
            "125/250 loss 1.2500",
            "1/2",
            "epoch 9/10\n  loss 1.2500\n  val 1.5000\n  accuracy 0.5000\n  val 0.7500\n"
            "  50,000 samples/s",
        ),
        (
            40,
            "epoch 9/10 125/250 loss 1.2500 00:02",
            "epoch 9/10, validation 1/2 00:01",
            PAIRS.replace("  ", "\n  ").replace("\n", "", 1),
        ),
        (80, BAR, "epoch 9/10, validation 1/2 |{bar}| 00:01<00:01", PAIRS),
        (
            200,
            BAR,
            "epoch 9/10, validation 1/2 |{bar}| 00:01<00:01",
            f"epoch 9/10  {WHOLE}  50,000 samples/s",
        ),
    ],
)
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
    net.compile(singanet.optimizer.SGD(lr=0.1), singanet.loss.SquaredError())
    net.fit(Unsized(3, 3, 5), epochs=3, validation_data=Unsized(2, 2, 2))
    terminal.close()
    counts = [
        re.match(r"(epoch ./3(?:, validation)?) (\d+/\S+) ", frame) for frame in terminal.frames
    ]
    told = {}
    for found in filter(None, counts):
        told.setdefault(found[1], []).append(found[2])
    assert told == {
        "epoch 1/3": ["0/?", "1/?", "2/?", "3/?"],
        "epoch 1/3, validation": ["0/?", "1/?", "2/?"],
        "epoch 2/3": ["0/3", "1/3", "2/3", "3/3"],
        "epoch 2/3, validation": ["0/2", "1/2", "2/2"],
        # The total of data that have become more is unknown again.
        "epoch 3/3": ["0/3", "1/3", "2/3", "3/3", "4/?", "5/?"],
        "epoch 3/3, validation": ["0/2", "1/2", "2/2"],
    }


def test_the_time_of_validation_is_not_in_the_speed(monkeypatch):
    now = iter((0.0, 2.0, 3.0))
    monkeypatch.setattr("singanet.training.display.time.perf_counter", lambda: next(now, 9.0))
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 3, stream) as line:
        line.trained()
        assert list(line.validating([1, 2], 2)) == [1, 2]
        line.finish({"loss": 1.0, "val_loss": 2.0}, 100)
    assert stream.getvalue() == "epoch 1/1  loss 1.0000  val_loss 2.0000  50 samples/s\n"


def test_samples_of_an_earlier_process_are_not_in_the_speed(monkeypatch):
    now = iter((0.0, 2.0))
    monkeypatch.setattr("singanet.training.display.time.perf_counter", lambda: next(now, 9.0))
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 3, stream, counted=("tokens", 4), before=80) as line:
        line.finish({"loss": 1.0}, 100)
    assert stream.getvalue() == "epoch 1/1  loss 1.0000  40 tokens/s\n"
