"""Images in a folder with a subfolder for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.base.files import path_of
from singanet.base.kinds import kind_of_start
from singanet.data.image_sets import open_data_file
from singanet.data.loaders import ArrayLoader
from singanet.data.transforms import (
    Transform,
    checked_size,
    checked_transforms,
    pillow,
    resize,
    transformed,
)
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The allowed formats. Pillow supports others, and starts a program for some."""
MAX_PIXELS = 1 << 25
"""The default limit of `read_image`: 33 million pixels, 100 MB in memory."""


def read_image(path: str | Path, grayscale: bool = False, max_pixels: int = MAX_PIXELS) -> Array:
    """Read an image file as uint8 (C, H, W); C is 3, red, green and blue, or 1.

    Errors: `DataError` naming a file that is missing, truncated, not an image, larger than
    ``max_pixels``, or deeper than 8 bits a channel, which a conversion would silently clip.

    Args:
        path: Path of a BMP, GIF, JPEG, PNG, PPM, TIFF or WebP file.
        grayscale: Whether to convert to one channel of gray; otherwise to red, green and blue.
        max_pixels: Int, the most pixels (height × width) that are read.
    """
    opener = pillow()
    where = f"image file {str(path)!r}"
    with open_data_file(path) as stream:
        start = stream.read(16)
        stream.seek(0)
        try:
            image: Image = opener.open(stream, formats=FORMATS)
            if image.width * image.height > max_pixels:
                raise DataError(
                    where,
                    expected=f"at most {max_pixels} pixels",
                    received=f"{image.width} × {image.height}",
                    advice="pass a larger max_pixels if you trust the file",
                )
            image.load()
        except DataError:
            raise
        # Pillow's readers raise any exception for a broken file, even SyntaxError.
        except Exception as error:
            raise DataError(
                where,
                expected=f"a whole image: {', '.join(FORMATS)}",
                received=f"{kind_of_start(start).name} ({type(error).__name__}: {error})",
                advice="replace or remove the file",
            ) from error
    pixels = np.asarray(_in_colors(image, where).convert("L" if grayscale else "RGB"), np.uint8)
    return pixels[None] if grayscale else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _in_colors(image: Image, where: str) -> Image:
    """Convert ``image`` to the mode L, LA, RGB or RGBA.

    Palettes, bits, inks and the like are converted. Errors: `DataError` for modes that Pillow does
    not convert, or would clip: more than 8 bits a channel.
    """
    if image.mode in ("L", "LA", "RGB", "RGBA"):
        return image
    if image.mode[0] in "IF":
        raise DataError(
            where,
            expected="8 bits a channel",
            received=f"Pillow's mode {image.mode!r}",
            advice="convert it to 8 bits first",
        )
    # Palettes with transparency only convert to RGBA.
    mode = {"1": "L", "P": "RGBA", "PA": "RGBA", "RGBa": "RGBA", "La": "LA"}.get(image.mode, "RGB")
    try:
        made = image.convert(mode)
    except ValueError as error:
        raise DataError(
            where,
            expected="a mode that Pillow converts to RGB",
            received=f"mode {image.mode!r}",
            advice="convert it to RGB first",
        ) from error
    opaque = image.mode == "P" and "transparency" not in image.info
    return made.convert("RGB") if opaque else made


