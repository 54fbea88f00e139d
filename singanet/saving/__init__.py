"""Nets as data and files: configurations, parameters, whole models, protobuf messages.

`nets` is a net as data, `objects` what stands in it; `parameters`, `whole_model` and `predictor`
are files.
`codecs` says what layers are elsewhere: in Keras, in ONNX and in files of PyTorch.
"""

from __future__ import annotations

__all__: list[str] = []
