"""Tables in .csv and .parquet files, read in chunks of rows."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from singanet.base.extras import package
from singanet.base.progress import ProgressBar
from singanet.data.image_sets import open_data_file
from singanet.data.row_files import RowFile, RowWriter
from singanet.data.table import (
    FIRST,
    MISSING,
    UNKNOWN,
    Measure,
    Table,
    expect_finite,
    measure_of,
    values_of,
    whole,
)
from singanet.errors import DataError, UnknownNameError, brief, did_you_mean, one_of
from singanet.types import Array

SUFFIXES = (".csv", ".parquet")
GAPS = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND"),
        *("1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)
"""The texts of a missing value in a .csv file, as in pandas."""
_CHUNK = 4096
"""The rows that are read at once."""
_LONGEST_HEAD = 1 << 20
_MOST_VALUES = 1 << 20
"""The most different texts of a column."""


@dataclass(frozen=True)
class TableFile:
    """A table in a file with the names of its columns; ``chunks`` reads it from its start."""

    path: Path
    names: tuple[str, ...]

    @property
    def where(self) -> str:
        """The file, for errors."""
        return f"table {str(self.path)!r}"

    @property
    def is_text(self) -> bool:
        """Whether all values are texts, whose types follow from the texts."""
        return self.path.suffix.lower() == ".csv"

    def place_of(self, row: int) -> str:
        """Return where the row is, such as 'line 7'."""
        if not self.is_text:
            return f"row {row + 1}"
        # Read again, since a field may have several lines.
        with open_data_file(self.path) as stream, _decoded(stream) as text:
            return f"line {_CsvReader(text, self.where).line_after(row + 1)}"

    def chunks(self, names: Sequence[str]) -> Iterator[Chunk]:
        """Yield the columns ``names`` of all rows. Errors: `DataError` for a damaged file."""
        made = _csv_chunks(self, names) if self.is_text else _parquet_chunks(self, names)
        empty = True
        for chunk in made:
            empty = False
            yield chunk
        if empty:
            raise DataError(
                self.where, expected="rows", received="none", advice="check how it was written"
            )

    def expect(self, names: Iterable[str], option: str = "") -> None:
        """Refuse columns that the file does not have. Errors: `UnknownNameError`."""
        for name in names:
            if name not in self.names:
                raise UnknownNameError(
                    f"{option}{', ' if option else ''}{self.where}",
                    expected=f"a column among {one_of(self.names, 30)}"
                    if option
                    else f"the columns of training, {name!r} among them",
                    received=brief(name) if option else f"the columns {one_of(self.names, 30)}",
                    advice=did_you_mean(name, self.names, "check the names in the file"),
                )


class Chunk(NamedTuple):
    """The columns of ``rows`` rows of a table from row ``first`` on."""

    columns: Mapping[str, Sequence[Any]]
    table: TableFile
    first: int
    rows: int

    def at(self, row: int) -> str:
        """Return where the row is in the file."""
        return self.table.place_of(self.first + row)


def open_table(path: str | Path) -> TableFile:
    """Return the table at ``path``.

    Errors: `DataError` for a file that is empty or damaged, or whose columns have no distinct
    names; `BackendError` for a .parquet file without pyarrow.
    """
    path = Path(path)
    where = f"table {str(path)!r}"
    if path.suffix.lower() == ".csv":
        with open_data_file(path) as stream, _decoded(stream) as text:
            names = next(iter(_CsvReader(text, where).take(1)), [])
    else:
        names = list(_parquet(path).schema_arrow.names)
    wrong = None
    if not names:
        wrong = "a line with the names of the columns", "an empty file"
    elif "" in names:
        wrong = "a name for each column", f"none for column {names.index('') + 1}"
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        wrong = "columns with distinct names", f"several called {twice!r}"
    if wrong is not None:
        advice = "name the columns in the first line; pandas writes no index with index=False"
        raise DataError(where, expected=wrong[0], received=wrong[1], advice=advice)
    return TableFile(path, tuple(names))


def _decoded(stream: IO[bytes]) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, "utf-8-sig", newline="")


class _CsvReader:
    """Reads the rows of a .csv file, the names first; empty lines are left out."""

    def __init__(self, text: io.TextIOWrapper, where: str) -> None:
        self._where, self._reader = where, csv.reader(text)
        with self._refusing():
            head = text.readline(_LONGEST_HEAD)
            text.seek(0)
        self._reader = csv.reader(text, delimiter=max(",;\t", key=head.count), strict=True)

    def take(self, count: int) -> list[list[str]]:
        """Return the next rows, at most ``count``; none at the end of the file."""
        rows: list[list[str]] = []
        while not rows:
            with self._refusing():
                part = list(islice(self._reader, count))
            if not part:
                return []
            rows = [row for row in part if row] if [] in part else part
        return rows

    def line_after(self, rows: int) -> int:
        """Pass over some rows, and return the line in which the next one ends."""
        passed = 0
        for row in self._reader:
            passed += bool(row)
            if passed > rows:
                break
        return self._reader.line_num

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Convert errors of the text and its fields. Errors: `DataError`."""
        try:
            yield
        except csv.Error as error:
            raise DataError(
                f"{self._where}, line {self._reader.line_num}",
                expected="fields between commas, semicolons or tabs, in double quotes if needed",
                received=str(error),
                advice="check the quotes of this line",
            ) from error
        except UnicodeDecodeError as error:
            old = "utf-16" if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
            raise DataError(
                self._where,
                expected="text in UTF-8",
                received=f"the byte 0x{error.object[error.start]:02x} ({error.reason})",
                advice=f"save it in UTF-8: iconv -f {old} -t utf-8 OLD.csv > NEW.csv",
            ) from error


