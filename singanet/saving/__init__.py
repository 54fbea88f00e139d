"""Nets as data and files: configurations, parameters, whole models, protobuf messages.

`nets` converts nets to data, and `objects` the layers and values in them. `parameters`,
`whole_model` and `predictor` read and write files. `codecs` map layers to Keras, to ONNX and to
PyTorch files.
"""

from __future__ import annotations

__all__: list[str] = []
