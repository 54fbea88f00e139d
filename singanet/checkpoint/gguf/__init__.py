"""GGUF, the files of llama.cpp: typed values, and arrays of which some are in blocks."""

from __future__ import annotations

from singanet.checkpoint.gguf.reader import GgufReader
from singanet.checkpoint.gguf.rotary import halved, interleaved
from singanet.checkpoint.gguf.writer import write_gguf

__all__ = ["GgufReader", "halved", "interleaved", "write_gguf"]
