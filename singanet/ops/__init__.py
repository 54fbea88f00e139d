"""Kernels: the only door to hardware."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from singanet.ops.numpy import NumpyOps
from singanet.ops.selection import Backend, backends, choose, numpy_ops
from singanet.types import Array

__all__ = [
    "Backend",
    "NumpyOps",
    "add_array_module",
    "array_module",
    "backends",
    "cpu_ops",
    "numpy_ops",
    "ops_for",
]

_chosen: NumpyOps | None = None
_by_module: dict[str, NumpyOps] = {}


def cpu_ops() -> NumpyOps:
    """The kernels for NumPy arrays, chosen at the first call and kept.

    ``SINGANET_OPS`` names them, 'numpy' or 'onednn'; unset, oneDNN's serve where its library is
    found. Errors: `BackendError` where what was asked for by name is missing or does not work.
    """
    global _chosen
    if _chosen is None:
        _chosen = choose()
    return _chosen


def ops_for(array: Array) -> NumpyOps:
    """The kernels for the kind of ``array``: the CPU's, or those over CuPy for a CuPy array."""
    kind = type(array)
    if kind is np.ndarray:
        return _chosen or cpu_ops()
    module = kind.__module__.partition(".")[0]
    if module not in _by_module:
        if isinstance(array, np.ndarray):
            # A class of arrays may name its own kernels.
            named: NumpyOps = getattr(kind, "kernels", cpu_ops)()
            return named
        # Only a module whose arrays exist can be asked for, so it is imported already.
        add_array_module(module, sys.modules[module])
    return _by_module[module]


def add_array_module(name: str, module: Any) -> NumpyOps:
    """Let `ops_for` serve the arrays of ``module``, whose classes say they come from ``name``."""
    return _by_module.setdefault(name, NumpyOps(module))


def array_module(array: Array) -> object:
    """``numpy``, or ``cupy`` for a CuPy array."""
    return ops_for(array).xp