def _csv_chunks(table: TableFile, names: Sequence[str]) -> Iterator[Chunk]:
    width, wanted = len(table.names), [table.names.index(name) for name in names]
    size, first = os.path.getsize(table.path), 0
    with (
        open_data_file(table.path) as stream,
        _decoded(stream) as text,
        ProgressBar(f"reading {table.path.name}", size, nbytes=True) as bar,
    ):
        reader = _CsvReader(text, table.where)
        reader.take(1)
        while rows := reader.take(_CHUNK):
            lengths = [*map(len, rows)]
            if lengths.count(width) < len(rows):
                wrong = next(k for k, length in enumerate(lengths) if length != width)
                raise DataError(
                    f"{table.where}, {table.place_of(first + wrong)}",
                    expected=f"{width} fields, as in the first line",
                    received=str(lengths[wrong]),
                    advice="check the commas and quotes of this line",
                )
            bar.add(stream.tell() - bar.done)
            columns = list(zip(*rows, strict=True))
            found = {name: columns[k] for name, k in zip(names, wanted, strict=True)}
            yield Chunk(found, table, first, len(rows))
            first += len(rows)


def _parquet(path: Path) -> Any:
    """Return pyarrow's reader. Errors: `BackendError` without pyarrow; `DataError`."""
    where = f"table {str(path)!r}"
    arrow = package(f"{where}, a .parquet file", "pyarrow.parquet", "'singanet[parquet]'")
    with open_data_file(path):
        pass
    try:
        return arrow.ParquetFile(path)
    except Exception as error:  # pyarrow raises errors of several kinds for damaged files
        raise _broken(where, error) from error


def _broken(where: str, error: Exception) -> DataError:
    return DataError(
        where,
        expected="a whole .parquet file",
        received=f"{type(error).__name__}: {str(error)[:120]}",
        advice="write it again with pandas' frame.to_parquet(path)",
    )


def _parquet_chunks(table: TableFile, names: Sequence[str]) -> Iterator[Chunk]:
    file, start = _parquet(table.path), 0
    with ProgressBar(f"reading {table.path.name}", file.metadata.num_rows) as bar:
        batches = file.iter_batches(_CHUNK, columns=list(names))
        while True:
            try:
                batch = next(batches, None)
            except Exception as error:
                raise _broken(table.where, error) from error
            if batch is None:
                return
            columns: dict[str, Any] = {}
            for name in names:
                column = batch.column(batch.schema.get_field_index(name))
                column = getattr(column, "dictionary_decode", lambda same=column: same)()
                columns[name] = column.to_numpy(zero_copy_only=False)
            if batch.num_rows:
                yield Chunk(columns, table, start, batch.num_rows)
            start += batch.num_rows
            bar.add(batch.num_rows)


class _TextFound(Exception):  # noqa: N818 - not an error: the columns are read again as texts
    def __init__(self, names: set[str]) -> None:
        self.names = names


