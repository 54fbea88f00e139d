"""ONNX: nets built from graphs of the Open Neural Network Exchange, and written as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked
from singanet.onnx.inspect import inspect
from singanet.onnx.load import load

if TYPE_CHECKING:  # else when it is asked for
    from singanet.onnx.write import save

__all__ = ["inspect", "load", "save"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
