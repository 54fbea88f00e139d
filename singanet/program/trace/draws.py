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

    def fill(self, out: Array) -> None:
        """Fill ``out`` with float32 numbers from 0 to below 1."""
        if type(out) is np.ndarray:
            draws.fill(self._net.rng, out, *self._net.device.ops.team())
        else:
            device_draws.fill(self._net.rng, out)

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(f"a draw by the layer itself, rng.{name}")
