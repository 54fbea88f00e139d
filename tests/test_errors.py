"""Errors in three parts."""

import numpy as np
import pytest

from singanet import errors
from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, SingaNetError, did_you_mean, one_of

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, SingaNetError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_message_holds_all_parts_in_order(kind):
    error = kind("layer 'fc'", expected="this", received="that", advice="do so")
    assert str(error) == "layer 'fc': expected this; received that; do so"
    assert (error.where, error.expected, error.received, error.advice) == (
        "layer 'fc'", "this", "that", "do so",
    )  # fmt: skip


def test_errors_are_the_builtin_ones_as_well():
    assert issubclass(errors.ShapeError, ValueError)
    assert issubclass(errors.UnknownNameError, LookupError)
    assert issubclass(errors.CallOrderError, RuntimeError)


def test_long_lists_of_names_are_cut():
    assert one_of(["a", "b"]) == "'a', 'b'"
    assert one_of(map(str, range(100)), limit=2) == "'0', '1', ... (100 in all)"


def test_close_names_are_suggested():
    assert did_you_mean("relo", ["relu", "tanh"], "none") == "did you mean 'relu'?"
    assert did_you_mean("xyz", ["relu", "tanh"], "none") == "none"


@pytest.mark.parametrize("value",
    [np.zeros((3, 4)), {"x": np.zeros((40, 40))}, "a" * 500, [*range(999)]])  # fmt: skip
def test_a_value_that_is_refused_takes_a_line(value):
    with pytest.raises(ArgumentError) as caught:
        checked_count("net", "n", value, 1)
    assert "\n" not in caught.value.received
    assert len(caught.value.received) <= 200
