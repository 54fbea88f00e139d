"""What layers are elsewhere: in Keras, in ONNX, in files of PyTorch. A file for each family."""

from __future__ import annotations

from singanet.codecs.describe import keras_layers, torch_layers

__all__ = ["keras_layers", "torch_layers"]
