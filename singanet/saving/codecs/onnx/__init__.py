"""Helpers of codecs to read and write ONNX graphs."""

from __future__ import annotations

from singanet.saving.codecs.onnx.heads import by_dims, in_shape, over_last
from singanet.saving.codecs.onnx.use import Converter, Use
from singanet.saving.codecs.onnx.values import (
    BATCHES,
    STEPS,
    Known,
    RefusedError,
    Tensor,
    norm_axis,
)
from singanet.saving.codecs.onnx.written import Form, NoFormError, Value, WrittenGraph

__all__ = [
    "BATCHES",
    "STEPS",
    "Converter",
    "Form",
    "Known",
    "NoFormError",
    "RefusedError",
    "Tensor",
    "Use",
    "Value",
    "WrittenGraph",
    "by_dims",
    "in_shape",
    "norm_axis",
    "over_last",
]
