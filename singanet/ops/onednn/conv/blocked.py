"""Convolve few pixels by large weights, with images in the layout that oneDNN chooses.

On channels-last images its kernels for windows read the whole weight for each image; on blocks of
channels they process several images at once. Reordering so few pixels is little work. Windows of
one pixel are products over all images in any layout.
"""

from __future__ import annotations

from functools import partial
from math import prod

from singanet.ops.costs import Case, is_read_often
from singanet.ops.kernel import NEVER
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.conv import direct

forward = partial(direct.forward, own=True)
data = partial(direct.data, own=True)
constant = partial(direct.constant, own=True)


def fits(ops: OneDnnBase, case: Case) -> bool:
    """Whether windows of small images use a weight larger than a core's cache."""
    pixels = prod(case.window._out_size(*case.x[2:]))
    windows = case.window.groups == 1 and case.window.kernel != (1, 1)
    return windows and is_read_often(pixels, prod(case.weight))


def estimate(ops: OneDnnBase, case: Case) -> float:
    """Estimate relative to the direct route, which reads the weight for each image."""
    speeds, n, weight = ops.speeds(), case.x[0], prod(case.weight)
    if not speeds.distant or n == 1:
        return NEVER
    pixels = prod(case.window._out_size(*case.x[2:]))
    arranged = case.kernel == "constant"
    usual = speeds.direct_time(n, pixels, weight, arranged)
    moved = prod(case.x) + n * pixels * case.weight[0]
    return (usual - speeds.distant * n * weight + speeds.weight * moved) / usual
