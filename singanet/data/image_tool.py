"""SINGA's ``image_tool``: functions on one image, and `ImageTool`, chains over a list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from singanet.data import image_ops
from singanet.data.image_ops import (
    CORNERS_AND_CENTER,
    color_cast,
    crop,
    crop_and_resize,
    enhance,
    flip,
    flip_down,
    get_list_sample,
    load_img,
    random_crop_resize,
    resize,
)
from singanet.data.images import MAX_PIXELS
from singanet.errors import ArgumentError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "ImageTool",
    "color_cast",
    "crop",
    "crop_and_resize",
    "enhance",
    "flip",
    "flip_down",
    "get_list_sample",
    "load_img",
    "random_crop_resize",
    "resize",
]

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
            left, upper = (int(self.rng.integers(r + 1)) for r in image_ops.room(img, patch))
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
        choices: Sequence[image_ops.T],
        num_case: int,
        make: Callable[[Image, image_ops.T], Image],
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
