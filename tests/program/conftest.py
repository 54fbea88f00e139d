"""Nets on the kernels that the machine has by default, and on NumPy's."""

from __future__ import annotations

import pytest

from singanet.device import Device
from singanet.ops import numpy_ops


@pytest.fixture(params=["default", "numpy"])
def placed(request):
    """``placed(net)`` is the net, on the kernels under test."""

    def place(net):
        if request.param == "numpy":
            net.to_device(Device("cpu", numpy_ops))
        return net

    return place
