"""Forms of layers in Keras, in ONNX and in files of PyTorch. A file for each family."""

from __future__ import annotations

from singanet.codecs.describe import keras_layers, torch_layers

__all__ = ["keras_layers", "torch_layers"]