class Codes:
    """Numbers for the values of a column, from 0 in the order of ``values``; NaN for a gap.

    Without ``known`` each new value gets the next number. Otherwise an unknown value is refused,
    or if ``rare`` gets the number after the last; a gap is refused unless ``gaps``.
    """

    def __init__(
        self, known: Sequence[Any] | None = None, rare: bool = False, gaps: bool = True
    ) -> None:
        self.values: list[Any] = list(known or ())
        self._ids = {value: float(k) for k, value in enumerate(self.values)}
        self._learns, self._rare, self._gaps = known is None, rare, gaps

    def of(self, table: TableFile, name: str, chunk: Chunk) -> list[float]:
        """Return the numbers of the column ``name`` in ``chunk``. Errors: `DataError`."""
        column = chunk.columns[name]
        if isinstance(column, np.ndarray):
            column = _plain_values(table, name, column)
            empty: Collection[Any] = (None,)
        else:
            empty = GAPS
        ids = self._ids
        if self._learns:
            for value in {*column}.difference(ids, empty):
                ids[value] = float(len(self.values))
                self.values.append(value)
            if len(ids) > _MOST_VALUES:
                raise DataError(
                    f"{table.where}, column {name!r}",
                    expected=f"at most {_MOST_VALUES} different values of a category",
                    received="more",
                    advice=f"omit it: --leave-out {name}",
                )
        found = [ids.get(value, -1.0) for value in column]
        if -1.0 in found:
            for row, (value, id) in enumerate(zip(column, found, strict=True)):
                if id == -1.0:
                    found[row] = self._missing(table, name, chunk.at(row), value, value in empty)
        return found

    def _missing(self, table: TableFile, name: str, place: str, value: Any, gap: bool) -> float:
        """Return the number of a gap or an unknown value. Errors: `DataError` for a refused one."""
        if gap and self._gaps:
            return float("nan")
        if not gap and self._rare:
            return float(len(self.values))
        raise DataError(
            f"{table.where}, {place}, column {name!r}",
            expected=f"a value of training: {one_of(map(str, self.values), 12)}",
            received="none" if gap else brief(value),
            advice="remove the row, or train on rows with such gaps"
            if gap
            else "remove the row, or train with --min-count 2, which learns rare values as unknown",
        )


def _plain_values(table: TableFile, name: str, column: Array) -> list[Any]:
    try:
        return values_of(f"{table.where}, column {name!r}", column)
    except DataError as error:
        raise error.advising(f"convert it, or omit it: --leave-out {name}") from error


def _numbers(table: TableFile, name: str, chunk: Chunk) -> Array | None:
    """Return the column as float64, NaN for a gap; None if it has text."""
    column = chunk.columns[name]
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "fiub":
            return column.astype(np.float64)
        values = _plain_values(table, name, column)
        text = any(isinstance(value, str) for value in values)
        return None if text else np.array([np.nan if v is None else v for v in values], np.float64)
    if "_" in "".join(column):
        return None  # float("1_000") is a number for Python alone
    try:
        return np.array([*map(float, column)])
    except ValueError:
        pass
    try:
        return np.array([np.nan if text in GAPS else float(text) for text in column])
    except ValueError:
        return None


def is_text_column(table: TableFile, name: str, chunk: Chunk) -> bool:
    """Return whether a value of the column ``name`` in ``chunk`` is a text, and no number."""
    return _numbers(table, name, chunk) is None


def coded(table: TableFile, columns: Mapping[str, Codes | None], learns: bool) -> RowFile:
    """Return ``columns`` of all rows as float64 (N, columns), NaN for a gap.

    A column is coded by its `Codes`, or its numbers are read. Errors: `DataError`; `_TextFound` for
    text in a column of numbers if ``learns``.
    """
    writer = RowWriter(table.where, np.float64, (len(columns),))
    for chunk in table.chunks(list(columns)):
        made, texts = np.empty((chunk.rows, len(columns))), set()
        for k, (name, codes) in enumerate(columns.items()):
            if codes is not None:
                made[:, k] = codes.of(table, name, chunk)
            elif (numbers := _numbers(table, name, chunk)) is None:
                texts.add(name)
            else:
                made[:, k] = numbers
        if texts and learns:
            raise _TextFound(texts)
        if texts or not learns:
            _expect_numbers(table, columns, chunk)
        writer.add(made)
    return writer.rows()


def _expect_numbers(table: TableFile, columns: Mapping[str, Codes | None], chunk: Chunk) -> None:
    """Refuse text and infinity in columns of numbers. Errors: `DataError` with the row."""
    for name, codes in columns.items():
        numbers = None if codes is not None else _numbers(table, name, chunk)
        if codes is not None or (numbers is not None and not np.isinf(numbers).any()):
            continue
        for row, value in enumerate(chunk.columns[name]):
            one = Chunk({name: chunk.columns[name][row : row + 1]}, table, row, 1)
            number = _numbers(table, name, one)
            if number is None or np.isinf(number).any():
                raise DataError(
                    f"{table.where}, {chunk.at(row)}, column {name!r}",
                    expected="a number, as in training, or no value",
                    received=brief(value),
                    advice="correct the value, or remove the row",
                )


