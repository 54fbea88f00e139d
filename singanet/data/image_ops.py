"""Transforms of one image, as SINGA's ``image_tool`` has them.

Images are Pillow's; sizes and patches are (width, height) in pixels. Random ones draw from
``rng``; without it, from the operating system.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from singanet.base.arguments import checked_count
from singanet.data.images import in_colors, pillow, read_image
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of

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
