"""What layers are in ONNX: one function a class, in one table."""

from __future__ import annotations

__all__: list[str] = []
