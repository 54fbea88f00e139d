"""safetensors files, read and written without the package of that name."""

from __future__ import annotations

from singanet.checkpoint.safetensors.reader import SafetensorsReader
from singanet.checkpoint.safetensors.writer import write_safetensors

__all__ = ["SafetensorsReader", "write_safetensors"]
