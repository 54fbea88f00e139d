"""Classification and segmentation of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.data import ArrayLoader, Batch, Dataset, load, load_test
from singanet.errors import DataError
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.task import EVALUATION_BATCH, DatasetTask, EpochResult, SizedLoader
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Self


class AugmentedImages:
    """The batches of ``loader``, images (N, C, H, W), each time drawn anew.

    Half of the images are shifted by up to an eighth of their size, zeros coming in (He et al.,
    2016, pad and crop by as much); with ``flip`` half are mirrored left to right. The draws
    depend on ``seed`` and the epoch alone: an image is moved as it is by any number of processes
    that split the batches of ``loader``.
    """

    def __init__(self, loader: ArrayLoader, seed: int, flip: bool = False) -> None:
        self.loader = loader
        self._size = loader.x.shape[2:]  # type: ignore[union-attr]
        self.seed = seed
        self.flip = flip
        self.rank, self.world_size = loader.rank, loader.world_size

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        # The third number keeps these draws apart from those that shuffle.
        rng = np.random.default_rng([self.seed, self.loader.epoch, 1])
        # Each process draws for the whole batch, of which it has every so many an image.
        loader, mine = self.loader, slice(self.rank, None, self.world_size)
        size = loader.batch_size
        for _ in range(loader.position):
            self._draws(size, rng)
        for k, (x, y) in enumerate(loader, loader.position):
            count = min(size, loader.samples - k * size)
            offsets, mirrored = (drawn[mine] for drawn in self._draws(count, rng))
            x = shifted(x, offsets)
            x[mirrored] = x[mirrored, :, :, ::-1]
            yield x, y

    def state_dict(self) -> dict[str, int]:
        """The loader's position, from which the draws follow."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: those of the loader."""
        self.loader.load_state_dict(state)

    def _draws(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Shifts (n, 2) and which images are mirrored (n,), for the next ``n`` images."""
        height, width = self._size
        reach = np.array([height // 8, width // 8])
        offsets = rng.integers(-reach, reach + 1, (n, 2))
        offsets[rng.random(n) < 0.5] = 0
        return offsets, rng.random(n) < 0.5 if self.flip else np.zeros(n, bool)


def shifted(x: Array, offsets: Array) -> Array:
    """Images (N, C, H, W) moved down and right by ``offsets`` (N, 2); zeros come in."""
    n, channels, height, width = x.shape
    dy, dx = np.abs(offsets).max(axis=0, initial=0)
    padded = np.zeros((n, channels, height + 2 * dy, width + 2 * dx), x.dtype)
    padded[:, :, dy : dy + height, dx : dx + width] = x
    rows = np.arange(height) + (dy - offsets[:, :1])
    columns = np.arange(width) + (dx - offsets[:, 1:])
    moved = padded[np.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


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


class Segmentation(Classification):
    """One label a pixel; the scenes where no data are named."""

    metrics = ("accuracy", "iou")
    usual, labels = "scenes", 3

    def report(self, result: EpochResult) -> str:
        """The share of pixels that are right, the mean intersection over union, and the loss."""
        iou = f"  test IoU {result.logs['iou']:.4f}" if "iou" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{iou}  test loss {result.loss:.4f}"
