"""Memory of a training step, from two small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from singanet.engine.ones import ones
from singanet.summary.trace import Trace, trace
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net

_BATCHES = (2, 3)
"""Not 1, at which kernels may view what they else copy."""


@dataclass(frozen=True)
class Footprint:
    """What a training step holds, for any batch size: all of it grows by equal amounts a sample.

    ``shapes`` are output sample shapes by name, every axis known.
    """

    shapes: dict[str, list[Shape]]
    small: Trace
    large: Trace

    def kept(self, name: str, batch_size: int = 1) -> int:
        """Bytes that ``name`` keeps for backward and no layer before it, nor the caller, holds."""
        return _line(self.small.kept[name], self.large.kept[name], batch_size)

    def all_kept(self, batch_size: int = 1) -> int:
        """The sum of `kept` over all layers."""
        return sum(self.kept(name, batch_size) for name in self.small.kept)

    def fed(self, batch_size: int) -> int:
        """Bytes of the inputs."""
        return _line(self.small.fed, self.large.fed, batch_size)

    def peak(self, batch_size: int) -> tuple[int, str]:
        """The most bytes at one moment beside parameters and inputs, and the layer at work then.

        Activations kept or still to be read, and gradients. Scratch of single kernels comes on
        top, and so does the state of the optimizer.
        """
        moments = zip(self.small.moments, self.large.moments, strict=True)
        sizes = [_line(low, high, batch_size) for low, high in moments]
        most = max(range(len(sizes)), key=sizes.__getitem__)
        return sizes[most], self.small.at[most]


def measure(net: Net, extent: int | None = None) -> Footprint:
    """Run two training steps, of 2 and 3 samples of ones, and see what they hold.

    The net's generator and running state are as before at the end.
    ``extent`` stands in for axes of any extent. Errors: such axes and no ``extent``; what layers
    raise when they compute.
    """
    plan, params, device = net.execution_plan(), net.params(), net.device
    feeds = [ones(plan, size, device, extent) for size in _BATCHES]
    with net.rehearsal(), device.scope(), np.errstate(all="ignore"):
        (small, shapes), (large, _) = (trace(plan, feed, params, device.ops) for feed in feeds)
    return Footprint(shapes, small, large)


def _line(low: int, high: int, batch_size: int) -> int:
    return low + (high - low) * (batch_size - _BATCHES[0])
