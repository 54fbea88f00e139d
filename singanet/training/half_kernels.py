"""Kernels of the CPU for float16 arrays: they compute in float32 and hand float16 back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernels
from singanet.types import Array


def half_device(device: Device) -> Device:
    """``device``, on a CPU with kernels that serve float16 as fast as they can.

    No BLAS multiplies float16, and NumPy's own loops take 150 times as long as one in float32.
    What layers keep stays float16; a kernel at work holds float32 copies of its operands. A GPU
    has products of its own and is left alone.
    """
    if device.index is not None or hasattr(device.ops, "lifts_half"):
        return device
    ops = copy.copy(device.ops)
    kind: Any = type(device.ops)
    ops.__class__ = _half_class(kind)
    return device.with_ops(ops, half_device)


@cache
def _half_class(kind: Any) -> type[Ops]:
    lifted = {
        name: _lifted(getattr(kind, name)) for name, half in kernels(kind).items() if half == "lift"
    }
    return type(f"Half{kind.__name__}", (kind,), {**lifted, "lifts_half": True})


def _lifted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def run(ops: Ops, *given: Any, out: Array | None = None, **named: Any) -> Any:
        into = {} if out is None else {"out": out}
        if not any(map(_is_half, (*given, out, *named.values()))):
            return kernel(ops, *given, **named, **into)
        wide = {key: _changed(value, np.float16, np.float32) for key, value in named.items()}
        found = kernel(ops, *_changed(given, np.float16, np.float32), **wide)
        if out is None:
            return _changed(found, np.float32, np.float16)
        out[...] = found
        return out

    return run


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
