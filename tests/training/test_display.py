from __future__ import annotations

import io
import re

import pytest

from singanet.training.display import EpochLine, filled
from singanet.training.measures import Measures


class Bar:
    """What a progress bar is asked to do."""

    def __init__(self):
        self.batches = 0
        self.texts = []

    def set_postfix_str(self, text, refresh):
        self.texts.append(text)

    def update(self, count=1):
        self.batches += count

    def close(self):
        pass


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


def test_an_epoch_that_breaks_off_leaves_no_line():
    stream = io.StringIO()
    line = EpochLine("epoch 1/1", 2, stream)
    line.finish({"loss": 2.0}, 32)
    with pytest.raises(KeyboardInterrupt), line:
        raise KeyboardInterrupt
    assert stream.getvalue() == ""


def test_on_a_terminal_the_bar_moves_by_what_was_done_and_not_at_every_batch():
    line, bar = EpochLine("epoch 1/2", 10, io.StringIO()), Bar()
    line._bar = bar
    assert line.due()
    line.show(measured(2.0, 96), 3)
    assert not line.due()
    line.show(measured(1.0, 320), 10)
    line.finish({"loss": 1.0, "accuracy": 0.5}, 320)
    assert bar.batches == 10
    assert [re.sub(r"  .*", "", text) for text in bar.texts] == ["loss 2.0000", "loss 1.0000"]


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
