"""ONNX: nets built from graphs of the Open Neural Network Exchange, and written as such."""

from __future__ import annotations

from singanet.onnx.inspect import inspect
from singanet.onnx.load import load
from singanet.onnx.write import save

__all__ = ["inspect", "load", "save"]