_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class FolderLoader(Described):
    """A loader of the images in ``folder``, whose subfolders are the classes.

    Batches are ``(x, y)``: float32 (N, C, H, W) in [0, 1], C 3 or 1, and int32 (N,). Images are
    read batch by batch. ``files`` and ``labels`` list them, ``classes`` the names. Order, sharding
    and position are as in `ArrayLoader`. Needs pillow: ``pip install 'singanet[images]'``.

    Errors: `DataError` naming a folder without images or not in ``classes``, or a broken file.

    Args:
        folder: Path of a folder with a subfolder of images for each class.
        batch_size: Positive int, the samples in a batch of one rank; with ``split_batches`` of all
            ranks.
        size: ``(height, width)`` to which images are resized (bicubic) after ``transforms``. None
            keeps their sizes, which must be equal within a batch.
        grayscale: Whether images have one channel of gray; otherwise red, green and blue.
        transforms: Functions of `singanet.data.transforms`, applied to each image, uint8 (C, H, W),
            in this order. An image's generator depends on seed, epoch and file.
        shuffle: Whether each epoch has an order of its own; otherwise the order of ``files``.
        seed: Int from 0 on, the seed of the orders and of ``transforms``.
        drop_last: Whether to drop samples that do not fill a batch on every rank. Otherwise the
            last batch is smaller.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.
        max_pixels: Int, the most pixels of an image, as in `read_image`.
        split_batches: Whether each rank has a part of every batch, as in `ArrayLoader`.
        classes: The names of the subfolders in the order of their labels, such as ``train.classes``
            for a test folder that lacks some of them. None for the sorted names of the subfolders.

    Examples:
        >>> import pathlib, PIL.Image
        >>> for name in ("cat", "dog"):
        ...     pathlib.Path("images", name).mkdir(parents=True)
        ...     PIL.Image.new("RGB", (8, 6)).save(f"images/{name}/1.png")
        >>> loader = singanet.data.FolderLoader("images", batch_size=2, size=(4, 4))
        >>> loader.classes, [x.shape for x, y in loader]
        (('cat', 'dog'), [(2, 3, 4, 4)])
    """

    def __init__(
        self,
        folder: str | Path,
        batch_size: int,
        size: tuple[int, int] | None = None,
        grayscale: bool = False,
        transforms: Sequence[Transform] = (),
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        max_pixels: int = MAX_PIXELS,
        split_batches: bool = False,
        classes: Sequence[str] | None = None,
    ) -> None:
        pillow()  # fail now if it is missing, not at the first batch
        given = None if classes is None else _checked_classes(classes)
        self.classes, self.files, self.labels = _listing(folder, given)
        self.size = None if size is None else checked_size("FolderLoader", size)
        self.grayscale = bool(grayscale)
        self.transforms = checked_transforms("FolderLoader", transforms)
        self.max_pixels = checked_count("FolderLoader", "max_pixels", max_pixels, 1)
        self._places = ArrayLoader(
            np.arange(len(self.files)),
            self.labels,
            batch_size,
            shuffle,
            seed,
            drop_last,
            rank,
            world_size,
            split_batches,
        )

    @property
    def rank(self) -> int:
        """The rank whose batches it yields."""
        return self._places.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._places.world_size

    def __len__(self) -> int:
        """Return the batches in an epoch, for this rank."""
        return len(self._places)

    @property
    def _smallest_batch(self) -> int:
        """The samples of the smallest batch, as in `ArrayLoader`."""
        return self._places._smallest_batch

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        epoch = self._places.epoch
        for places, labels in self._places:
            yield self._batch(epoch, places), labels

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``, an int from 0 on."""
        self._places.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the position, and the settings that must be equal to restore it."""
        return self._places.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position ``state``. Errors: `ArgumentError` if files or settings differ."""
        self._places.load_state_dict(state)

    def _batch(self, epoch: int, places: Array) -> Array:
        images: list[Array] = []
        for place in places.tolist():
            pixels = self._image(epoch, place)
            if images and pixels.shape != images[0].shape:
                raise DataError(
                    f"image file {str(self.files[place])!r}",
                    expected=f"{_measure(images[0])} as {str(self.files[int(places[0])])!r}",
                    received=_measure(pixels),
                    advice="pass size=(height, width) to resize all images",
                )
            images.append(pixels)
        if not images:
            return np.empty((0, *self._image(epoch, 0).shape), np.float32)
        batch = np.stack(images).astype(np.float32)
        batch /= np.float32(255)
        return batch

    def _image(self, epoch: int, place: int) -> Array:
        image = read_image(self.files[place], self.grayscale, self.max_pixels)
        if self.transforms:
            seeds = [self._places.seed, epoch, 1 + place]
            where = f"image file {str(self.files[place])!r}"
            image = transformed(image, self.transforms, seeds, where)
        return image if self.size is None else resize(image, size=self.size)


def _listing(
    folder: str | Path, given: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[Path, ...], Array]:
    root = path_of(folder, "folder")
    where = f"image folder {str(folder)!r}"
    present = _names(root, where, lambda entry: entry.is_dir())
    classes = tuple(present) if given is None else given
    unknown = [name for name in present if name not in classes]
    if unknown:
        raise DataError(
            where,
            expected=f"subfolders named as classes: {one_of(classes)}",
            received=one_of(unknown),
            advice="add these names to classes, or move the folders away",
        )
    files: list[Path] = []
    labels: list[int] = []
    for name in present:
        inner = f"image folder {str(root / name)!r}"
        found = _names(root / name, inner, is_image)
        if not found and given is None:
            raise DataError(
                inner,
                expected=f"images ({' '.join(_SUFFIXES)})",
                received="none",
                advice="put images in it or remove it: every subfolder is a class; "
                "or name all classes by classes=",
            )
        files += [root / name / file for file in found]
        labels += [classes.index(name)] * len(found)
    if not files:
        raise DataError(
            where,
            expected="a subfolder for each class, with images",
            received="none",
            advice="put the images of each class in a folder of its own",
        )
    return classes, tuple(files), np.array(labels, np.int32)


def image_files(place: Path) -> list[Path]:
    """Return an image file, or the images of a folder and of its subfolders, sorted.

    Errors: `DataError` for a folder without images.
    """
    if place.is_file():
        return [place]
    where = f"image folder {str(place)!r}"
    inner = [place, *(place / name for name in _names(place, where, lambda e: e.is_dir()))]
    files = [folder / name for folder in inner for name in _names(folder, where, is_image)]
    if not files:
        raise DataError(
            where,
            expected=f"images ({' '.join(_SUFFIXES)}), in it or in its subfolders",
            received="none",
            advice="check the path",
        )
    return files


def _checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    usable = isinstance(classes, Iterable) and not isinstance(classes, (str, bytes))
    names = tuple(classes) if usable else ()
    if not names or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise ArgumentError(
            "FolderLoader, classes",
            expected="the names of all classes in the order of their numbers, each once",
            received=brief(classes),
            advice="pass a list, such as the classes of the training loader",
        )
    return names


def _names(folder: Path, where: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """Return names in sorted order, since the order on disk is arbitrary."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and wanted(e))
    except (OSError, ValueError) as error:
        raise DataError(
            where, expected="a readable folder", received=str(error), advice="check the path"
        ) from error


def is_image(entry: os.DirEntry[str] | Path) -> bool:
    """Return whether it is a file with the suffix of an image."""
    return Path(entry.name).suffix.lower() in _SUFFIXES and entry.is_file()


def _measure(pixels: Array) -> str:
    channels, height, width = pixels.shape
    return f"{height}×{width} with {channels} channels"
