"""Where a net's arrays live: the CPU, or a CUDA device through CuPy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, BackendError
from singanet.ops import NumpyOps, numpy_ops, ops_for
from singanet.types import Array

__all__ = ["Device", "cpu", "cuda", "get_default_device"]


@dataclass(frozen=True)
class Device:
    """A place for arrays, with the kernels that run there."""

    name: str
    ops: NumpyOps
    index: int | None = None

    def put(self, array: Any) -> Array:
        """``array`` on this device; the same object when it is there already."""
        if self.ops is numpy_ops:
            return array.get() if hasattr(array, "get") else np.asarray(array)
        with self.scope():
            return self.ops.xp.asarray(array)

    def scope(self) -> AbstractContextManager[Any]:
        """A context in which new arrays are made on this device."""
        if self.index is None:
            return nullcontext()
        return self.ops.xp.cuda.Device(self.index)


_cpu = Device("cpu", numpy_ops)


def cpu() -> Device:
    """The CPU, with NumPy arrays."""
    return _cpu


def get_default_device() -> Device:
    """The device of a new net: the CPU."""
    return _cpu


def cuda(index: int = 0) -> Device:
    """The CUDA device ``index``, with CuPy arrays. Errors: CuPy or the device is missing."""
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            f"device 'cuda:{index}'",
            expected="the package cupy",
            received=str(error),
            advice="run: pip install 'singanet[cuda]'",
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f"device 'cuda:{index}'",
            expected="a CUDA device with its driver",
            received=str(error),
            advice="install the NVIDIA driver, or use singanet.device.cpu()",
        ) from error
    if not 0 <= index < count:
        raise ArgumentError(
            f"device 'cuda:{index}'",
            expected=f"an index from 0 to {count - 1}",
            received=str(index),
            advice="choose one of the devices that are there",
        )
    return Device(f"cuda:{index}", ops_for(cupy.empty(0)), index)
