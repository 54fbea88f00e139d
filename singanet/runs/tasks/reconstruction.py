"""Samples to be given back as they are."""

from __future__ import annotations

import math

from singanet.data import ArrayLoader, load, load_test
from singanet.errors import DataError
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.task import EVALUATION_BATCH, DatasetTask, EpochResult
from singanet.types import Array


class Reconstruction(DatasetTask):
    """Each sample is its own target; the digits where no data are named."""

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Reconstruction:
        """An embedded data set, or the one of a file; an RBM wants values from 0 to 1."""
        found = load("digits" if data is None else data)
        _expect_probabilities(entry, found.name, "x_train", found.x_train)
        return cls(found)

    @classmethod
    def load_for_testing(cls, data: str | None, entry: ModelEntry) -> Reconstruction:
        """The same, or of a file the samples for testing alone."""
        found = load_test("digits" if data is None else data)
        _expect_probabilities(entry, found.name, "x_test", found.x_test)
        return cls(found)

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``."""
        x, _ = self.taken_out(share, seed)
        return ArrayLoader(x, x, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader:
        """Shuffled anew in every epoch."""
        x = self.data.x_train
        return ArrayLoader(x, x, recipe.batch_size, shuffle, seed, drop_last, *self.part, True)

    def test_batches(self) -> ArrayLoader:
        """Every test sample once."""
        x = self.data.x_test
        return ArrayLoader(x, x, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def report(self, result: EpochResult) -> str:
        """The root of the mean squared difference; the loss is half of its square."""
        return f"test reconstruction error {math.sqrt(2.0 * result.loss):.4f} (root mean square)"


def _expect_probabilities(entry: ModelEntry, name: str, key: str, x: Array) -> None:
    low, high = float(x.min()), float(x.max())
    if entry.name == "rbm" and not 0.0 <= low <= high <= 1.0:
        raise DataError(
            f"data {name!r}, array {key!r}",
            expected="values from 0 to 1, which rbm takes for probabilities",
            received=f"values from {low:g} to {high:g}",
            advice="scale the samples, or train autoencoder, which takes any",
        )
