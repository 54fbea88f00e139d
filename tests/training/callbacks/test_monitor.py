from __future__ import annotations

import math

import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.training.callbacks import Monitor


@pytest.mark.parametrize(
    ("name", "mode", "values", "better"),
    [
        ("loss", "auto", [3, 2, 2, 4, 1], [True, True, False, False, True]),
        ("val_accuracy", "auto", [0.1, 0.3, 0.2], [True, True, False]),
        ("loss", "max", [1, 2, 0], [True, True, False]),
        ("accuracy", "min", [1, 2, 0], [True, False, True]),
        ("loss", "auto", [math.nan, 2, math.nan, 1], [False, True, False, True]),
    ],
)
def test_what_is_better(name, mode, values, better):
    monitor = Monitor("here", name, mode)
    monitor.begin(["loss", "accuracy", "val_accuracy"])
    assert [monitor.better(value) for value in values] == better


def test_a_gain_must_exceed_the_least():
    monitor = Monitor("here", "loss", min_delta=0.5)
    monitor.begin(["loss"])
    assert [monitor.better(v) for v in (2.0, 1.6, 1.5, 1.4)] == [True, False, False, True]


def test_auto_prefers_the_validation():
    monitor = Monitor("here", "auto")
    monitor.begin(["loss", "val_loss"])
    assert monitor.name == "val_loss"
    monitor = Monitor("here", "auto")
    monitor.begin(["loss"])
    assert monitor.name == "loss"


def test_a_name_that_is_not_measured():
    with pytest.raises(UnknownNameError, match="validation_data"):
        Monitor("here", "val_loss").begin(["loss", "accuracy"])
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        Monitor("here", "acuracy").begin(["loss", "accuracy"])
    with pytest.raises(ArgumentError, match="mode"):
        Monitor("here", "loss", "up")
