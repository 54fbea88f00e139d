"""Rows of a table to be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from singanet.data import ArrayLoader, TabularDataset, clicks, movielens, tabular
from singanet.errors import (
    ArgumentError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.split import split
from singanet.runs.tasks.task import EpochResult, Task
from singanet.types import Array

EVALUATION_BATCH = 1024


def _clicks(rest: str) -> TabularDataset:
    scale, _, rows = rest.partition(":")
    try:
        return clicks(int(rows or 100_000), float(scale or 1.0))
    except ValueError as error:
        if isinstance(error, SingaNetError):
            raise
        raise ArgumentError(
            f"data {'clicks:' + rest!r}",
            expected="clicks:SCALE or clicks:SCALE:ROWS",
            received=repr(rest),
            advice="write clicks:0.01 for a hundredth of Criteo's field sizes",
        ) from None


_TABLES: dict[str, Callable[[str], TabularDataset]] = {
    "census": lambda rest: tabular(),
    "movielens": lambda rest: movielens(rest or None),
    "clicks": _clicks,
}


class Tabular(Task):
    """A label a row; the categories of all columns are counted on, one column after the other."""

    metrics = ("accuracy", "auc")

    def __init__(self, data: TabularDataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = (len(data.cardinalities), len(data.numeric))
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Tabular:
        """The census, which comes with the package, or another of `_TABLES`.

        "movielens:FOLDER" says where its files are, "clicks:SCALE" and "clicks:SCALE:ROWS" how
        large the made data are.
        """
        name, _, rest = (data or "census").partition(":")
        if name not in _TABLES or (rest and name == "census"):
            raise UnknownNameError(
                f"data {data!r}",
                expected=f"{one_of(_TABLES)}: tables that {entry.name} can be trained on from here",
                received=f"{data!r}",
                advice=did_you_mean(
                    name, _TABLES, "for another table call net.step with its batches"
                ),
            )
        return cls(_TABLES[name](rest))

    @property
    def options(self) -> Mapping[str, Any]:
        """How many categories there are in all columns."""
        return {"vocabulary_size": sum(self.data.cardinalities)}

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Rows drawn by ``seed``."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(y), share, seed)
        chosen = {name: part[taken] for name, part in x.items()}
        left = {name: part[rest] for name, part in x.items()}
        self.data = replace(self.data, x_train=left, y_train=y[rest])
        return ArrayLoader(
            self._rows(chosen), y[taken], EVALUATION_BATCH, False, 0, False, *self.part, True
        )

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader:
        """Shuffled anew in every epoch."""
        rows = self._rows(self.data.x_train)
        return ArrayLoader(
            rows, self.data.y_train, recipe.batch_size, shuffle, seed, drop_last, *self.part, True
        )

    def test_batches(self) -> ArrayLoader:
        """Every test row once."""
        rows = self._rows(self.data.x_test)
        return ArrayLoader(
            rows, self.data.y_test, EVALUATION_BATCH, False, 0, False, *self.part, True
        )

    def _rows(self, x: dict[str, Array]) -> dict[str, Array]:
        return {**x, "categorical": self.data.shifted(x["categorical"])}

    def report(self, result: EpochResult) -> str:
        """Accuracy, area under the ROC curve and loss."""
        auc = f"  test AUC {result.logs['auc']:.4f}" if "auc" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{auc}  test loss {result.loss:.4f}"