class Coding:
    """A function of some rows of `coded` that returns the arrays of a `Table`.

    The arrays of a table without categories, or without numbers, are a column of zeros.
    """

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        table: Table,
        values: Mapping[str, Sequence[Any]],
    ) -> None:
        self._where = where
        self._texts = [names.index(name) for name in table.categories]
        self._measured = [names.index(name) for name in table.measures]
        ids: list[int] = []
        self._starts = np.empty(len(self._texts), np.int64)
        start = 0
        for k, (name, known) in enumerate(table.categories.items()):
            # The entries for a gap, for each value, and for a value that is not there.
            numbers = {value: id for id, value in enumerate(known, FIRST)}
            self._starts[k] = len(ids)
            entries = [MISSING, *(numbers.get(v, UNKNOWN) for v in values[name]), UNKNOWN]
            ids += [start + entry for entry in entries]
            start += table.sizes[name]
        self._ids = np.array(ids, np.int32)
        measures = [*table.measures.values()]
        self._median, self._mean, self._deviation = (
            np.array([measure[k] for measure in measures], np.float64) for k in range(3)
        )
        self._indicated = np.array([measure.indicated for measure in measures], bool)
        # An indicator follows its column.
        self._places = np.arange(len(measures)) + np.cumsum(self._indicated) - self._indicated
        self.vocabulary_size = max(1, table.vocabulary_size)
        self.shape = max(1, len(self._texts)), max(1, len(table.numeric))

    def __call__(self, rows: Array) -> dict[str, Array]:
        categorical = np.zeros((len(rows), self.shape[0]), np.int32)
        if self._texts:
            codes = rows[:, self._texts]
            entries = np.where(np.isnan(codes), 0, codes + 1).astype(np.int64)
            categorical = self._ids[entries + self._starts]
        numeric = np.zeros((len(rows), self.shape[1]), np.float32)
        if self._measured:
            numbers = rows[:, self._measured]
            missing = np.isnan(numbers)
            filled = np.where(missing, self._median, numbers) - self._mean
            with np.errstate(over="ignore"):
                numeric[:, self._places] = filled / self._deviation
            numeric[:, self._places[self._indicated] + 1] = missing[:, self._indicated]
            expect_finite(self._where, numeric)
        return {"categorical": categorical, "numeric": numeric}


class LearntTable(NamedTuple):
    """What a training learns of a table: its columns, and the names of the classes.

    ``numbered`` means that the classes are integers; ``gaps`` are the categories with gaps in
    training; ``min_count`` is as in `Table.of`.
    """

    table: Table
    target: str
    classes: tuple[str, ...]
    numbered: bool
    gaps: tuple[str, ...]
    min_count: int

    def record(self) -> dict[str, Any]:
        """Return it as values for a file."""
        found = {"kind": "table", **self._asdict()}
        table = found.pop("table")
        return {**found, "categories": table.categories, "measures": table.measures}


class ReadTable(NamedTuple):
    """The rows of a table, the function that makes arrays of them, and their labels."""

    rows: RowFile
    coding: Coding
    labels: Array
    learnt: LearntTable


def read_table(
    path: str | Path,
    learnt: LearntTable,
    target: str | None = None,
    labelled: bool = True,
) -> ReadTable:
    """Read a table whose columns are ``learnt``; without labels, if not ``labelled``, they are 0.

    Errors: `UnknownNameError` for a column that the file lacks; `DataError` for values that were
    not in the training, and text in columns of numbers.
    """
    file, table = open_table(path), learnt.table
    file.expect([*table.categories, *table.measures])
    columns: dict[str, Codes | None] = {
        name: Codes(values, learnt.min_count > 1, name in learnt.gaps)
        for name, values in table.categories.items()
    }
    columns.update(dict.fromkeys(table.measures))
    names, labels, name = list(columns), Codes(), learnt.target if target is None else target
    if labelled:
        file.expect([name], "--target")
        # A target may be a feature, too, and needs a column of its own then.
        columns = {**columns, name: labels}
    rows = coded(file, columns, learns=False)
    coding = Coding(file.where, names, table, table.categories)
    if not labelled:
        return ReadTable(rows, coding, np.zeros(len(rows), np.int32), learnt)
    keys = [class_name(value, learnt.numbered) for value in labels.values]
    for value, key in zip(labels.values, keys, strict=True):
        if key not in learnt.classes:
            raise DataError(
                f"{file.where}, column {name!r}",
                expected=f"the classes of training: {one_of(learnt.classes, 30)}",
                received=brief(value),
                advice="remove its rows, or train on rows of this class",
            )
    numbers = np.array([learnt.classes.index(key) for key in keys], np.int32)
    return ReadTable(rows, coding, _labels(file, name, rows, len(names), numbers), learnt)


