"""The random generator of a net, as layers and programs see it while recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops import device_draws, draws
from singanet.program.ir import NotRecordableError
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class Draws:
    """Draws through the kernels from whatever generator the net has then; others are refused."""

    def __init__(self, net: Net) -> None:
        self._net = net

    def fill(self, *outs: Array) -> None:
        """Fill ``outs``, one after the other, with float32 numbers from 0 to below 1."""
        if not all(type(out) is np.ndarray for out in outs):
            device_draws.fill(self._net.rng, self._net.device.ops.xp, *outs)
            return
        for out in outs:
            draws.fill(self._net.rng, out, *self._net.device.ops.team())

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(f"a draw by the layer itself, rng.{name}")
