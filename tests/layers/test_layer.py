"""What every layer has."""

from __future__ import annotations

import inspect

import pytest

from singanet import layers
from singanet.errors import ArgumentError
from singanet.layers import Dense


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
    assert {"kernel", "stride", "border_mode", "pad"} <= shared
    for found in defaults:
        assert {key: found[key] for key in shared} == {key: defaults[0][key] for key in shared}
        assert found["kernel"] == 3
