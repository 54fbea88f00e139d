"""Kernels of the CPU for float16 arrays: they compute in float32 and hand float16 back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.ops import NumpyOps
from singanet.types import Array

_LIFTED = (
    *("affine", "channel_sum", "softmax", "softmax_backward", "lrn", "lrn_backward"),
    *("conv2d", "conv2d_backward_data", "conv2d_backward_weights"),
    *("depthwise_conv2d", "depthwise_conv2d_backward_data", "depthwise_conv2d_backward_weights"),
    *("attention_weights", "attention_backward", "lstm_layer", "lstm_layer_backward"),
    *("batch_norm", "batch_norm_train", "batch_norm_backward"),
    *("batch_norm_relu", "batch_norm_relu_train", "batch_norm_relu_backward"),
    *("group_norm", "group_norm_backward", "layer_norm", "layer_norm_backward"),
)
"""Kernels of many sums or products that change none of their arguments."""


def half_device(device: Device) -> Device:
    """``device``, on a CPU with kernels that serve float16 as fast as they can.

    No BLAS multiplies float16, and NumPy's own loops take 150 times as long as one in float32.
    What layers keep stays float16; a kernel at work holds float32 copies of its operands. A GPU
    has products of its own and is left alone.
    """
    if device.index is not None:
        return device
    kernels = copy.copy(device.ops)
    kind: Any = type(device.ops)
    kernels.__class__ = _half_class(kind)
    return Device(device.name, kernels)


@cache
def _half_class(kind: Any) -> type[NumpyOps]:
    if hasattr(kind, "lifts_half"):
        made: type[NumpyOps] = kind
        return made
    methods = {name: _lifted(getattr(kind, name)) for name in _LIFTED}
    lifted = {**methods, "matmul": _matmul(kind.matmul), "lifts_half": True}
    return type(f"Half{kind.__name__}", (kind,), lifted)


def _lifted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def run(self: NumpyOps, *given: Any, **named: Any) -> Any:
        if not any(map(_is_half, (*given, *named.values()))):
            return kernel(self, *given, **named)
        wide = {key: _changed(value, np.float16, np.float32) for key, value in named.items()}
        found = kernel(self, *_changed(given, np.float16, np.float32), **wide)
        return _changed(found, np.float32, np.float16)

    return run


def _matmul(kernel: Callable[..., Array]) -> Callable[..., Array]:
    lifted = _lifted(kernel)

    @wraps(kernel)
    def matmul(self: NumpyOps, a: Array, b: Array, out: Array | None = None) -> Array:
        if out is None or not _is_half(out):
            return kernel(self, a, b, out) if out is not None else lifted(self, a, b)
        out[...] = lifted(self, a, b)
        return out

    return matmul


def _is_half(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_half, value))
    return isinstance(value, np.ndarray) and value.dtype == np.float16


def _changed(value: Any, old: type, new: type) -> Any:
    """``value`` with the arrays of type ``old`` in it, in tuples and lists too, as ``new``."""
    if isinstance(value, np.ndarray):
        return value.astype(new) if value.dtype == old else value
    if isinstance(value, (tuple, list)):
        parts = [_changed(part, old, new) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
