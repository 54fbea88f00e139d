"""Image transforms for a loader's ``transforms``.

Each takes an image (C, H, W), a NumPy array, and a generator, and returns an image of the same
type; `functools.partial` sets the other arguments. Sizes are (height, width), or one number for
squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, BackendError, DataError, brief, one_of
from singanet.types import Array

Transform: TypeAlias = Callable[[Array, np.random.Generator], Array]
Size: TypeAlias = int | tuple[int, int]

POSITIONS = (
    *("center", "left", "right", "top", "bottom"),
    *("left_top", "left_bottom", "right_top", "right_bottom"),
)
"""The positions of `crop`."""


def pillow() -> ModuleType:
    """Return the module ``PIL.Image``. Errors: `BackendError` with the command that installs it."""
    try:
        import PIL.Image
    except ImportError as error:
        raise BackendError(
            "images",
            expected="the package pillow, which reads image files",
            received=f"{error}",
            advice="install it: pip install pillow",
        ) from error
    return PIL.Image


def resize(image: Array, rng: np.random.Generator | None = None, *, size: Size) -> Array:
    """Resize the image by Pillow's bicubic interpolation.

    Args:
        image: Array (C, H, W).
        rng: Unused; the loaders pass a generator to every transform.
        size: ``(height, width)``, or an int for the shorter side; the aspect ratio is then kept.
    """
    height, width = image.shape[1:]
    if isinstance(size, (tuple, list)):
        size = checked_size("resize", size)
    else:
        short, scale = checked_count("resize", "size", size, 1), min(height, width)
        size = short * height // scale, short * width // scale
    if size == (height, width):
        return image
    drawn = [pillow().fromarray(channel).resize(size[::-1]) for channel in image]
    return np.stack([np.asarray(channel, image.dtype) for channel in drawn])


def crop(
    image: Array,
    rng: np.random.Generator | None = None,
    *,
    size: Size,
    position: str = "center",
) -> Array:
    """Return the part of ``size`` at a ``position``. Errors: a size larger than the image.

    Args:
        image: Array (C, H, W).
        rng: Unused; the loaders pass a generator to every transform.
        size: ``(height, width)``, or an int for a square.
        position: "center", "left", "right", "top", "bottom", "left_top", "left_bottom", "right_top"
            or "right_bottom".
    """
    if position not in POSITIONS:
        raise ArgumentError(
            "crop, position",
            expected=one_of(POSITIONS),
            received=brief(position),
            advice="choose a listed name",
        )
    height, width = _sides("crop", size)
    lower, right = _room(image, height, width)
    top = 0 if "top" in position else lower if "bottom" in position else lower // 2
    left = 0 if "left" in position else right if "right" in position else right // 2
    return image[:, top : top + height, left : left + width]


def random_crop(image: Array, rng: np.random.Generator, *, size: Size, pad: int = 0) -> Array:
    """Return the part of ``size`` at a random position.

    Args:
        image: Array (C, H, W).
        rng: The `numpy.random.Generator` to draw from.
        size: ``(height, width)``, or an int for a square.
        pad: Int from 0 on, the zeros that are first added at each side.
    """
    height, width = _sides("random_crop", size)
    pad = checked_count("random_crop", "pad", pad, 0)
    image = np.pad(image, ((0, 0), (pad, pad), (pad, pad))) if pad else image
    top, left = (int(rng.integers(most + 1)) for most in _room(image, height, width))
    return image[:, top : top + height, left : left + width]


def random_resized_crop(
    image: Array,
    rng: np.random.Generator,
    *,
    size: Size,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Array:
    """Resize a random part to ``size``.

    After ten parts that do not fit it is the largest square in the middle.

    Args:
        image: Array (C, H, W).
        rng: The `numpy.random.Generator` to draw from.
        size: ``(height, width)``, or an int for a square.
        area: The least and the largest fraction of the image's area.
        aspect: The least and the largest ratio of width to height.
    """
    size, (height, width) = _sides("random_resized_crop", size), image.shape[1:]
    for _ in range(10):
        share, ratio = rng.uniform(*area) * height * width, rng.uniform(*aspect)
        high, wide = round(math.sqrt(share / ratio)), round(math.sqrt(share * ratio))
        if 0 < high <= height and 0 < wide <= width:
            return resize(random_crop(image, rng, size=(high, wide)), size=size)
    return resize(crop(image, size=min(height, width)), size=size)


def random_flip(image: Array, rng: np.random.Generator, *, axis: int = -1) -> Array:
    """Flip the image with probability ½.

    Args:
        image: Array (C, H, W).
        rng: The `numpy.random.Generator` to draw from.
        axis: -1 to flip left and right, -2 to flip top and bottom.
    """
    return np.flip(image, axis) if rng.integers(2) else image


def random_color(image: Array, rng: np.random.Generator, *, by: float = 0.2) -> Array:
    """Multiply brightness, contrast and saturation by random numbers from 1 − ``by`` to 1 + ``by``.

    Integers stay from 0 to 255.

    Args:
        image: Array (C, H, W).
        rng: The `numpy.random.Generator` to draw from.
        by: Number from 0 to 1.
    """
    if not 0 <= by <= 1:
        raise ArgumentError(
            "random_color, by",
            expected="a number from 0 to 1",
            received=brief(by),
            advice="0.2 changes by a fifth at most",
        )
    brightness, contrast, saturation = rng.uniform(1 - by, 1 + by, 3).tolist()
    made = image * np.float32(brightness)
    made = made.mean(dtype=np.float64) * (1 - contrast) + made * contrast
    made = made.mean(axis=0, keepdims=True) * (1 - saturation) + made * saturation
    if image.dtype.kind in "ui":
        made = np.rint(np.clip(made, 0, 255))
    return made.astype(image.dtype)


def random_erase(
    image: Array,
    rng: np.random.Generator,
    *,
    area: tuple[float, float] = (0.02, 0.33),
    aspect: tuple[float, float] = (0.3, 3.3),
    value: float = 0.0,
) -> Array:
    """Set a random part to ``value`` with probability ½ (Zhong et al. 2017, random erasing).

    Args:
        image: Array (C, H, W).
        rng: The `numpy.random.Generator` to draw from.
        area: The least and the largest fraction of the image's area.
        aspect: The least and the largest ratio of width to height.
        value: Number that the part is set to.
    """
    if rng.integers(2):
        return image
    height, width = image.shape[1:]
    share, ratio = rng.uniform(*area) * height * width, rng.uniform(*aspect)
    high = min(height, round(math.sqrt(share / ratio)))
    wide = min(width, round(math.sqrt(share * ratio)))
    top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
    erased = image.copy()
    erased[:, top : top + high, left : left + wide] = value
    return erased


def checked_transforms(where: str, transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return ``transforms`` as a tuple. Errors: `ArgumentError` for anything but functions."""
    if not isinstance(transforms, (list, tuple)) or not all(map(callable, transforms)):
        raise ArgumentError(
            f"{where}, transforms",
            expected="a list of functions, each of an image and a generator",
            received=brief(transforms),
            advice="write [random_flip, functools.partial(random_crop, size=32, pad=4)]",
        )
    return tuple(transforms)


