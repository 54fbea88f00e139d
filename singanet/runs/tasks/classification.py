"""Samples to be told apart: images, or vectors of measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from singanet.data import ArrayLoader, Dataset, load, load_test
from singanet.errors import DataError
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.augment import AugmentedImages
from singanet.runs.tasks.task import EVALUATION_BATCH, DatasetTask, EpochResult, SizedLoader

if TYPE_CHECKING:
    from typing_extensions import Self


class Classification(DatasetTask):
    """One label a sample; the digits where no data are named."""

    usual: ClassVar[str] = "digits"
    labels: ClassVar[int] = 1
    """How many axes the labels have."""

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Self:
        """An embedded data set, or the one of a file. Errors: labels of another kind."""
        return cls._checked(load(cls.usual if data is None else data), entry)

    @classmethod
    def load_for_testing(cls, data: str | None, entry: ModelEntry) -> Self:
        """The same, or of a file the samples for testing alone."""
        return cls._checked(load_test(cls.usual if data is None else data), entry)

    @classmethod
    def _checked(cls, data: Dataset, entry: ModelEntry) -> Self:
        if data.y_test.ndim != cls.labels:
            kinds = {1: "a label a sample", 3: "a label a pixel"}
            raise DataError(
                f"data {data.name!r}",
                expected=f"{kinds[cls.labels]}, which {entry.name} learns",
                received=f"labels of shape {data.y_test.shape}",
                advice=f"see singanet models for other nets, or take {cls.usual!r}",
            )
        return cls(data)

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``, whatever their classes."""
        x, y = self.taken_out(share, seed)
        return ArrayLoader(x, y, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> SizedLoader:
        """Shuffled anew in every epoch; images shifted a little where the recipe says so.

        Not where pixels have labels, which would have to move along. Colour images are mirrored as
        well: unlike signs in black and white they mean the same.
        """
        x, y = self.data.x_train, self.data.y_train
        loader = ArrayLoader(x, y, recipe.batch_size, shuffle, seed, drop_last, *self.part, True)
        if not recipe.augment or len(self.input_shape) != 3 or y.ndim > 1:
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
