"""Dummy."""

from __future__ import annotations

import pytest

from singanet.errors import ArgumentError
from singanet.layers import Dummy
from singanet.testing import LayerCase


class TestImages(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Dummy("place")

    def expected(self, params, x):
        return x.copy()


class TestSeveralInputs(LayerCase):
    in_shapes = [(2,), (3, 4)]

    def make(self):
        return Dummy("place")

    def expected(self, params, x):
        return [part.copy() for part in x]


def test_output_shape():
    assert Dummy("place", input_sample_shape=(2, 3)).get_output_sample_shape() == (2, 3)


@pytest.mark.parametrize("name", ["", None, 3, (2, 3)])
def test_refuses_a_bad_name(name):
    with pytest.raises(ArgumentError, match="Dummy: expected a name that is a non-empty string"):
        Dummy(name)