def transformed(
    image: Array, transforms: Sequence[Transform], seeds: Sequence[int], where: str
) -> Array:
    """Apply ``transforms`` to ``image``; they draw from one generator of ``seeds``.

    Errors: `DataError` for a transform that does not return an image of the same type.
    """
    rng = np.random.default_rng(seeds)
    for transform in transforms:
        made = transform(image, rng)
        if not isinstance(made, np.ndarray) or made.ndim != 3 or made.dtype != image.dtype:
            kind = type(made).__name__
            raise DataError(
                f"{where}, transform {getattr(transform, '__name__', transform)!r}",
                expected=f"an array (C, H, W) of {image.dtype}, like its input",
                received=f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else kind,
                advice="return numpy.asarray(...).astype(image.dtype)",
            )
        image = made
    return image


def checked_size(where: str, size: tuple[int, int]) -> tuple[int, int]:
    """Return ``size`` as (height, width). Errors: `ArgumentError`."""
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise ArgumentError(
            f"{where}, size",
            expected="(height, width)",
            received=brief(size),
            advice="give two whole numbers",
        )
    height, width = (checked_count(f"{where}, size", "side", side, 1) for side in size)
    return height, width


def _sides(where: str, size: Size) -> tuple[int, int]:
    return checked_size(where, size if isinstance(size, (tuple, list)) else (size, size))


def _room(image: Array, height: int, width: int) -> tuple[int, int]:
    """Return how far a part can move down and right. Errors: it is larger than the image."""
    lower, right = image.shape[1] - height, image.shape[2] - width
    if lower < 0 or right < 0:
        raise ArgumentError(
            "crop, size",
            expected=f"an area of at most {image.shape[1:]}, the image's (height, width)",
            received=f"{height, width}",
            advice="resize the image first, pad it, or crop a smaller area",
        )
    return lower, right
