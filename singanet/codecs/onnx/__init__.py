"""What codecs read an ONNX graph by, and write one with."""

from __future__ import annotations

__all__: list[str] = []
