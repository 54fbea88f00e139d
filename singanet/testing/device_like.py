"""Arrays that are as strict as a GPU's, for tests on a machine without one.

They hold NumPy's numbers, but like CuPy's arrays they refuse to meet plain NumPy arrays, and sums
and elements are 0-d arrays. ``device_like`` stands where ``numpy`` or ``cupy`` would; code that
runs with it handles arrays by their own module, which is what a GPU asks of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.ops import add_array_module, ops_for

__all__ = ["DeviceArray", "device_like", "strict_device"]

_FROM_HOST = ("asarray", "array")
"""The functions that bring arrays over."""


class DeviceArray(np.ndarray[Any, Any]):
    """A NumPy array that pretends to live elsewhere; ``get()`` is its copy on the host."""

    def get(self, out: Any = None) -> Any:
        """A plain NumPy copy, in ``out`` where that is given."""
        if out is None:
            return np.array(self).view(np.ndarray)
        out[...] = self.view(np.ndarray)
        return out

    def set(self, array: Any) -> None:
        """Take the numbers of ``array``, NumPy's."""
        self.view(np.ndarray)[...] = array

    def __reduce__(self) -> Any:
        return _far, (self.get(),)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        _refuse_host(f"{ufunc.__name__}.{method}", inputs, kwargs)
        return _wrapped(getattr(ufunc, method)(*_plain(inputs), **_plain(kwargs)), kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in _FROM_HOST:
            _refuse_host(function.__name__, args, kwargs)
        return _wrapped(function(*_plain(args), **_plain(kwargs)), kwargs)

    def __getitem__(self, key: Any) -> Any:
        # Index arrays may come from the host, as they may in CuPy.
        return _wrapped(self.view(np.ndarray)[_plain(key)], {})

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse_host("assignment", (value,), {})
        self.view(np.ndarray)[_plain(key)] = _plain(value)


def _far(array: Any) -> DeviceArray:
    """NumPy's ``array`` as one of the device."""
    return array.view(DeviceArray)


class _Module(ModuleType):
    """A module of NumPy's whose functions take and give `DeviceArray`."""

    ndarray = DeviceArray

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name)
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        if isinstance(found, ModuleType):
            return _Module(name, found)
        return _Function(found) if callable(found) and not isinstance(found, type) else found


class _Function:
    """One function of the module."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ not in _FROM_HOST:
            _refuse_host(self.__name__, args, kwargs)
        elif type(args[0]) is np.ndarray:
            # Brought over: what is written to one is not seen in the other.
            args = (args[0].copy(), *args[1:])
        return _wrapped(self.function(*_plain(args), **_plain(kwargs)), kwargs)

    def __getattr__(self, name: str) -> Any:
        return _Function(getattr(self.function, name))


def _refuse_host(where: str, args: Any, kwargs: Any) -> None:
    for value in (*_flat(args), *_flat(tuple(kwargs.values()))):
        if type(value) is np.ndarray:
            raise TypeError(
                f"{where}: expected arrays of the device alone; received a NumPy array of shape"
                f" {value.shape}; bring it over with xp.asarray"
            )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [part for inner in value for part in _flat(inner)]
    return [value]


def _plain(value: Any) -> Any:
    """``value`` with every `DeviceArray` in it as a plain view."""
    if isinstance(value, DeviceArray):
        return value.view(np.ndarray)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(part) for part in value)
    return value


def _wrapped(result: Any, kwargs: dict[str, Any]) -> Any:
    """``result`` as it would come from a device: arrays of its own, 0-d ones for numbers."""
    out = kwargs.get("out")
    out = out[0] if isinstance(out, tuple) else out
    if out is not None and not isinstance(result, tuple):
        return out
    if isinstance(result, (np.ndarray, np.generic)):
        return np.asarray(result).view(DeviceArray)
    if isinstance(result, (tuple, list)):
        return type(result)(_wrapped(part, {}) for part in result)
    return result


DeviceArray.__module__ = "device_like"
device_like = _Module("device_like", np)
add_array_module("device_like", device_like)


class _StrictDevice(Device):
    """Where `DeviceArray`s live; as many as wish may be current."""

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def __reduce__(self) -> Any:
        return strict_device, ()


def strict_device() -> Device:
    """A device whose arrays are as strict as a GPU's: ``net.to_device(strict_device())``."""
    return _StrictDevice("strict", ops_for(device_like.zeros(1)), 0)
