"""SINGA's pickles, read without running them and written for every Python."""

from __future__ import annotations

from singanet.checkpoint.pickle.reader import PickleReader
from singanet.checkpoint.pickle.writer import write_pickle

__all__ = ["PickleReader", "write_pickle"]
