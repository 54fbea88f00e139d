"""Tools for tests: numerical gradients, test cases of layers, ranks in threads, a device."""

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.testing.communicators import FakeCommunicator, Ranks, communicators
from singanet.testing.device_like import strict_device
from singanet.testing.device_watch import DeviceUseError, DeviceWatch, watch_device
from singanet.testing.gradient_checks import (
    GradientError,
    GradientRow,
    check_gradients,
    check_loss,
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
    "check_loss",
    "check_net_gradients",
    "communicators",
    "strict_device",
    "watch_device",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)
