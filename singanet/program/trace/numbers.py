"""Numbers of a step whose arithmetic is recorded, so that each replay computes them again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.program.ir import NotRecordableError
from singanet.program.trace.abstract import ChangingNumber, record_ufunc
from singanet.types import Array


class StepScalar(ChangingNumber):
    """A number whose arithmetic is recorded, so that each replay computes it again.

    It is not a float: an operation that would use its present value, ``math.sqrt`` or ``if``, is
    refused and makes the update a Python step. It differs from every number, also from 1.0 and 0.0,
    so that a shortcut for these is not recorded.
    """

    __slots__ = ("_arrays", "compute", "late", "value")

    def __init__(self, compute: Callable[[], float], late: bool = False) -> None:
        self.compute = compute
        # Whether its value is known only in the middle of a replay.
        self.late = late
        self.value = compute()
        self._arrays: dict[np.dtype[Any], Array] = {}

    def array(self, dtype: np.dtype[Any]) -> Array:
        """The array without axes from which kernels read it."""
        if dtype not in self._arrays:
            self._arrays[dtype] = np.asarray(self.value, dtype)
        return self._arrays[dtype]

    @property
    def arrays(self) -> list[Array]:
        """The arrays from which kernels read it, one for each type."""
        return [*self._arrays.values()]

    def refresh(self) -> None:
        """Compute the number again, for the kernels of the next replay."""
        value = self.compute()
        for array in self._arrays.values():
            array[()] = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Recorded as for an abstract array."""
        return record_ufunc(ufunc, method, inputs, keywords)

    def __neg__(self) -> StepScalar:
        return StepScalar(lambda: -self.compute(), self.late)

    def __abs__(self) -> StepScalar:
        return StepScalar(lambda: abs(self.compute()), self.late)


def _operation(function: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def method(self: StepScalar, other: Any) -> Any:
        if hasattr(other, "strides"):
            return NotImplemented
        theirs = other.compute if isinstance(other, StepScalar) else lambda: other
        late = self.late or getattr(other, "late", False)
        if swapped:
            return StepScalar(lambda: function(theirs(), self.compute()), late)
        return StepScalar(lambda: function(self.compute(), theirs()), late)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _arithmetic = getattr(operator, _name)
    setattr(StepScalar, f"__{_name}__", _operation(_arithmetic, swapped=False))
    setattr(StepScalar, f"__r{_name}__", _operation(_arithmetic, swapped=True))


def _refused_number(name: str) -> Any:
    def method(self: StepScalar, *_: Any) -> Any:
        raise NotRecordableError(f"{name} of a number that changes from step to step")

    return method


_NUMBER_LOOKS = """
    bool float int complex index round trunc floor ceil lt le gt ge floordiv rfloordiv mod rmod
    divmod rdivmod format
"""
for _name in _NUMBER_LOOKS.split():
    setattr(StepScalar, f"__{_name}__", _refused_number(_name))


def number_now(value: Any) -> float:
    """The number of a `StepScalar`, an array without axes or a number, at the replay under way."""
    return float(value.compute() if isinstance(value, StepScalar) else value)
