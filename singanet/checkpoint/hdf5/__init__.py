"""HDF5 files: our own, and what Keras and others keep their weights in."""

from __future__ import annotations

from singanet.checkpoint.hdf5.reader import Hdf5Reader
from singanet.checkpoint.hdf5.writer import write_hdf5

__all__ = ["Hdf5Reader", "write_hdf5"]
