"""Weights in the files of Keras, arrays converted to its layouts and back."""

from __future__ import annotations

from singanet.checkpoint.keras.layer import LayerDescription
from singanet.checkpoint.keras.reader import KerasReader
from singanet.checkpoint.keras.writer import write_keras, write_keras_legacy

__all__ = ["KerasReader", "LayerDescription", "write_keras", "write_keras_legacy"]
