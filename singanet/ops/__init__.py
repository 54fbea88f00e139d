"""Kernels: the only door to hardware."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet.ops.interface import Ops
from singanet.ops.selection import (
    Backend,
    add_array_module,
    array_module,
    backends,
    cpu_ops,
    ops_for,
)

if TYPE_CHECKING:
    from singanet.ops.numpy import NumpyOps, numpy_ops

__all__ = [
    "Backend",
    "NumpyOps",
    "Ops",
    "add_array_module",
    "array_module",
    "backends",
    "cpu_ops",
    "numpy_ops",
    "ops_for",
]


def __getattr__(name: str) -> Any:
    """NumPy's kernels, when they are first asked for: what is written with kernels needs none."""
    if name in ("NumpyOps", "numpy_ops"):
        return getattr(import_module("singanet.ops.numpy"), name)
    raise AttributeError(f"module 'singanet.ops' has no attribute {name!r}")
