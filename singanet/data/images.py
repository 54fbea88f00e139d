"""Image files read through Pillow, which is imported only when one is read."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from singanet.base.kinds import kind_of_start
from singanet.data.magic import open_data_file
from singanet.errors import BackendError, DataError
from singanet.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image


def pillow() -> ModuleType:
    """The module ``PIL.Image``. Errors: `BackendError` with the command that installs it."""
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


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are read. Pillow knows others, and starts a program for some."""
MAX_PIXELS = 1 << 25
"""The most that `read_image` reads by default: 33 million, 100 MB in memory."""


def read_image(path: str | Path, grayscale: bool = False, max_pixels: int = MAX_PIXELS) -> Image:
    """The image in a file of one of `FORMATS`, as 8-bit RGB, or one grey channel.

    Errors: `DataError` naming a file that is missing, cut short, no image, of more than
    ``max_pixels``, or deeper than 8 bits a channel, whose values a conversion would silently clip.
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
        # Pillow's readers raise whatever a broken file leads them to, SyntaxError included.
        except Exception as error:
            raise DataError(
                where,
                expected=f"a whole image: {', '.join(FORMATS)}",
                received=f"{kind_of_start(start).name} ({type(error).__name__}: {error})",
                advice="replace or remove the file",
            ) from error
    return in_colors(image, where).convert("L" if grayscale else "RGB")


def in_colors(image: Image, where: str) -> Image:
    """``image`` in a mode whose numbers are grey or red, green and blue: L, LA, RGB or RGBA.

    Palettes, bits, inks and the like are converted. Errors: `DataError` for what Pillow does not
    convert, or would by clipping: more than 8 bits a channel.
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
    # Palettes by way of RGBA, since those with transparency have no straight way to RGB.
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


def image_to_array(image: Image) -> Array:
    """(C, H, W), uint8, of an image in mode RGB or L."""
    pixels = np.asarray(image, dtype=np.uint8)
    if pixels.ndim == 2:
        return pixels[None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
