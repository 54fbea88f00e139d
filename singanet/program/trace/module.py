"""The array module of a recording: NumPy, whose new arrays are traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import Traced, filled, plain, recording


class TracingModule:
    """The module that kernels see as ``xp``; functions that make no array are NumPy's own."""

    def __init__(self, tape: Tape, name: str = "numpy") -> None:
        self._tape = tape
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        # Asked for once: from then on it is an attribute.
        found = self.__dict__[name] = getattr(np, name)
        return found

    def empty(self, shape: Any, dtype: Any = float, order: Any = "C") -> Any:
        """As NumPy's."""
        return filled(recording(), np.empty(shape, dtype, order), None)

    def zeros(self, shape: Any, dtype: Any = float, order: Any = "C") -> Any:
        """As NumPy's."""
        return filled(recording(), np.zeros(shape, dtype, order), 0)

    def ones(self, shape: Any, dtype: Any = None, order: Any = "C") -> Any:
        """As NumPy's."""
        kind = float if dtype is None else dtype
        return filled(recording(), self._tape.evaluator.full(shape, 1, kind, order), 1)

    def full(self, shape: Any, value: Any, dtype: Any = None, order: Any = "C") -> Any:
        """As NumPy's, for a value known beforehand."""
        array = self._tape.evaluator.full(shape, plain(value), dtype, order)
        return filled(recording(), array, value)

    def empty_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return filled(recording(), np.empty_like(plain(array), *args, **kwargs), None)

    def zeros_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return filled(recording(), np.zeros_like(plain(array), *args, **kwargs), 0)

    def ones_like(self, array: Any, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's."""
        return filled(recording(), np.ones_like(plain(array), *args, **kwargs), 1)

    def arange(self, *args: Any, **kwargs: Any) -> Any:
        """As NumPy's, a constant of the program."""
        return self._constant(np.arange(*args, **kwargs))

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """As NumPy's; what is no array yet becomes a constant of the program."""
        value = self._tape.near(value)
        if isinstance(value, Traced):
            return value if dtype is None else value.astype(dtype, copy=False)
        if isinstance(value, np.ndarray) and (dtype is None or value.dtype == dtype):
            return value.view(Traced)
        return self._constant(np.array(value, dtype))

    def array(self, value: Any, dtype: Any = None, order: Any = "K") -> Any:
        """As NumPy's."""
        value = self._tape.near(value)
        if not isinstance(value, np.ndarray):
            return self._constant(np.array(value, dtype, order=order))
        array = value.view(Traced)
        return array.astype(array.dtype if dtype is None else dtype, order)

    def ascontiguousarray(self, value: Any, dtype: Any = None) -> Any:
        """As NumPy's, for arrays."""
        array = self.asarray(value, dtype)
        if array.flags.c_contiguous and array.ndim:
            return array
        return array._copied(array.dtype, "C", "contiguous")

    def _constant(self, array: Any) -> Any:
        self._tape.hold(array, constant=True)
        return array.view(Traced)
