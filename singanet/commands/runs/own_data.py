"""Data in people's own files: tables, folders of images, pairs of .npy files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.progress import progress
from singanet.commands.runs.run_options import refusal
from singanet.data import Dataset, FolderLoader, Table
from singanet.data.dataset import check_classes, check_labels, check_samples
from singanet.data.folder_loader import image_files, is_image, read_image
from singanet.data.image_sets import is_mnist, which_cifar
from singanet.data.row_files import RowFile, RowWriter, Samples, open_npy
from singanet.data.table_files import SUFFIXES, LearntTable, ReadTable, learn_table, read_table
from singanet.data.transforms import resize
from singanet.errors import DataError, FileAccessError, SingaNetError
from singanet.models import ModelEntry
from singanet.types import Array, Shape

RECORD = "data.json"
"""The file of a run folder with what the run has learnt of its data."""

TABLES, ARRAYS, IMAGES = "table", "arrays", "images"
_TEST_SHARE = 10
"""One of so many samples is kept back to test with."""
_LARGEST = 256 << 20
_SHOWN = 12


@dataclass(frozen=True)
class OwnOptions:
    """How own data are read: the options of a run, and its ``record`` from an earlier start.

    ``whole`` tests on all samples; otherwise a tenth of them, drawn by ``seed``, is for tests.
    Without ``labelled`` the data need no labels.
    """

    target: str | None = None
    leave_out: str | None = None
    min_count: int = 1
    seed: int = 0
    record: Mapping[str, Any] | None = None
    whole: bool = False
    labelled: bool = True


@dataclass(frozen=True)
class OwnData:
    """Samples of own data.

    ``classes`` are the names of the classes, () for numbers; ``names`` are the names of the test
    samples, () for their numbers; ``record`` is written into the run folder; ``columns`` tells how
    those of a table are read. A table has the size of its ``vocabulary``.
    """

    dataset: Dataset
    classes: tuple[str, ...] = ()
    names: Sequence[str] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int = 0
    shape: Shape = ()
    columns: str = ""

    @property
    def about(self) -> str:
        """One line about the samples."""
        data = self.dataset
        counts = f"{len(data.y_train):,} samples to train on, {len(data.y_test):,} to test on"
        classes = f"classes {_listed(self.classes)}" if self.classes else f"shape {self.shape}"
        return f"{Path(data.name).name}: {counts}; {self.columns}{classes}"


def _listed(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def kind_of_own(data: str | None) -> str | None:
    """Return the kind of own data: a table, arrays or images; None for other data."""
    if data is None:
        return None
    path = Path(data)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return TABLES
    if suffix == ".npy":
        return ARRAYS
    if path.is_dir() and not is_mnist(path) and which_cifar(path) is None:
        return IMAGES
    return IMAGES if is_image(path) else None


def read_own(entry: ModelEntry, data: str, options: OwnOptions) -> OwnData:
    """Return the samples at ``data`` for the net ``entry``. Errors: as for each kind of data."""
    kind = kind_of_own(data)
    if kind == TABLES:
        return _table(entry, data, options)
    return _arrays(entry, data, options) if kind == ARRAYS else _images(entry, data, options)


def read_record(folder: Path) -> Mapping[str, Any] | None:
    """Return what the run in ``folder`` has learnt of own data; None for other data.

    Errors: `FileAccessError` for a file of another form.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST))
    except (OSError, ValueError) as error:
        raise _not_ours(path, str(error)[:80]) from error
    kinds = {TABLES: True, IMAGES: True, ARRAYS: False}
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind not in kinds or (kinds[kind] and not _are_names(found.get("classes"))):
        raise _not_ours(path, "another form")
    return dict(found)


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def learnt_table(record: Mapping[str, Any] | None) -> LearntTable | None:
    """Return the table in ``record``; None for other data. Errors: an invalid record."""
    if record is None or record["kind"] != TABLES:
        return None
    try:
        return LearntTable(
            Table(record["categories"], record["measures"]),
            str(record["target"]),
            tuple(map(str, record["classes"])),
            record["numbered"] is True,
            tuple(map(str, record["gaps"])),
            int(record["min_count"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _not_ours(Path(RECORD), f"{type(error).__name__}: {error}"[:120]) from error


def _not_ours(path: Path, received: str) -> SingaNetError:
    expected = f"a {RECORD} that singanet train wrote"
    advice = "train with singanet train MODEL --data FILE --out RUN_DIR first"
    return refusal(f"file {str(path)!r}", expected, received, advice, FileAccessError)


def _parts(count: int, options: OwnOptions, where: str) -> tuple[Array, Array]:
    """Return the numbers of the samples to train on and to test on, sorted.

    Errors: too few samples.
    """
    everything = np.arange(count)
    if options.whole:
        return everything[:0], everything
    if count < _TEST_SHARE:
        expected = f"{_TEST_SHARE} samples or more, one of which is kept back to test with"
        raise refusal(where, expected, count, "add samples", DataError)
    # The third number gives other draws than for shuffles, shifts and validation.
    order = np.random.default_rng([options.seed, 0, 3]).permutation(count)
    kept = count // _TEST_SHARE
    return np.sort(order[kept:]), np.sort(order[:kept])


def _dataset(name: str, x: Samples, y: Array, classes: int, options: OwnOptions) -> Dataset:
    train, test = _parts(len(x), options, f"data {name!r}")
    x_train: Any = x.subset(train)
    x_test: Any = x.subset(test)
    return Dataset(name, x_train, y[train], x_test, y[test], classes)


# -- tables ---------------------------------------------------------------------------------------


def _table(entry: ModelEntry, data: str, options: OwnOptions) -> OwnData:
    """Errors: a net for other data; no target; as `read_table` and `learn_table`."""
    vectors = entry.task == "classification"
    if not (vectors or entry.task == "tabular"):
        expected = "a net for tables: wide_deep, deepfm or dcn, or mlp for columns of numbers"
        raise refusal(f"data {data!r}", expected, entry.name, "pass another net", DataError)
    learnt = learnt_table(options.record)
    if learnt is not None:
        read = read_table(data, learnt, options.target, options.labelled)
    elif options.record is not None:
        expected, received = "images or arrays, as in training", "a table"
        raise refusal(f"data {data!r}", expected, received, "pass other data", DataError)
    else:
        if options.target is None:
            expected, advice = "the column of the classes", "add --target COLUMN"
            raise refusal("--target", expected, f"none, for the table {data!r}", advice)
        read = learn_table(
            data,
            options.target,
            [name for name in (options.leave_out or "").split(",") if name],
            options.min_count,
            lambda count: _parts(count, options, f"data {data!r}")[0],
        )
    table = read.learnt.table
    if vectors and table.categories:
        expected = f"columns of numbers, for {entry.name}"
        received = f"text in column {next(iter(table.categories))!r}"
        advice = "train wide_deep, deepfm or dcn, or omit the column: --leave-out NAME"
        raise refusal(f"data {data!r}", expected, received, advice, DataError)
    return _of_table(data, read, vectors, options)


def _of_table(data: str, read: ReadTable, vectors: bool, options: OwnOptions) -> OwnData:
    coding, learnt = read.coding, read.learnt
    shape: Shape = coding.shape[1:] if vectors else coding.shape
    x = (
        Samples(read.rows, lambda rows: coding(rows)["numeric"], shape)
        if vectors
        else Samples(read.rows, coding, ())
    )
    made = _dataset(data, x, read.labels, len(learnt.classes), options)
    sizes = [f"{name} ({len(known)})" for name, known in learnt.table.categories.items()]
    parts = {"texts": sizes, "numbers": list(learnt.table.measures)}
    columns = "".join(f"{kind} {_listed(names)}; " for kind, names in parts.items() if names)
    record, vocabulary = learnt.record(), coding.vocabulary_size
    return OwnData(made, learnt.classes, (), record, vocabulary, shape, columns)


# -- pairs of arrays ------------------------------------------------------------------------------


def _arrays(entry: ModelEntry, data: str, options: OwnOptions) -> OwnData:
    """Errors: no target, or not an .npy file; arrays of other shapes, or with NaN."""
    x = open_npy(data)
    check_samples(data, "x", x)
    labelled = options.labelled and entry.task != "reconstruction"
    y = np.zeros(len(x), np.int32)
    if labelled:
        if options.target is None or not options.target.lower().endswith(".npy"):
            expected, advice = "the file of the labels", "add --target FILE.npy"
            raise refusal("--target", expected, options.target or "none", advice)
        y = open_npy(options.target)[:]
        check_labels(options.target, "y", y, x)
        if len(y) != len(x):
            expected = f"{len(x)} labels, one for each sample of {data!r}"
            where, advice = f"data {options.target!r}", "give every sample a label"
            raise refusal(where, expected, len(y), advice, DataError)
        check_classes(options.target, int(y.max()) + 1, y, y)
        y = y.astype(np.int32)
    _expect_finite(data, x)
    gray = len(x.shape) == 3
    shape: Shape = (1, *x.shape[1:]) if gray else x.shape[1:]

    def convert(rows: Array) -> Array:
        made = rows.astype(np.float32)
        if rows.dtype == np.uint8:
            made /= np.float32(255)
        return made.reshape(len(rows), *shape)

    classes = int(y.max()) + 1
    made = _dataset(data, Samples(x, convert, shape), y, classes, options)
    return OwnData(made, record={"kind": ARRAYS}, shape=shape)


def _expect_finite(data: str, x: RowFile) -> None:
    """Refuse NaN and infinity in float32. Errors: `DataError` with the first sample."""
    if x.dtype.kind != "f":
        return
    start = 0
    for block in progress(x.blocks(), f"checking {Path(data).name}"):
        with np.errstate(over="ignore"):
            finite = np.isfinite(block.astype(np.float32)).reshape(len(block), -1).all(axis=1)
        if not finite.all():
            expected, advice = "finite values in float32", "remove or replace them"
            received = f"NaN or infinity in sample {start + int(finite.argmin())}"
            raise refusal(f"data {data!r}", expected, received, advice, DataError)
        start += len(block)


# -- images ---------------------------------------------------------------------------------------


def _images(entry: ModelEntry, data: str, options: OwnOptions) -> OwnData:
    """Errors: a net for other data; as `FolderLoader` and `read_image`."""
    shape = entry.input_shape if len(entry.input_shape) == 3 else (1, *entry.input_shape)
    if entry.task not in ("classification", "reconstruction") or len(shape) != 3:
        expected = "a net that classifies images, such as lenet or resnet20"
        raise refusal(f"data {data!r}", expected, entry.name, "pass another net", DataError)
    if options.target is not None:
        expected, advice = "data with columns or labels", "remove it: folders are the classes"
        raise refusal("--target", expected, f"the images {data!r}", advice)
    channels, height, width = map(int, shape)
    record = options.record or {}
    known = record["classes"] if record.get("kind") == IMAGES else None
    if options.labelled:
        loader = FolderLoader(data, 1, classes=known)
        files: Sequence[Path] = loader.files
        labels, classes = loader.labels, loader.classes
    else:
        files, classes = image_files(Path(data)), tuple(known or ())
        labels = np.zeros(len(files), np.int32)
    writer = RowWriter(f"images {data!r}", np.uint8, shape)
    for file in progress(files, f"reading {Path(data).name}"):
        image = read_image(file, grayscale=channels == 1)
        writer.add(resize(image, size=(height, width))[None])
    x = Samples(writer.rows(), lambda rows: rows.astype(np.float32) / np.float32(255), shape)
    made = _dataset(data, x, labels, max(1, len(classes)), options)
    names = [str(files[place]) for place in _parts(len(files), options, "")[1].tolist()]
    return OwnData(made, classes, names, {"kind": IMAGES, "classes": classes}, shape=shape)
