"""Tools to test layers with: numerical gradients, and the case that every layer inherits."""

from singanet.testing.gradients import (
    GradientError,
    GradientRow,
    check_gradients,
    check_net_gradients,
)
from singanet.testing.layer_case import LayerCase

__all__ = [
    "GradientError",
    "GradientRow",
    "LayerCase",
    "check_gradients",
    "check_net_gradients",
]
