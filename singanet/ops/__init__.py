"""Kernels: the only door to hardware."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from singanet.ops.numpy import NumpyOps
from singanet.types import Array

__all__ = ["NumpyOps", "add_array_module", "array_module", "numpy_ops", "ops_for"]

numpy_ops = NumpyOps(np)
_by_module: dict[str, NumpyOps] = {"numpy": numpy_ops}


def ops_for(array: Array) -> NumpyOps:
    """The kernels for the kind of ``array``: NumPy's, or those over CuPy for a CuPy array."""
    kind = type(array)
    if kind is np.ndarray:
        return numpy_ops
    module = kind.__module__.partition(".")[0]
    if module not in _by_module:
        if isinstance(array, np.ndarray):
            return numpy_ops
        # Only a module whose arrays exist can be asked for, so it is imported already.
        add_array_module(module, sys.modules[module])
    return _by_module[module]


def add_array_module(name: str, module: Any) -> NumpyOps:
    """Let `ops_for` serve the arrays of ``module``, whose classes say they come from ``name``."""
    return _by_module.setdefault(name, NumpyOps(module))


def array_module(array: Array) -> object:
    """``numpy``, or ``cupy`` for a CuPy array."""
    return ops_for(array).xp
