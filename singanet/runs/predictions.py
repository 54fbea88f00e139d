"""Predictions for samples of a file, and the file they go to."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import expect_suffix, replacing
from singanet.checkpoint import write_state
from singanet.data import Dataset
from singanet.data.npz import read_npz
from singanet.errors import DataError, one_of
from singanet.runs.figures import check_writable
from singanet.types import Array

SUFFIXES = (".csv", ".npz")


def bare_samples(data: str | None) -> Array | None:
    """The array ``x``, or else ``x_test``, of an ``.npz`` file in float32; None for other data.

    Errors: `DataError` for a file without either, or what is no samples.
    """
    if data is None or not data.lower().endswith(".npz"):
        return None
    try:
        with zipfile.ZipFile(data) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        names = ["x"]  # what is wrong is said by the reader below
    if not {"x", "x_test"} & {*names}:
        raise DataError(
            f"data file {data!r}",
            expected="an array x of samples, or x_test",
            received=f"{one_of(names, 6) or 'an empty archive'}",
            advice="write it with numpy.savez(path, x=samples); labels are not needed",
        )
    x = read_npz(Path(data), ("x" if "x" in names else "x_test",)).popitem()[1]
    # Samples of a data set are checked and scaled; labels there must be.
    labels = np.zeros(len(x) if x.ndim else 0, np.int32)
    return Dataset.from_arrays(data, x, labels, x, labels).x_test


def check_target(path: Path) -> None:
    """Refuse, before the work, a file that could not be written after it."""
    expect_suffix("--out", path, SUFFIXES)
    check_writable(path, "--out")


def write_predictions(path: Path, out: Array, classes: bool) -> None:
    """Write ``out`` (N, ...), as a row a sample or as the array ``prediction``.

    With ``classes`` ``out`` is (N, C) of probabilities, and the likeliest is given as well.
    """
    if path.suffix.lower() == ".npz":
        state: dict[str, Any] = {"prediction": np.asarray(out)}
        if classes:
            state["class"] = out.argmax(axis=-1)
        write_state(path, state, "npz")
        return
    rows = out.reshape(len(out), -1)
    likeliest = [[int(k)] for k in out.argmax(axis=-1)] if classes else [[]] * len(out)
    head = ["sample", *(["class"] if classes else []), *(str(k) for k in range(rows.shape[1]))]
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for number, (best, row) in enumerate(zip(likeliest, rows, strict=True)):
            writer.writerow([number, *best, *(f"{value:.9g}" for value in row)])
