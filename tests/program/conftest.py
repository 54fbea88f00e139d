"""Nets on the kernels that the machine has by default, and on NumPy's."""

import pytest

from singanet.device import Device
from singanet.ops import cpu_ops, numpy_ops

# Where no other kernels are, the default is NumPy's, and once is enough.
KERNELS = ["default"] if cpu_ops() is numpy_ops else ["default", "numpy"]


@pytest.fixture(params=KERNELS)
def placed(request):
    """``placed(net)`` is the net, on the kernels under test."""

    def place(net):
        if request.param == "numpy":
            net.to_device(Device("cpu", numpy_ops))
        return net

    return place
