"""SINGA's `ImageBatchIter`: batches of listed image files, for ever, made by a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.base.files import path_of
from singanet.data.images import image_to_array, in_colors
from singanet.data.prefetch import Background
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

    ImageBatch: TypeAlias = tuple[Array, Array | list[str] | None]


class ImageBatchIter(Described):
    """Batches of the images that ``img_list_file`` lists, round and round.

    A line of the file is a path, ``delimiter`` and an integer label; paths start at
    ``image_folder``, or are taken as they stand. ``image_transform(full_path)`` returns a list
    of Pillow images of one size, each of which is a sample with the line's label. `next` gives
    (float32 (B, 3, H, W), RGB from 0 to 255; int32 (B,)). Where not every label is an integer,
    the labels are a list of the strings; where no line has one, None. With ``shuffle`` each
    round has its own order, drawn from ``seed``. A thread keeps ``capacity`` batches ready.
    """

    def __init__(
        self,
        img_list_file: str | Path,
        batch_size: int,
        image_transform: Callable[[str], list[Image]],
        shuffle: bool = True,
        delimiter: str = " ",
        image_folder: str | Path | None = None,
        capacity: int = 10,
        seed: int = 0,
    ) -> None:
        if not callable(image_transform):
            raise ArgumentError(
                "ImageBatchIter, image_transform",
                expected="a function from a path to a list of images",
                received=f"a {type(image_transform).__name__}",
                advice="give for example lambda path: ImageTool().load(path).get()",
            )
        where = "ImageBatchIter"
        self.batch_size = checked_count(where, "batch_size", batch_size, 1)
        self.capacity = checked_count(where, "capacity", capacity, 1)
        self.seed = checked_count(where, "seed", seed, 0)
        self.image_transform = image_transform
        self.shuffle = bool(shuffle)
        self.image_folder = (
            "" if image_folder is None else str(path_of(image_folder, "image_folder"))
        )
        self._paths, self._labels = _read_list(img_list_file, delimiter)
        self.num_samples = len(self._paths)
        self._batches: Generator[ImageBatch, None, None] | None = None
        self._ahead: Background[ImageBatch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the thread: a copy has to be started."""
        return {**vars(self), "_batches": None, "_ahead": None}

    def start(self) -> None:
        """Start the thread, at the first round. Called again, it starts anew."""
        self.end()
        self._ahead = Background(self._forever(), self.capacity, "singanet-images")
        self._ahead.start()
        self._batches = iter(self._ahead)

    def next(self) -> ImageBatch:
        """The next batch. Errors: `CallOrderError` before `start`; what the thread ran into."""
        if self._batches is None:
            raise CallOrderError(
                "ImageBatchIter",
                expected="start() before next()",
                received="next() alone, or after end()",
                advice="call start()",
            )
        try:
            return next(self._batches)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the thread. Nothing is done where none runs."""
        if self._ahead is not None:
            self._ahead.stop()
        self._ahead = self._batches = None

    def _forever(self) -> Iterator[ImageBatch]:
        images: list[Array] = []
        places: list[int] = []
        for place in self._places():
            path = os.path.join(self.image_folder, self._paths[place])
            made = self.image_transform(path)
            _check_images(path, made)
            for image in made:
                pixels = image_to_array(in_colors(image, f"image of {path!r}").convert("RGB"))
                if images and pixels.shape != images[0].shape:
                    raise _different_sizes(path, images[0].shape, pixels.shape)
                images.append(pixels)
                places.append(place)
                if len(images) == self.batch_size:
                    yield np.stack(images).astype(np.float32), self._labels_of(places)
                    images, places = [], []

    def _places(self) -> Iterator[int]:
        round_number = 0
        while True:
            if self.shuffle:
                rng = np.random.default_rng([self.seed, round_number])
                yield from rng.permutation(self.num_samples).tolist()
            else:
                yield from range(self.num_samples)
            round_number += 1

    def _labels_of(self, places: list[int]) -> Array | list[str] | None:
        if isinstance(self._labels, list):
            return [self._labels[place] for place in places]
        return None if self._labels is None else self._labels[places]


def _read_list(file: str | Path, delimiter: str) -> tuple[list[str], Array | list[str] | None]:
    where = f"image list {str(file)!r}"
    try:
        lines = path_of(file, "img_list_file").read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(
            where,
            expected="a readable text file in UTF-8",
            received=str(error),
            advice="check the path",
        ) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    parts = [line.rpartition(delimiter) for _, line in numbered]
    with_label = [bool(found) for _, found, _ in parts]
    if not parts or (any(with_label) and not all(with_label)):
        odd = f"line {numbered[with_label.index(False)][0]} without a label" if parts else "none"
        raise DataError(
            where,
            expected=f"lines of a path, {delimiter!r} and a label, or of paths alone",
            received=odd,
            advice="give every line a label or none",
        )
    if not any(with_label):
        return [line for _, line in numbered], None
    paths = [path.rstrip() for path, _, _ in parts]
    texts = [label for _, _, label in parts]
    try:
        return paths, np.array([int(text) for text in texts], np.int32)
    except (ValueError, OverflowError):
        return paths, texts


def _check_images(path: str, made: object) -> None:
    if (
        not isinstance(made, list)
        or not made
        or not all(hasattr(image, "convert") for image in made)
    ):
        raise DataError(
            f"image file {path!r}",
            expected="a list of at least one Pillow image from image_transform",
            received="an empty list" if made == [] else f"a {type(made).__name__}",
            advice="end a chain of ImageTool with .get()",
        )


def _different_sizes(path: str, first: tuple[int, ...], other: tuple[int, ...]) -> DataError:
    return DataError(
        f"image file {path!r}",
        expected=f"images of {first[1]}×{first[2]}, as the first of the batch",
        received=f"{other[1]}×{other[2]}",
        advice="crop or resize in image_transform",
    )
