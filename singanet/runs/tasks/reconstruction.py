"""Samples to be given back as they are."""

from __future__ import annotations

import math

from singanet.data import ArrayLoader, load
from singanet.errors import DataError
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.task import EVALUATION_BATCH, DatasetTask, EpochResult


class Reconstruction(DatasetTask):
    """Each sample is its own target; the digits where no data are named."""

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Reconstruction:
        """An embedded data set, or the one of a file; an RBM wants values from 0 to 1."""
        found = load("digits" if data is None else data)
        low, high = float(found.x_train.min()), float(found.x_train.max())
        if entry.name == "rbm" and not 0.0 <= low <= high <= 1.0:
            raise DataError(
                f"data {found.name!r}, array 'x_train'",
                expected="values from 0 to 1, which rbm takes for probabilities",
                received=f"values from {low:g} to {high:g}",
                advice="scale the samples, or train autoencoder, which takes any",
            )
        return cls(found)

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``."""
        x, _ = self.taken_out(share, seed)
        return ArrayLoader(x, x, EVALUATION_BATCH, shuffle=False)

    def train_batches(self, recipe: Recipe, seed: int, shuffle: bool = True) -> ArrayLoader:
        """Shuffled anew in every epoch."""
        x = self.data.x_train
        return ArrayLoader(x, x, recipe.batch_size, shuffle, seed)

    def test_batches(self) -> ArrayLoader:
        """Every test sample once."""
        x = self.data.x_test
        return ArrayLoader(x, x, EVALUATION_BATCH, shuffle=False)

    def report(self, result: EpochResult) -> str:
        """The root of the mean squared difference; the loss is half of its square."""
        return f"test reconstruction error {math.sqrt(2.0 * result.loss):.4f} (root mean square)"
