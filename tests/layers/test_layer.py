"""What every layer has."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Dense, Dummy, Layer, Merge


def test_whether_a_layer_runs_again_is_said_by_a_flag_or_left_open():
    layer = Dense("d", 3)
    assert layer.recompute is None
    for flag in (True, False, None):
        layer.recompute = flag
        assert layer.recompute is flag
    for other in (0, 1, "cheap"):
        with pytest.raises(ArgumentError, match="'d', recompute: expected True, False or None"):
            layer.recompute = other
    assert layer.recompute is None


@pytest.mark.parametrize(
    "kinds",
    [
        (layers.Conv1D, layers.Conv2D, layers.Conv3D),
        (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
        (layers.DepthwiseConv1D, layers.DepthwiseConv2D),
        (layers.SeparableConv1D, layers.SeparableConv2D),
        (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D),
        (layers.AvgPooling1D, layers.AvgPooling2D, layers.AvgPooling3D),
    ],
    ids=lambda kinds: kinds[1].__name__,
)
def test_what_nobody_gives_is_the_same_along_however_many_axes(kinds):
    defaults = [
        {key: each.default for key, each in inspect.signature(kind).parameters.items()}
        for kind in kinds
    ]
    shared = set.intersection(*map(set, defaults))
    (size,) = {"kernel_size", "pool_size"} & shared
    assert {"strides", "padding"} <= shared
    for found in defaults:
        assert {key: found[key] for key in shared} == {key: defaults[0][key] for key in shared}
        assert found[size] == 3


# -- parameters from the beginning ----------------------------------------------------------------


def test_a_layer_that_knows_its_input_has_parameters_as_soon_as_it_is_made():
    """SINGA's loop fills them: for p, spec in zip(layer.param_values(), layer.param_specs)."""
    layer = Dense("fc", 3, input_sample_shape=(4,))
    assert layer.param_names() == ["fc/weight", "fc/bias"]
    assert [spec.name for spec in layer.param_specs] == layer.param_names()
    for value in layer.param_values():
        value[...] = 2.0
    net = FeedForwardNet([layer, Dense("top", 2)], seed=0)
    rows = np.ones((1, 4), np.float32)
    assert net.forward(False, rows, ["fc"])["fc"].tolist() == [[10.0, 10.0, 10.0]]


def test_values_that_nobody_has_read_are_drawn_by_the_net():
    def made(shape, seed):
        net = FeedForwardNet(seed=seed)
        net.add(Dense("fc", 3, input_sample_shape=shape) if shape else Dense("fc", 3), src="x")
        net.add(Dummy("x", input_sample_shape=(4,)), src=[])
        return net.param_values()[0]

    np.testing.assert_array_equal(made((4,), 3), made(None, 3))
    assert (made((4,), 3) != made((4,), 4)).any()


def test_a_net_that_gives_another_shape_is_refused_by_name():
    net = FeedForwardNet(seed=0)
    net.add(Dense("first", 5, input_sample_shape=(4,)))
    layer = Dense("second", 2, input_sample_shape=(3,))
    with pytest.raises(ShapeError, match=r"layer 'second': expected input sample shape \(3,\)"):
        net.add(layer)
    assert list(layer.params) == ["weight", "bias"]
    assert "second" not in net


class Later(Layer):
    """Its setup needs an attribute that the user assigns after construction."""

    def setup(self, in_shapes):
        self.add_param("factor", (self.size,))
        return in_shapes

    def forward(self, ctx, x):
        return x


def test_a_setup_that_cannot_run_yet_runs_where_the_layer_is_added():
    layer = Later("later", (4,))
    assert not layer.params
    layer.size = 3
    assert FeedForwardNet([layer], seed=0)["later"].params["factor"].shape == (3,)
    with pytest.raises(AttributeError, match="size"):
        FeedForwardNet([Later("again", (4,))])


@pytest.mark.parametrize("shape", [(2,), [(2,)]])
def test_the_shape_of_a_sum_is_known_before_its_inputs(shape):
    """As in SINGA's test of Merge."""
    layer = Merge("both", input_sample_shape=shape)
    assert layer.get_output_sample_shape() == (2,)
    net = FeedForwardNet(seed=0)
    parts = [net.add(Dense(name, 2, input_sample_shape=(3,)), []) for name in "ab"]
    other = net.add(Dense("c", 4, input_sample_shape=(3,)), [])
    with pytest.raises(ShapeError, match=r"'both': expected at least two inputs.*, \(2,\)"):
        net.add(layer, [other, other])
    net.add(layer, parts)
    assert layer.get_output_sample_shape() == (2,)
