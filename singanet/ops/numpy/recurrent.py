"""The recurrent kernels together."""

from __future__ import annotations

from singanet.ops.numpy.elman_layer import ElmanLayers
from singanet.ops.numpy.gru_layer import GRULayers
from singanet.ops.numpy.lstm_layer import LSTMLayers

__all__ = ["Recurrent"]


class Recurrent(LSTMLayers, GRULayers, ElmanLayers):
    """Whole sequences at a time: a backend with kernels of its own overrides these."""
