"""The recurrent kernels together."""

from __future__ import annotations

from singanet.ops.numpy.elman import ElmanKernels
from singanet.ops.numpy.gru import GRUKernels
from singanet.ops.numpy.lstm_layer import LSTMLayers

__all__ = ["Recurrent"]


class Recurrent(LSTMLayers, GRUKernels, ElmanKernels):
    """Whole sequences at a time: a backend with kernels of its own overrides these."""
