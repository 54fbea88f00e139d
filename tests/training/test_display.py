from __future__ import annotations

import io
import os
import re

import numpy as np
import pytest

import singanet
from singanet.layers import Dense
from singanet.training.display import EpochLine, filled
from singanet.training.measures import Measures


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


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    encoding = "utf-8"

    def isatty(self):
        return True

    def fileno(self):
        return 0

    def frames(self):
        """What it was shown, a line each."""
        seen = (frame.strip() for frame in re.split(r"[\r\n]+", self.getvalue()))
        return [frame for frame in seen if frame]


@pytest.fixture
def terminal(monkeypatch):
    size = os.terminal_size((80, 24))
    monkeypatch.setattr("singanet.training.display.os.get_terminal_size", lambda _: size)
    monkeypatch.setattr("singanet.training.display.INTERVAL", -1)
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_a_bar_on_a_terminal_and_the_figures_in_the_end(terminal):
    with EpochLine("epoch 1/2", 10, terminal) as line:
        line.show(measured(2.0, 96), 3)
        line.show(measured(1.0, 320), 10)
        line.finish({"loss": 1.0, "accuracy": 0.5}, 320)
    first, *bars, last = terminal.frames()
    assert first.startswith("epoch 1/2 0/10 |")
    for bar, done, loss in zip(bars, ("3", "10"), ("2.0000", "1.0000"), strict=True):
        assert bar.startswith(f"epoch 1/2 {done}/10 |█")
        assert f"| loss {loss}  " in bar
        assert len(bar) <= 80
    assert re.fullmatch(r"epoch 1/2  loss 1\.0000  accuracy 0\.5000  [\d,]+ samples/s", last)


def test_the_bar_is_brought_up_to_date_ten_times_a_second_at_most(terminal, monkeypatch):
    monkeypatch.setattr("singanet.training.display.INTERVAL", 3600)
    with EpochLine("epoch 1/2", 10, terminal) as line:
        assert line.due()
        line.show(measured(2.0, 96), 3)
        assert not line.due()


class Unsized:
    """Batches whose number nobody knows: 3, or those of ``counts`` in turn."""

    def __init__(self, *counts):
        self.counts = iter(counts)

    def __iter__(self):
        for _ in range(next(self.counts, 3)):
            yield np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)


def test_the_bar_of_a_fit_knows_its_length_after_the_first_epoch(terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal)
    net = singanet.FeedForwardNet([Dense("fc", 1, input_sample_shape=(2,))])
    net.compile(singanet.optimizer.SGD(lr=0.1), singanet.loss.SquaredError())
    net.fit(Unsized(3, 3, 5), epochs=3, validation_data=Unsized(2, 2, 2))
    counts = [
        re.match(r"(epoch ./3(?:, validation)?)(?: |, batch )(\d\S*) ", frame)
        for frame in terminal.frames()
    ]
    # A number alone would be read as a part of the epochs'.
    assert not any(re.match(r"epoch ./3 \d+ ", frame) for frame in terminal.frames())
    told = {}
    for found in filter(None, counts):
        told.setdefault(found[1], []).append(found[2])
    assert told == {
        "epoch 1/3": ["0", "1", "2", "3"],
        "epoch 1/3, validation": ["0", "1", "2"],
        "epoch 2/3": ["0/3", "1/3", "2/3", "3/3"],
        "epoch 2/3, validation": ["0/2", "1/2", "2/2"],
        # Data that have become more are counted alone again.
        "epoch 3/3": ["0/3", "1/3", "2/3", "3/3", "4", "5"],
        "epoch 3/3, validation": ["0/2", "1/2", "2/2"],
    }


def test_the_time_of_validation_is_not_in_the_speed(monkeypatch):
    now = iter((0.0, 2.0))
    monkeypatch.setattr("singanet.training.display.time.perf_counter", lambda: next(now))
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 3, stream) as line:
        line.trained()
        assert list(line.validating([1, 2], 2)) == [1, 2]
        line.finish({"loss": 1.0, "val_loss": 2.0}, 100)
    assert stream.getvalue() == "epoch 1/1  loss 1.0000  val_loss 2.0000  50 samples/s\n"


def test_no_figure_is_cut_off():
    parts = ["epoch 10/10", *(f"{name} 0.1234" for name in ("loss", "accuracy", "val_loss"))]
    parts += ["val_accuracy 0.9876", "12,345 samples/s"]
    assert filled(parts, None) == "  ".join(parts)
    lines = filled(parts, 80).split("\n")
    assert [len(line) for line in lines] == [79, 18]
    assert lines[1] == "  12,345 samples/s"
    assert filled(parts, 8).split("\n") == [parts[0], *(f"  {part}" for part in parts[1:])]


def test_samples_of_an_earlier_process_are_not_in_the_speed(monkeypatch):
    now = iter((0.0, 2.0))
    monkeypatch.setattr("singanet.training.display.time.perf_counter", lambda: next(now))
    stream = io.StringIO()
    with EpochLine("epoch 1/1", 3, stream, counted=("tokens", 4), before=80) as line:
        line.finish({"loss": 1.0}, 100)
    assert stream.getvalue() == "epoch 1/1  loss 1.0000  40 tokens/s\n"
