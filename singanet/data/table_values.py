"""The values of a table's columns: what they are, and what fills and scales them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from singanet.errors import ArgumentError, DataError
from singanet.types import Array

Value: TypeAlias = str | int | float
"""What a category may be."""

_MISSING_KINDS = ("NAType", "NaTType")
"""What pandas has for a missing value, beside NaN."""


class Measure(NamedTuple):
    """How a numeric column is filled and scaled: (x or median − mean) / deviation.

    ``indicated``: beside it stands a column that is 1 where the value is missing, else 0.
    """

    median: float
    mean: float
    deviation: float
    indicated: bool


def measure_of(at: str, column: Array) -> Measure:
    """What fills and scales the float64 ``column``; NaN is missing."""
    missing = np.isnan(column)
    present = column[~missing]
    low, high = present.min(), present.max()
    if low == high:
        return Measure(float(low), float(low), 1.0, bool(missing.any()))
    with np.errstate(over="ignore", invalid="ignore"):
        median = np.median(present)
        filled = np.where(missing, median, column)
        mean, deviation = filled.mean(), filled.std()
    expect_finite(at, np.array([median, mean, deviation]))
    # The squares of tiny numbers may all be 0.
    return Measure(float(median), float(mean), float(deviation) or 1.0, bool(missing.any()))


def values_of(at: str, column: Array) -> list[Any]:
    """The values as text or numbers of Python, None for those that are missing."""
    kind = column.dtype.kind
    if kind in "iubU":
        return list(column.tolist())
    if kind == "f":
        return [None if value != value else value for value in column.tolist()]
    if kind not in "OT":
        raise _other_kind(at, str(column.dtype))
    values = [_value(at, value) for value in column.tolist()]
    kinds = {isinstance(value, str) for value in values if value is not None}
    if len(kinds) > 1:
        raise DataError(
            at,
            expected="text or numbers alone",
            received="both",
            advice="convert it with column.astype(str), or read it anew",
        )
    return values


def _value(at: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return None if value != value else value
    if type(value).__name__ in _MISSING_KINDS:
        return None
    raise _other_kind(at, type(value).__name__)


def _other_kind(at: str, received: str) -> DataError:
    return DataError(
        at,
        expected="text or numbers",
        received=f"values of type {received}",
        advice="make numbers of dates and the like, or leave it out: leave_out=[...]",
    )


def floats_of(at: str, column: Array, values: list[Any] | None = None) -> Array:
    """The column as float64, NaN where a value is missing. Errors: text, infinity."""
    if column.dtype.kind in "fiub":
        made = column.astype(np.float64)
    else:
        values = values_of(at, column) if values is None else values
        if is_text([value for value in values if value is not None]):
            raise DataError(
                at,
                expected="numbers, as it was learnt of",
                received="text",
                advice="read the column as before",
            )
        known = [np.inf if v is not None and not _is_finite(v) else v for v in values]
        made = np.array([np.nan if v is None else v for v in known], np.float64)
    expect_finite(at, made[~np.isnan(made)])
    return made


def expect_finite(at: str, numbers: Array) -> None:
    """Errors: `DataError` for infinity."""
    wrong = int((~np.isfinite(numbers)).sum())
    if wrong:
        raise DataError(
            at,
            expected="numbers that a float32 holds once they are scaled, or none",
            received=f"{wrong} that are infinite or too large",
            advice="replace them, by NaN where they mean that the value is missing",
        )


def whole(value: Value) -> Value:
    """Columns with missing values come as floats: their whole numbers are as in one without."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return int(value) if isinstance(value, bool) else value


def is_text(values: Sequence[Any]) -> bool | None:
    """Whether they are text; None of no values."""
    return isinstance(values[0], str) if values else None


def checked_values(name: str, values: Any) -> tuple[Value, ...]:
    """The values of a category. Errors: `ArgumentError` for what is none, and for one twice."""
    plain = isinstance(values, (list, tuple)) and all(
        isinstance(v, str) or _is_finite(v) for v in values
    )
    if not plain or len({isinstance(v, str) for v in values}) > 1 or len({*values}) < len(values):
        raise ArgumentError(
            f"Table, category {name!r}",
            expected="values, all of them text or all of them numbers, each once",
            received=repr(values)[:80],
            advice="let Table.of(frame) find them",
        )
    return tuple(values)


def checked_measure(name: str, given: Any) -> Measure:
    """What a column's measure is. Errors: `ArgumentError` for what cannot fill and scale."""
    numbers = isinstance(given, (list, tuple)) and len(given) == len(Measure._fields)
    if numbers:
        *parts, indicated = given
        numbers = type(indicated) is bool and all(map(_is_finite, parts))
    if not numbers or given[2] <= 0:
        raise ArgumentError(
            f"Table, measure {name!r}",
            expected="median, mean, a deviation above 0, and whether missing values are indicated",
            received=repr(given)[:80],
            advice="let Table.of(frame) find them",
        )
    median, mean, deviation = map(float, parts)
    return Measure(median, mean, deviation, indicated)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float holds; integers may be larger."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
