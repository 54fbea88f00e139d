"""Forms of layers in Keras, in ONNX and in files of PyTorch. A file for each family.

`codec` is the class, `describe` the table of all. `arrays` are for files of weights, `orders` for
the order of elements in them, `described` for a layer of Keras, `onnx` for graphs. Families:
`activation`, `arithmetic`, `attention`, `choosing`, `dense`, `moving`, `normalisation`,
`recurrent`, `spatial`.
"""

from __future__ import annotations

from singanet.saving.codecs.describe import keras_layers, torch_layers

__all__ = ["keras_layers", "torch_layers"]
