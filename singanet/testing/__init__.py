"""Tools for tests: numerical gradients, test cases of layers, ranks in threads, a device."""

from singanet.testing.communicators import FakeCommunicator, Ranks, communicators
from singanet.testing.device_like import strict_device
from singanet.testing.device_watch import DeviceUseError, DeviceWatch, watch_device
from singanet.testing.gradient_checks import (
    GradientError,
    GradientRow,
    check_gradients,
    check_net_gradients,
)
from singanet.testing.layer_case import LayerCase

__all__ = [
    "DeviceUseError",
    "DeviceWatch",
    "FakeCommunicator",
    "GradientError",
    "GradientRow",
    "LayerCase",
    "Ranks",
    "check_gradients",
    "check_net_gradients",
    "communicators",
    "strict_device",
    "watch_device",
]
