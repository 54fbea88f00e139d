from __future__ import annotations

import io

from singanet.training.display import EpochLine
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
    measures = Measures({})
    measures.add_loss(loss, samples)
    return measures


def test_without_a_terminal_one_line_at_the_end():
    stream = io.StringIO()
    with EpochLine("epoch 1/2", 10, stream) as line:
        assert not line.due()
        line.finish({"loss": 0.5, "accuracy": 0.25, "val_loss": 0.75}, 320, 10)
        assert stream.getvalue() == ""
    text = stream.getvalue()
    assert text.startswith("epoch 1/2  loss 0.5000  ")
    assert text.endswith("  accuracy 0.2500  val_loss 0.7500\n")
    assert text.count("\n") == 1


def test_on_a_terminal_the_bar_moves_by_what_was_done_and_not_at_every_batch():
    line, bar = EpochLine("epoch 1/2", 10, io.StringIO()), Bar()
    line._bar = bar
    assert line.due()
    line.show(measured(2.0, 96), 3)
    assert not line.due()
    line.finish({"loss": 1.0, "accuracy": 0.5}, 320, 10)
    assert bar.batches == 10
    assert bar.texts[0].startswith("loss 2.0000")
    assert bar.texts[-1].endswith("accuracy 0.5000")
