"""What `fit` says once a process where kernels could be installed that are faster."""

from __future__ import annotations

import os
import sys

from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.layers.conv import Convolution
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn.library import GAIN, INSTALL, find_library, has_wheel
from singanet.ops.selection import VARIABLE
from singanet.summary import multiply_adds

_MUCH = 1_000_000
"""Multiply-adds of convolutions for a sample above which it is worth a line."""

_told = False


def tell_once(net: Model) -> None:
    """Say on the standard error what would make ``net`` train faster, if it has not been said."""
    global _told
    text = "" if _told else advice(net)
    if text:
        _told = True
        sys.stderr.write(f"{text}\n")


def advice(net: Model) -> str:
    """What to install for nets such as ``net``; empty where nothing is to be gained.

    That is where NumPy's kernels were asked for by name, no wheel fits the machine, or ``net`` is
    not on the CPU, or has few convolutions.
    """
    if not isinstance(net, Net) or net.device.ops is not numpy_ops or os.environ.get(VARIABLE):
        return ""
    if not has_wheel() or find_library() is not None or _convolutions(net) < _MUCH:
        return ""
    return f"NumPy's kernels train this net. With oneDNN's, {GAIN}; {INSTALL}"


def _convolutions(net: Net) -> int:
    """The multiply-adds of convolutions that are known, for a sample."""
    found = 0
    for node in net.nodes():
        layer = node.layer
        if isinstance(layer, Convolution) and isinstance(layer.in_shapes, tuple):
            found += multiply_adds(layer, [layer.in_shapes], node.output_shapes()) or 0
    return found