def learn_table(
    path: str | Path,
    target: str,
    leave_out: Sequence[str],
    min_count: int,
    training: Callable[[int], Array],
) -> ReadTable:
    """Learn the table at ``path``, and read it.

    Categories are the texts of all rows, medians, means and deviations of the rows
    ``training(count)``.
    Errors: `UnknownNameError` for a column that the file lacks; `DataError` for columns without
    values, and a target that has no classes or gaps.
    """
    file = open_table(path)
    file.expect([target], "--target")
    file.expect(leave_out, "--leave-out")
    names = [name for name in file.names if name not in (target, *leave_out)]
    if not names:
        raise DataError(
            file.where,
            expected=f"columns besides {target!r}",
            received="none",
            advice="leave out fewer columns",
        )
    texts: set[str] = set()
    while True:
        columns = {name: Codes() if name in texts else None for name in names}
        labels = Codes()
        try:
            rows = coded(file, {**columns, target: labels}, learns=True)
            break
        except _TextFound as found:
            texts |= found.names
    classes, numbered, numbers = classes_of(file, target, labels.values, len(rows))
    y = _labels(file, target, rows, len(names), numbers)
    chosen = np.zeros(len(rows), bool)
    chosen[training(len(rows))] = True
    categories: dict[str, Sequence[str]] = {}
    measures: dict[str, Measure] = {}
    gaps, values = [], {}
    for k, (name, codes) in enumerate(columns.items()):
        column = np.concatenate([block[:, k] for block in rows.blocks()])
        at, missing = f"{file.where}, column {name!r}", np.isnan(column)
        if missing[chosen].all():
            raise DataError(
                at,
                expected="a value in at least one row of training",
                received=f"{chosen.sum()} rows without a value",
                advice=f"omit it: --leave-out {name}",
            )
        if codes is None:
            expect_finite(at, column[~missing])
            measures[name] = measure_of(at, column[chosen])
            continue
        counts = np.bincount(column[~missing].astype(np.int64), minlength=len(codes.values))
        frequent = np.flatnonzero(counts >= min_count)
        categories[name] = sorted(codes.values[number] for number in frequent)
        values[name] = codes.values
        gaps += [name] * bool(missing.any())
    table = Table(categories, measures)
    learnt = LearntTable(table, target, classes, numbered, tuple(gaps), min_count)
    return ReadTable(rows, Coding(file.where, names, table, values), y, learnt)


def class_name(value: Any, numbered: bool) -> str:
    """Return the name of a class; of numbers one without a fraction."""
    if not numbered:
        return str(value)
    try:
        return str(whole(float(value)))
    except ValueError:
        return str(value)


def classes_of(
    file: TableFile, target: str, values: Sequence[Any], rows: int
) -> tuple[tuple[str, ...], bool, Array]:
    """Return the names of the classes, whether they are integers, and the class of each value.

    Errors: `DataError` for numbers with fractions, one class, or about as many as rows.
    """
    try:
        numbers = [float(value) for value in values if not isinstance(value, bool)]
    except ValueError:
        numbers = []
    numbered = bool(values) and len(numbers) == len(values)
    received = ""
    if numbered and not all(number.is_integer() for number in numbers):
        received = f"numbers with fractions, such as {next(n for n in numbers if n % 1)}"
    keys = [class_name(value, numbered) for value in values]
    names = sorted({*keys}, key=(lambda key: (float(key), "")) if numbered else str)
    if not received and not 2 <= len(names) <= max(2, rows // 2):
        received = f"{len(names)} different values in {rows} rows"
    if received:
        raise DataError(
            f"--target {target!r}, {file.where}",
            expected="a column of classes, at least two and at most half as many as rows",
            received=received,
            advice="choose another column, divide the numbers into ranges, or learn numbers with"
            " SquaredError and net.fit in Python",
        )
    number_of = {name: number for number, name in enumerate(names)}
    return tuple(names), numbered, np.array([number_of[key] for key in keys], np.int32)


def _labels(file: TableFile, target: str, rows: RowFile, column: int, numbers: Array) -> Array:
    """Return the classes of all rows, int32 (N,). Errors: `DataError` for a gap."""
    found = np.concatenate([block[:, column] for block in rows.blocks()])
    missing = np.isnan(found)
    if missing.any():
        raise DataError(
            f"{file.where}, column {target!r}",
            expected="a class in each row",
            received=f"none in {int(missing.sum())} rows, the first row {1 + missing.argmax()}",
            advice="remove these rows, or fill the gaps",
        )
    return numbers[found.astype(np.int64)]
