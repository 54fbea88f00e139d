"""SINGA's image tools.

Images are Pillow's; sizes and patches are (width, height) in pixels. Random ones draw from
``rng``; without it, from the operating system.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Described
from singanet.base.files import path_of
from singanet.data.folder_loader import MAX_PIXELS, image_to_array, in_colors, pillow, read_image
from singanet.data.prefetch import Background
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image


T = TypeVar("T")

CORNERS_AND_CENTER = ("left_top", "left_bottom", "right_top", "right_bottom", "center")
SQUARES = ("left", "center", "right", "top", "middle", "bottom")

load_img = read_image


def crop(img: Image, patch: tuple[int, int], position: str) -> Image:
    """A patch of the image at a corner or the center. Errors: a patch larger than the image."""
    _check_position(position, CORNERS_AND_CENTER)
    right, lower = room(img, patch)
    horizontal, _, vertical = position.partition("_")
    left = {"left": 0, "right": right}.get(horizontal, right // 2)
    upper = {"top": 0, "bottom": lower}.get(vertical, lower // 2)
    return img.crop((left, upper, left + patch[0], upper + patch[1]))


def crop_and_resize(img: Image, patch: tuple[int, int], position: str) -> Image:
    """The largest square at left, center or right (top, middle or bottom), resized to patch."""
    _check_position(position, SQUARES)
    side = min(img.size)
    right, lower = img.size[0] - side, img.size[1] - side
    left = {"left": 0, "right": right}.get(position, right // 2)
    upper = {"top": 0, "bottom": lower}.get(position, lower // 2)
    return img.crop((left, upper, left + side, upper + side)).resize(_checked_patch(patch))


def resize(img: Image, small_size: int) -> Image:
    """The whole image with its shorter side ``small_size``, the proportions kept."""
    small_size = checked_count("resize", "small_size", small_size, 1)
    width, height = img.size
    if width < height:
        return img.resize((small_size, max(1, small_size * height // width)))
    return img.resize((max(1, small_size * width // height), small_size))


def random_crop_resize(
    img: Image, patch: tuple[int, int], rng: np.random.Generator | None = None
) -> Image:
    """A random 8 to 100 % of the area, 3:4 to 4:3, resized to patch; after 10 misses the middle."""
    rng, patch = _rng(rng), _checked_patch(patch)
    width, height = img.size
    for _ in range(10):
        area = rng.uniform(0.08, 1) * width * height
        aspect = rng.uniform(3 / 4, 4 / 3)
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left = int(rng.integers(width - wide + 1))
            upper = int(rng.integers(height - high + 1))
            return img.crop((left, upper, left + wide, upper + high)).resize(patch)
    return crop_and_resize(img, patch, "center")


def color_cast(img: Image, offset: int, rng: np.random.Generator | None = None) -> Image:
    """Each channel, with probability ½, moved by one number from [−offset, offset].

    Transparency stays. Palettes, inks and the like become RGB. Errors: more than 8 bits a channel.
    """
    rng = _rng(rng)
    offset = checked_count("color_cast", "offset", offset, 0)
    img = in_colors(img, "color_cast")
    pixels = np.asarray(img, dtype=np.int64).reshape(*img.size[::-1], -1)
    channels = len(img.mode.removesuffix("A"))
    cast = rng.integers(-offset, offset + 1, channels) * rng.integers(0, 2, channels)
    moved = pixels.astype(np.uint8)
    moved[..., :channels] = np.clip(pixels[..., :channels] + cast, 0, 255)
    result: Image = pillow().fromarray(moved[..., 0] if moved.shape[2] == 1 else moved)
    return result


def enhance(img: Image, scale: float, rng: np.random.Generator | None = None) -> Image:
    """Color, contrast, brightness, sharpness: each, with probability ½, times 1 ± up to scale.

    Palettes, inks and the like become RGB. Errors: more than 8 bits a channel.
    """
    pillow()
    from PIL import ImageEnhance

    if not 0 <= scale <= 1:
        raise ArgumentError(
            "enhance, scale",
            expected="a number from 0 to 1",
            received=f"{scale!r}",
            advice="0.2 changes by a fifth at most",
        )
    rng = _rng(rng)
    img = in_colors(img, "enhance")
    kinds = ("Color", "Contrast", "Brightness", "Sharpness")
    for kind in kinds:
        if rng.integers(2):
            img = getattr(ImageEnhance, kind)(img).enhance(1 + rng.uniform(-scale, scale))
    return img


def flip(img: Image) -> Image:
    """Left and right exchanged."""
    return img.transpose(pillow().Transpose.FLIP_LEFT_RIGHT)


def flip_down(img: Image) -> Image:
    """Top and bottom exchanged."""
    return img.transpose(pillow().Transpose.FLIP_TOP_BOTTOM)


def get_list_sample(
    items: Sequence[T], sample_size: int, rng: np.random.Generator | None = None
) -> list[T]:
    """``sample_size`` of the items, each at most once, in their order."""
    if not 1 <= sample_size <= len(items):
        raise ArgumentError(
            "number of cases",
            expected=f"1 to {len(items)}",
            received=f"{sample_size}",
            advice="take as many as there are choices at most",
        )
    places = _rng(rng).choice(len(items), sample_size, replace=False)
    return [items[place] for place in sorted(places.tolist())]


def room(img: Image, patch: tuple[int, int]) -> tuple[int, int]:
    """How far the patch can move right and down. Errors: it is empty or larger than the image."""
    width, height = _checked_patch(patch)
    right, lower = img.size[0] - width, img.size[1] - height
    if right < 0 or lower < 0:
        raise ArgumentError(
            "crop",
            expected=f"a patch (width, height) of at most {img.size}, the image's",
            received=f"{tuple(patch)}",
            advice="resize the image first or take a smaller patch",
        )
    return right, lower


def _checked_patch(patch: tuple[int, int]) -> tuple[int, int]:
    if len(patch) != 2:
        raise ArgumentError(
            "crop, patch",
            expected="(width, height)",
            received=f"{patch!r}",
            advice="give two whole numbers",
        )
    width, height = (checked_count("crop, patch", "side", side, 1) for side in patch)
    return width, height


def _check_position(position: str, known: Sequence[str]) -> None:
    if position not in known:
        raise UnknownNameError(
            "crop",
            expected=f"one of {one_of(known)}",
            received=f"{position!r}",
            advice=did_you_mean(position, known, "take one of these"),
        )


def _rng(rng: np.random.Generator | None) -> np.random.Generator:
    return np.random.default_rng() if rng is None else rng


Result: TypeAlias = Any
"""The tool itself or the list of images. Any, since calls could not chain on a union."""


class ImageTool:
    """A list of images and the transforms that turn it into another.

    With ``inplace`` (the default) a transform keeps its result and returns the tool, so calls
    chain; without, it returns the list and changes nothing. Where ``num_case`` is smaller than
    the number of choices, each image gets its own random ones. Sizes are (width, height).
    ``seed``, a number or a generator, makes the draws repeatable; None draws new ones.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.imgs: list[Image] = []

    def load(
        self, path: str | Path, grayscale: bool = False, max_pixels: int = MAX_PIXELS
    ) -> ImageTool:
        """Hold the one image of a file. Errors: `DataError` naming a broken or outsize one."""
        self.imgs = [load_img(path, grayscale, max_pixels)]
        return self

    def set(self, imgs: Iterable[Image]) -> ImageTool:
        """Hold these images."""
        self.imgs = list(imgs)
        return self

    def append(self, img: Image) -> ImageTool:
        """Hold one image more."""
        self.imgs.append(img)
        return self

    def get(self) -> list[Image]:
        """The images held."""
        return self.imgs

    def num_augmentation(self) -> int:
        """How many images are held."""
        return len(self.imgs)

    def resize_by_range(self, rng: tuple[int, int], inplace: bool = True) -> Result:
        """Shorter side a random number from rng[0] to rng[1] − 1, proportions kept."""
        return self.resize_by_list(_numbers(rng), 1, inplace)

    def resize_by_list(
        self, size_list: Sequence[int], num_case: int = 1, inplace: bool = True
    ) -> Result:
        """Shorter side one of ``size_list``, for ``num_case`` of them."""
        return self._some(size_list, num_case, resize, inplace)

    scale_by_range = resize_by_range
    scale_by_list = resize_by_list

    def resize_by_hw_range(
        self, rng: tuple[tuple[int, int], tuple[int, int]], inplace: bool = True
    ) -> Result:
        """Height and width random numbers from ((low, high), (low, high)), the highs excluded."""
        heights, widths = (_numbers(side) for side in rng)

        def one(img: Image) -> list[Image]:
            height, width = (int(self.rng.choice(side)) for side in (heights, widths))
            return [img.resize((width, height))]

        return self._each(one, inplace)

    def resize_by_hw_list(
        self, size_list: Sequence[tuple[int, int]], num_case: int = 1, inplace: bool = True
    ) -> Result:
        """(height, width) one of ``size_list``, for ``num_case`` of them."""
        return self._some(size_list, num_case, lambda img, hw: img.resize((hw[1], hw[0])), inplace)

    def rotate_by_range(self, rng: tuple[int, int], inplace: bool = True) -> Result:
        """Turned left by a random whole number of degrees from rng[0] to rng[1] − 1."""
        return self.rotate_by_list(_numbers(rng), 1, inplace)

    def rotate_by_list(
        self, angle_list: Sequence[float], num_case: int = 1, inplace: bool = True
    ) -> Result:
        """Turned left by one of ``angle_list`` (degrees), for ``num_case`` of them."""
        return self._some(angle_list, num_case, lambda img, angle: img.rotate(angle), inplace)

    def crop5(self, patch: tuple[int, int], num_case: int = 1, inplace: bool = True) -> Result:
        """Patches at ``num_case`` of the four corners and the center."""
        return self._some(
            CORNERS_AND_CENTER, num_case, lambda img, at: crop(img, patch, at), inplace
        )

    def crop3(self, patch: tuple[int, int], num_case: int = 1, inplace: bool = True) -> Result:
        """The largest squares, along the longer side, at ``num_case`` of three places."""

        def some(img: Image) -> list[Image]:
            chosen = get_list_sample(_places3(img), num_case, self.rng)
            return [crop_and_resize(img, patch, at) for at in chosen]

        return self._each(some, inplace)

    def crop8(self, patch: tuple[int, int], num_case: int = 1, inplace: bool = True) -> Result:
        """``num_case`` of the eight patches of `crop5` and `crop3`."""

        def some(img: Image) -> list[Image]:
            choices = [(crop, at) for at in CORNERS_AND_CENTER]
            choices += [(crop_and_resize, at) for at in _places3(img)]
            chosen = get_list_sample(choices, num_case, self.rng)
            return [cut(img, patch, at) for cut, at in chosen]

        return self._each(some, inplace)

    def random_crop(self, patch: tuple[int, int], inplace: bool = True) -> Result:
        """A patch at a random place."""

        def one(img: Image) -> list[Image]:
            left, upper = (int(self.rng.integers(r + 1)) for r in room(img, patch))
            return [img.crop((left, upper, left + patch[0], upper + patch[1]))]

        return self._each(one, inplace)

    def random_crop_resize(self, patch: tuple[int, int], inplace: bool = True) -> Result:
        """A random part of random proportions, resized to patch."""
        return self._each(lambda img: [random_crop_resize(img, patch, self.rng)], inplace)

    def flip(self, num_case: int = 1, inplace: bool = True) -> Result:
        """Left and right exchanged with probability ½; num_case 2: the image and its mirror."""
        return self._mirrored(flip, num_case, inplace)

    def flip_down(self, num_case: int = 1, inplace: bool = True) -> Result:
        """Top and bottom exchanged with probability ½; num_case 2: the image and its mirror."""
        return self._mirrored(flip_down, num_case, inplace)

    def color_cast(self, offset: int = 20, inplace: bool = True) -> Result:
        """Each channel, with probability ½, moved by a number from [−offset, offset]."""
        return self._each(lambda img: [color_cast(img, offset, self.rng)], inplace)

    def enhance(self, scale: float = 0.2, inplace: bool = True) -> Result:
        """Color, contrast, brightness, sharpness changed, each with probability ½."""
        return self._each(lambda img: [enhance(img, scale, self.rng)], inplace)

    def _mirrored(self, mirror: Callable[[Image], Image], num_case: int, inplace: bool) -> Result:
        def cases(img: Image) -> list[Image]:
            return get_list_sample([img, mirror(img)], num_case, self.rng)

        return self._each(cases, inplace)

    def _some(
        self,
        choices: Sequence[T],
        num_case: int,
        make: Callable[[Image, T], Image],
        inplace: bool,
    ) -> Result:
        def some(img: Image) -> list[Image]:
            return [make(img, choice) for choice in get_list_sample(choices, num_case, self.rng)]

        return self._each(some, inplace)

    def _each(self, make: Callable[[Image], list[Image]], inplace: bool) -> Result:
        made = [new for img in self.imgs for new in make(img)]
        if not inplace:
            return made
        self.imgs = made
        return self


def _numbers(rng: tuple[int, int]) -> range:
    numbers = range(rng[0], rng[1])
    if not numbers:
        raise ArgumentError(
            "ImageTool, range",
            expected="(begin, end) with begin below end, which is excluded",
            received=f"{tuple(rng)}",
            advice="add one to the end for a single value",
        )
    return numbers


def _places3(img: Image) -> tuple[str, str, str]:
    wide = img.size[0] > img.size[1]
    return ("left", "center", "right") if wide else ("top", "middle", "bottom")


if TYPE_CHECKING:
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
