"""A table of categories and measures, ready for wide-and-deep nets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet.data.npz import read_npz
from singanet.types import Array

_FILES = Path(__file__).parent / "files"


@dataclass(frozen=True, eq=False, repr=False)
class TabularDataset:
    """Rows of a table and a label each, for training and testing.

    ``x_*`` are dicts: ``"categorical"``, int32 (N, C), column *c* in [0, cardinalities[c]);
    ``"numeric"``, float32 (N, D), with mean 0 and variance 1 over the training rows. ``y_*``:
    int32 (N,), 0 or 1. ``categories`` tells what the numbers of each categorical column mean; those
    of ids without a meaning are a range.
    """

    name: str
    x_train: dict[str, Array]
    y_train: Array
    x_test: dict[str, Array]
    y_test: Array
    categories: dict[str, Sequence[object]]
    numeric: tuple[str, ...]
    label: tuple[str, str]

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """How many values each categorical column has."""
        return tuple(len(values) for values in self.categories.values())

    @property
    def num_classes(self) -> int:
        """Two: the label says yes or no."""
        return len(self.label)

    def shifted(self, categorical: Array) -> Array:
        """Categorical columns moved apart: column *c* starts where the ones before it end.

        So one embedding of ``sum(cardinalities)`` rows serves them all, as a wide part wants.
        """
        starts = np.cumsum((0, *self.cardinalities[:-1]))
        return categorical + starts.astype(categorical.dtype)

    def __repr__(self) -> str:
        return (
            f"TabularDataset({self.name!r}, {len(self.y_train)} rows to train on, "
            f"{len(self.y_test)} to test on, {len(self.categories)} categorical and "
            f"{len(self.numeric)} numeric columns)"
        )


def tabular() -> TabularDataset:
    """48,842 people of the 1994 US census; the label is an income above 50,000 dollars.

    The UCI data set *Adult* (CC BY 4.0; the source stands in ``files/NOTICE.md``). Capital
    gain and loss, which are mostly 0 and then large, are taken as log(1 + dollars). The split
    is fixed: of each class every fifth row, in the order of the file, is for testing.
    """
    about = json.loads((_FILES / "census.json").read_text("ascii"))
    ((label, meanings),) = about["label"].items()
    columns = read_npz(
        _FILES / "census.npz", (*about["categorical"], *about["numeric"], label), 1 << 26
    )
    y = columns[label].astype(np.int32)
    test = np.zeros(len(y), bool)
    for value in (0, 1):
        test[np.flatnonzero(y == value)[4::5]] = True
    categorical = _stacked(columns, about["categorical"], np.int32)
    numeric = _stacked(columns, about["numeric"], np.float64)
    for place, column in enumerate(about["numeric"]):
        if column.startswith("capital"):
            numeric[:, place] = np.log1p(numeric[:, place])
    numeric -= numeric[~test].mean(axis=0)
    numeric /= numeric[~test].std(axis=0)
    measures = numeric.astype(np.float32)
    return TabularDataset(
        name="census",
        x_train={"categorical": categorical[~test], "numeric": measures[~test]},
        y_train=y[~test],
        x_test={"categorical": categorical[test], "numeric": measures[test]},
        y_test=y[test],
        categories={name: tuple(values) for name, values in about["categorical"].items()},
        numeric=tuple(about["numeric"]),
        label=(meanings[0], meanings[1]),
    )


def _stacked(columns: dict[str, Array], names: dict[str, Any], dtype: type[Any]) -> Array:
    return np.stack([columns[name].astype(dtype) for name in names], axis=1)
