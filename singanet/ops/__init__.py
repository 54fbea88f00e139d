"""Kernels: the only door to hardware."""

from __future__ import annotations

import sys

import numpy as np

from singanet.ops.numpy import NumpyOps
from singanet.types import Array

__all__ = ["NumpyOps", "array_module", "numpy_ops", "ops_for"]

numpy_ops = NumpyOps(np)
_by_module: dict[str, NumpyOps] = {"numpy": numpy_ops}


def ops_for(array: Array) -> NumpyOps:
    """The kernels for the kind of ``array``: NumPy's, or CuPy's where it is a CuPy array."""
    if isinstance(array, np.ndarray):
        return numpy_ops
    module = type(array).__module__.partition(".")[0]
    if module not in _by_module:
        # Only a module whose arrays exist can be asked for, so it is imported already.
        _by_module[module] = NumpyOps(sys.modules[module])
    return _by_module[module]


def array_module(array: Array) -> object:
    """``numpy``, or ``cupy`` for a CuPy array."""
    return ops_for(array).xp
