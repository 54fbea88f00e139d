"""The progress of an epoch where there is no terminal; tests/test_cli.py has one."""

from __future__ import annotations

import io
import re

import pytest

from singanet.training.loop import EpochResult
from singanet.training.progress import Progress


def test_there_is_one_line_with_the_last_figures():
    stream = io.StringIO()
    with Progress("epoch 1/3", 2, stream) as progress:
        progress.update(EpochResult(2.0, 0.25, 32))
        progress.update(EpochResult(1.5, 0.5, 64))
        assert stream.getvalue() == ""
    line = r"epoch 1/3  loss 1\.5000  metric 0\.5000  [\d,]+ samples/s\n"
    assert re.fullmatch(line, stream.getvalue())


def test_a_net_without_a_metric_shows_none():
    stream = io.StringIO()
    with Progress("epoch 1/1", 1, stream) as progress:
        progress.update(EpochResult(2.0, None, 32))
    assert "metric" not in stream.getvalue()


def test_an_epoch_that_breaks_off_leaves_no_line():
    stream = io.StringIO()
    progress = Progress("epoch 1/1", 2, stream)
    progress.update(EpochResult(2.0, 0.5, 32))
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert stream.getvalue() == ""
