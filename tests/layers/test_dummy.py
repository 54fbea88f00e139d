"""Dummy."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, SingaNetError
from singanet.layers import Dense, Dummy, Embedding, Flatten
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


@pytest.mark.parametrize("dtype", ["int8", np.int64, "uint16", bool])
def test_typed_inputs_keep_their_numbers_and_refuse_what_would_lose_some(dtype):
    net = FeedForwardNet(inputs=(x := Input("x", (2,), dtype)), outputs=Dummy("place")(x))
    given = np.array([[1, 0]], bool)
    found = net.forward(False, given)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == [[1, 0]]
    for wrong in (given.astype(float), given.astype(complex), given.astype("int64") << 40):
        if not np.can_cast(wrong.dtype, dtype):
            with pytest.raises(SingaNetError, match="'x'"):
                net.forward(False, wrong)


def test_inputs_of_floats_are_those_of_the_net():
    net = FeedForwardNet(inputs=(x := Input("x", (2,), "float64")), outputs=Dummy("place")(x))
    assert net.forward(False, np.ones((1, 2))).dtype == np.float32


@pytest.mark.parametrize("dtype", ["object", "complex64", "int77", "U4"])
def test_refuses_types_that_are_no_numbers(dtype):
    with pytest.raises(ArgumentError, match="an integer type or 'bool'"):
        Input("x", (2,), dtype)


def test_layers_that_compute_refuse_whole_numbers():
    ids = Input("ids", (4,), "int64")
    with pytest.raises(ArgumentError, match="Embedding"):
        Dense("fc", 2)(Flatten("flat")(ids))
    assert Embedding("words", 3, 2)(Flatten("flat2")(ids)).shape == (4, 2)


def test_a_typed_net_is_rebuilt_from_its_description():
    net = FeedForwardNet(inputs=(x := Input("x", (2,), "int32")), outputs=Dummy("place")(x))
    other = FeedForwardNet.from_config(net.to_config())
    assert other.forward(False, np.ones((1, 2), np.int32)).dtype == np.int32


def test_output_shape():
    assert Dummy("place", input_sample_shape=(2, 3)).get_output_sample_shape() == (2, 3)


@pytest.mark.parametrize("name", ["", "a/", "a\n"])
def test_refuses_a_bad_name(name):
    with pytest.raises(ArgumentError, match="Dummy: expected names of"):
        Dummy(name)
