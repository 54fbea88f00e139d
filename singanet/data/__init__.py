"""Data sets, and loaders that hand out their batches."""

from __future__ import annotations

from singanet.data.array_loader import ArrayLoader
from singanet.data.dataset import Dataset
from singanet.data.digits import digits
from singanet.data.load import load
from singanet.data.npz import read_npz

__all__ = ["ArrayLoader", "Dataset", "digits", "load", "read_npz"]
