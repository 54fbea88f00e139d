"""Codecs: the forms of layers in Keras, in ONNX and in files of PyTorch, by family.

`codec` has the class, `describe` the table of all codecs. `arrays` describe arrays in weight files,
`orders` the order of their elements, `described` a layer's Keras config, `onnx` graphs. Families:
`activation`, `arithmetic`, `attention`, `choosing`, `dense`, `moving`, `normalisation`,
`recurrent`, `spatial`.
"""

from __future__ import annotations

from singanet.saving.codecs.describe import keras_layers, torch_layers

__all__ = ["keras_layers", "torch_layers"]
