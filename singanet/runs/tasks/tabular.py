"""Rows of a table to be told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singanet.data import ArrayLoader, TabularDataset, tabular
from singanet.errors import UnknownNameError, did_you_mean
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.split import split
from singanet.runs.tasks.task import EpochResult, Task
from singanet.types import Array

EVALUATION_BATCH = 1024


class Tabular(Task):
    """A label a row; the categories of all columns are counted on, one column after the other."""

    def __init__(self, data: TabularDataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = (len(data.cardinalities), len(data.numeric))
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Tabular:
        """The census, the table that comes with the package."""
        if data not in (None, "census"):
            raise UnknownNameError(
                f"data {data!r}",
                expected=f"'census', the table that {entry.name} can be trained on from here",
                received=f"{data!r}",
                advice=did_you_mean(
                    str(data), ["census"], "for another table call net.step with its batches"
                ),
            )
        return cls(tabular())

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
        """Accuracy and loss."""
        return f"test accuracy {result.metric:.4f}  test loss {result.loss:.4f}"
