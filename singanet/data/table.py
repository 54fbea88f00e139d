"""Columns of a table as arrays for a net."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.columns import Columns, columns_of
from singanet.base.described import Configurable, shown
from singanet.errors import ArgumentError, DataError, UnknownNameError, brief, did_you_mean, one_of
from singanet.types import Array

Value: TypeAlias = str | int | float
"""The types of a category's values."""

_MISSING_KINDS = ("NAType", "NaTType")
"""The types of pandas' missing values, besides NaN."""


class Measure(NamedTuple):
    """The numbers that fill and scale a numeric column: (x or median − mean) / deviation.

    ``indicated``: an indicator column follows, 1 if the value is missing and 0 otherwise.
    """

    median: float
    mean: float
    deviation: float
    indicated: bool


def measure_of(at: str, column: Array) -> Measure:
    """Return the numbers that fill and scale the float64 ``column``; NaN is missing."""
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
    # The deviation may underflow to 0 for tiny numbers.
    return Measure(float(median), float(mean), float(deviation) or 1.0, bool(missing.any()))


def values_of(at: str, column: Array) -> list[Any]:
    """Return the values as Python text or numbers, None for missing ones."""
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
            advice="convert it with column.astype(str), or read it again",
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
        advice="convert dates and the like to numbers, or omit it: leave_out=[...]",
    )


def floats_of(at: str, column: Array, values: list[Any] | None = None) -> Array:
    """Return the column as float64, NaN for a missing value. Errors: text, infinity."""
    if column.dtype.kind in "fiub":
        made = column.astype(np.float64)
    else:
        values = values_of(at, column) if values is None else values
        if is_text([value for value in values if value is not None]):
            raise DataError(
                at,
                expected="numbers, as in training",
                received="text",
                advice="read the column as before",
            )
        known = [np.inf if v is not None and not _is_finite(v) else v for v in values]
        made = np.array([np.nan if v is None else v for v in known], np.float64)
    expect_finite(at, made[~np.isnan(made)])
    return made


def expect_finite(at: str, numbers: Array) -> None:
    """Refuse infinity. Errors: `DataError`."""
    wrong = int((~np.isfinite(numbers)).sum())
    if wrong:
        raise DataError(
            at,
            expected="numbers that fit into float32 after scaling, or missing values",
            received=f"{wrong} infinite or too large values",
            advice="replace them, by NaN if the value is missing",
        )


def whole(value: Value) -> Value:
    """Convert integral floats to int: columns with missing values contain floats."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return int(value) if isinstance(value, bool) else value


def is_text(values: Sequence[Any]) -> bool | None:
    """Return whether the values are text; None without values."""
    return isinstance(values[0], str) if values else None


def checked_values(name: str, values: Any) -> tuple[Value, ...]:
    """Return the values of a category. Errors: `ArgumentError` for invalid or repeated ones."""
    plain = isinstance(values, (list, tuple)) and all(
        isinstance(v, str) or _is_finite(v) for v in values
    )
    if not plain or len({isinstance(v, str) for v in values}) > 1 or len({*values}) < len(values):
        raise ArgumentError(
            f"Table, category {name!r}",
            expected="values, all of them text or all of them numbers, each once",
            received=brief(values)[:80],
            advice="let Table.of(frame) find them",
        )
    return tuple(values)


def checked_measure(name: str, given: Any) -> Measure:
    """Return the measure of a column. Errors: `ArgumentError` for invalid numbers."""
    numbers = isinstance(given, (list, tuple)) and len(given) == len(Measure._fields)
    if numbers:
        *parts, indicated = given
        numbers = type(indicated) is bool and all(map(_is_finite, parts))
    if not numbers or given[2] <= 0:
        raise ArgumentError(
            f"Table, measure {name!r}",
            expected="median, mean, a deviation above 0, and whether missing values are indicated",
            received=brief(given)[:80],
            advice="let Table.of(frame) find them",
        )
    median, mean, deviation = map(float, parts)
    return Measure(median, mean, deviation, indicated)


def _is_finite(value: Any) -> bool:
    """Return whether it is a number that fits into a float; integers may be larger."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


GROUPS = ("categorical", "numeric")
UNKNOWN, MISSING, FIRST = 0, 1, 2
"""The ids of an unknown value, of a missing one, and of the first known value."""


