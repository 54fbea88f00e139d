"""Samples to be told apart: images, or vectors of measures."""

from __future__ import annotations

from singanet.data import ArrayLoader, load, load_test
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.augment import AugmentedImages
from singanet.runs.tasks.task import EVALUATION_BATCH, Batches, DatasetTask, EpochResult


class Classification(DatasetTask):
    """One label a sample; the digits where no data are named."""

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Classification:
        """An embedded data set, or the one of a file."""
        return cls(load("digits" if data is None else data))

    @classmethod
    def load_for_testing(cls, data: str | None, entry: ModelEntry) -> Classification:
        """The same, or of a file the samples for testing alone."""
        return cls(load_test("digits" if data is None else data))

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``, whatever their classes."""
        x, y = self.taken_out(share, seed)
        return ArrayLoader(x, y, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> Batches:
        """Shuffled anew in every epoch; images shifted a little where the recipe says so.

        Colour images are mirrored as well: unlike signs in black and white they mean the same.
        """
        x, y = self.data.x_train, self.data.y_train
        loader = ArrayLoader(x, y, recipe.batch_size, shuffle, seed, drop_last, *self.part, True)
        if not recipe.augment or len(self.input_shape) != 3:
            return loader
        return AugmentedImages(loader, seed, flip=self.input_shape[0] == 3)

    def test_batches(self) -> ArrayLoader:
        """Every test sample once."""
        return ArrayLoader(
            self.data.x_test, self.data.y_test, EVALUATION_BATCH, False, 0, False, *self.part, True
        )

    def report(self, result: EpochResult) -> str:
        """Accuracy and loss."""
        return f"test accuracy {result.metric:.4f}  test loss {result.loss:.4f}"
