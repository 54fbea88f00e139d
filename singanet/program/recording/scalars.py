"""Numbers that change from step to step, such as a scheduled learning rate."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.types import Array


class StepScalar:
    """A number whose arithmetic is remembered, so that each replay works it out anew.

    It is no float: what would take its value for good, ``math.sqrt`` or ``if``, is refused and
    so makes the update a Python step. It differs from every number, 1.0 and 0.0 too, so that a
    shortcut for these is not recorded.
    """

    __slots__ = ("_arrays", "compute", "value")

    def __init__(self, compute: Callable[[], float]) -> None:
        self.compute = compute
        self.value = compute()
        self._arrays: dict[np.dtype[Any], Array] = {}

    def array(self, dtype: np.dtype[Any]) -> Array:
        """The array without axes that kernels read it from."""
        if dtype not in self._arrays:
            self._arrays[dtype] = np.asarray(self.value, dtype)
        return self._arrays[dtype]

    def refresh(self) -> None:
        """Work the number out anew, for the kernels of the next replay."""
        value = self.compute()
        for array in self._arrays.values():
            array[()] = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Recorded as for an array that is traced."""
        from singanet.program.recording.traced import record_ufunc

        return record_ufunc(ufunc, method, inputs, keywords)

    def __neg__(self) -> StepScalar:
        return StepScalar(lambda: -self.compute())


def _operation(function: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def method(self: StepScalar, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        theirs = other.compute if isinstance(other, StepScalar) else lambda: other
        if swapped:
            return StepScalar(lambda: function(theirs(), self.compute()))
        return StepScalar(lambda: function(self.compute(), theirs()))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _function = getattr(operator, _name)
    setattr(StepScalar, f"__{_name}__", _operation(_function, swapped=False))
    setattr(StepScalar, f"__r{_name}__", _operation(_function, swapped=True))


def _refused(name: str) -> Any:
    def method(self: StepScalar, *_: Any) -> Any:
        from singanet.program.ir import NotRecordableError

        raise NotRecordableError(f"{name} of a number that changes from step to step")

    return method


_LOOKS = """
    bool float int complex index round trunc floor ceil abs lt le gt ge floordiv rfloordiv mod rmod
    divmod rdivmod format
"""
for _name in _LOOKS.split():
    setattr(StepScalar, f"__{_name}__", _refused(_name))
