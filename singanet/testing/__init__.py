"""Tools to test layers with: numerical gradients, and the case that every layer inherits."""

from singanet.testing.gradients import (
    GradientMismatch,
    GradientRow,
    check_gradients,
    check_net_gradients,
)
from singanet.testing.layer_case import LayerCase

__all__ = [
    "GradientMismatch",
    "GradientRow",
    "LayerCase",
    "check_gradients",
    "check_net_gradients",
]