class Table(Configurable):
    """The fitted columns of a table, which converts this table and others to arrays.

    `Table.of` fits it. The id of a category is 0 for an unknown value, 1 for a missing one, and
    from 2 the values in their order. A missing number becomes the median; numbers are scaled to
    mean 0 and variance 1 over the fitted rows, as float32; a constant column becomes 0. ``net.table
    = table`` lets a net take raw frames, and is saved with the net. Errors: names that repeat or
    are "categorical" or "numeric"; invalid values and numbers.

    Args:
        categories: Dict of the values of each categorical column by its name: all text or all
            numbers, each once.
        measures: Dict of four values for each numeric column by its name: median, mean, standard
            deviation above 0, and whether an indicator of missing values follows the column.

    Examples:
        >>> table = singanet.data.Table.of({"city": ["Bonn", "Ulm", "Ulm"], "age": [20, 30, 40]})
        >>> table({"city": ["Ulm", "Paris"], "age": [30, 40]})["categorical"].tolist()
        [[3], [0]]
    """

    def __init__(
        self,
        categories: Mapping[str, Sequence[Value]],
        measures: Mapping[str, Sequence[float]],
    ) -> None:
        self.categories = {name: checked_values(name, v) for name, v in categories.items()}
        self.measures = {name: checked_measure(name, m) for name, m in measures.items()}
        _expect_names(self.categories, self.measures)
        self._ids: dict[str, dict[Value | None, int]] = {
            name: {None: MISSING, **{value: id for id, value in enumerate(values, FIRST)}}
            for name, values in self.categories.items()
        }

    @classmethod
    def of(
        cls,
        frame: Any,
        categorical: Collection[str] = (),
        leave_out: Collection[str] = (),
        min_count: int = 1,
    ) -> Table:
        """Fit a table to a frame, or to a dict of columns by name.

        Columns of text are categories; numbers and booleans are measures. None, NaN and pandas' NA
        are missing. Errors: no row; a column of dates, of other objects, of text and numbers, of
        infinity, or without any value.

        Args:
            frame: Data frame of pandas, polars, pyarrow and the like, or a dict of columns.
            categorical: Names of columns of numbers that are categories too.
            leave_out: Names of columns to ignore, such as the targets.
            min_count: Positive int; values that occur less often in a category count as unknown.
        """
        where = "Table.of"
        least = checked_count(where, "min_count", min_count, 1)
        columns = columns_of(where, frame)
        for argument, names in (("categorical", categorical), ("leave_out", leave_out)):
            _expect_known(f"{where}, {argument}", names, columns)
        categories: dict[str, tuple[Value, ...]] = {}
        measures: dict[str, Measure] = {}
        for name, column in columns.items():
            if name in leave_out:
                continue
            at = f"{where}, column {name!r}"
            values = values_of(at, column)
            present = [value for value in values if value is not None]
            if not present:
                raise DataError(
                    at,
                    expected="a value in at least one row",
                    received=f"{len(values)} rows without a value",
                    advice="omit it: leave_out=[...]",
                )
            if isinstance(present[0], str) or name in categorical:
                counts = Counter(map(whole, present))
                categories[name] = tuple(sorted(v for v in counts if counts[v] >= least))
            else:
                measures[name] = measure_of(at, floats_of(at, column, values))
        return cls(categories, measures)

    @property
    def sizes(self) -> dict[str, int]:
        """The rows of the `Embedding` of each category: its values, the unknown and the missing."""
        return {name: FIRST + len(values) for name, values in self.categories.items()}

    @property
    def vocabulary_size(self) -> int:
        """The rows of one `Embedding` for all columns of ``"categorical"``."""
        return sum(self.sizes.values())

    @property
    def numeric(self) -> tuple[str, ...]:
        """The names of the columns of ``"numeric"``."""
        return tuple(part for name in self.measures for part in self._parts(name))

    def __call__(self, frame: Any, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Return the arrays called ``names``, of the rows of a frame or dict of columns.

        Columns that were not fitted are ignored. Errors: columns that are missing or of another
        type.

        Args:
            frame: Data frame of pandas, polars, pyarrow and the like, or a dict of columns.
            names: Names of arrays. "categorical" are the ids of all categories, int32 (N, C), with
                an offset a column, so that one embedding of `vocabulary_size` rows serves all;
                "numeric" are the measures with their indicators, float32 (N, D). The name of a
                category returns its ids (N, 1) from 0, the name of a measure its number (N, 1), or
                (N, 2) with the indicator. None for both groups, if they are not empty.
        """
        if names is None:
            names = [
                group
                for group, has in zip(GROUPS, (self.categories, self.measures), strict=True)
                if has
            ]
        return self.arrays(frame, list(names), "Table")

    def arrays(self, frame: Any, names: Sequence[str], where: str) -> dict[str, Array]:
        """Return the arrays of the rows of ``frame`` for the inputs ``names`` of a net.

        ``where`` is the text that errors begin with. A net's single input with another name gets
        the measures if the table has no categories.
        """
        names = list(names)
        known = [*GROUPS, *self.categories, *self.measures]
        alone = len(names) == 1 and names[0] not in known and not self.categories
        wanted = {name: GROUPS[1] if alone else name for name in names}
        for name in wanted.values():
            if name not in known:
                raise UnknownNameError(
                    where,
                    expected=f"inputs with the names {one_of(GROUPS)}, or of columns of the table",
                    received=brief(name),
                    advice=did_you_mean(name, known, "give the net's inputs these names"),
                )
        parts = {name: self._columns(group) for name, group in wanted.items()}
        read = columns_of(where, frame, dict.fromkeys(c for part in parts.values() for c in part))
        return {name: self._array(wanted[name], parts[name], read, where) for name in names}

    def __repr__(self) -> str:
        sizes = {"categories": self.sizes, "numeric": list(self.numeric)}
        return shown(type(self).__name__, sizes)

    def _columns(self, name: str) -> list[str]:
        groups = {GROUPS[0]: list(self.categories), GROUPS[1]: list(self.measures)}
        return groups.get(name, [name])

    def _parts(self, name: str) -> tuple[str, ...]:
        return (name, f"{name} is missing") if self.measures[name].indicated else (name,)

    def _array(self, group: str, names: Sequence[str], read: Columns, where: str) -> Array:
        categorical = all(name in self.categories for name in names) and group != GROUPS[1]
        made, start = [], 0
        for name in names:
            at = f"{where}, column {name!r}"
            if categorical:
                made.append(start + self._ids_of(at, name, read[name]))
                start += self.sizes[name]
            else:
                made += self._scaled(at, name, read[name])
        if not made:
            return np.zeros((read.rows, 0), np.int32 if categorical else np.float32)
        return np.stack(made, axis=1)

    def _ids_of(self, at: str, name: str, column: Array) -> Array:
        """Return the ids of a column, int32 (N,)."""
        values = values_of(at, column)
        learnt = is_text(self.categories[name])
        given = is_text([value for value in values if value is not None])
        if None not in (learnt, given) and learnt is not given:
            kinds = ("numbers", "text")
            raise DataError(
                at,
                expected=f"{kinds[bool(learnt)]}, as in training",
                received=kinds[bool(given)],
                advice="read the column as before",
            )
        return np.array([self._ids[name].get(value, UNKNOWN) for value in values], np.int32)

    def _scaled(self, at: str, name: str, column: Array) -> list[Array]:
        """Return the scaled column, float32 (N,), and its indicator if there is one."""
        measure = self.measures[name]
        numbers = floats_of(at, column)
        missing = np.isnan(numbers)
        with np.errstate(over="ignore"):
            filled = np.where(missing, measure.median, numbers) - measure.mean
            made = (filled / measure.deviation).astype(np.float32)
        expect_finite(at, made)
        return [made, missing.astype(np.float32)] if measure.indicated else [made]


def _expect_names(categories: Collection[str], measures: Collection[str]) -> None:
    names = [*categories, *measures]
    for name in names:
        if not isinstance(name, str) or name in GROUPS or names.count(name) > 1:
            raise ArgumentError(
                "Table",
                expected=f"columns with distinct names, other than {one_of(GROUPS)}",
                received=brief(name)[:80],
                advice="rename the column",
            )
    if not names:
        raise ArgumentError(
            "Table",
            expected="a column",
            received="none",
            advice="omit fewer columns",
        )


def _expect_known(where: str, names: Collection[str], columns: Columns) -> None:
    alone = isinstance(names, str)
    for name in [names] if alone else names:
        if alone or name not in columns:
            raise UnknownNameError(
                where,
                expected=f"a list of names among {one_of(columns, 12)}",
                received=brief(name),
                advice="put it into a list"
                if alone and name in columns
                else did_you_mean(str(name), columns, "check the frame's columns"),
            )
