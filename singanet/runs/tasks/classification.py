"""Samples to be told apart: images, or vectors of measures."""

from __future__ import annotations

from dataclasses import replace

from singanet.data import ArrayLoader, Dataset, load
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.augment import AugmentedImages
from singanet.runs.tasks.split import split
from singanet.runs.tasks.task import Batches, EpochResult, Task

EVALUATION_BATCH = 256


class Classification(Task):
    """One label a sample; the digits where no data are named."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = data.sample_shape
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Classification:
        """An embedded data set, or the one of a file."""
        return cls(load("digits" if data is None else data))

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``, whatever their classes."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(x), share, seed)
        self.data = replace(self.data, x_train=x[rest], y_train=y[rest])
        return ArrayLoader(x[taken], y[taken], EVALUATION_BATCH, shuffle=False)

    def train_batches(self, recipe: Recipe, seed: int, shuffle: bool = True) -> Batches:
        """Shuffled anew in every epoch; images shifted a little where the recipe says so.

        Colour images are mirrored as well: unlike signs in black and white they mean the same.
        """
        x, y = self.data.x_train, self.data.y_train
        loader = ArrayLoader(x, y, recipe.batch_size, shuffle, seed)
        if not recipe.augment or len(self.input_shape) != 3:
            return loader
        return AugmentedImages(loader, seed, flip=self.input_shape[0] == 3)

    def test_batches(self) -> ArrayLoader:
        """Every test sample once."""
        return ArrayLoader(self.data.x_test, self.data.y_test, EVALUATION_BATCH, shuffle=False)

    def report(self, result: EpochResult) -> str:
        """Accuracy and loss."""
        return f"test accuracy {result.metric:.4f}  test loss {result.loss:.4f}"
