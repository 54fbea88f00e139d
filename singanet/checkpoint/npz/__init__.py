"""NumPy's ``.npz`` archives."""

from __future__ import annotations

from singanet.checkpoint.npz.reader import NpzReader
from singanet.checkpoint.npz.writer import write_npz

__all__ = ["NpzReader", "write_npz"]
