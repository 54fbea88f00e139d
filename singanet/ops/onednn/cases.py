"""Cases of measured choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from singanet.ops.window import Window
from singanet.types import Shape

KERNELS = ("forward", "data", "weights", "constant")
"""A convolution, the gradients of its images and of its weight; one whose weight is constant."""

ROUTES = ("direct", "winograd", "compiled", "product", "blocked", "numpy")
"""oneDNN's convolution; Winograd's transforms by NumPy around oneDNN's products, and compiled as a
whole; a product of matrices; oneDNN's with images in a layout of its own; NumPy's kernels."""


class Case(NamedTuple):
    """One of `KERNELS` in float32: images ``x`` (N, C, H, W), ``weight`` (F, C/groups, kh, kw)."""

    kernel: str
    x: Shape
    weight: Shape
    window: Window
    groups: int


Choices = Mapping[Case, str]
"""One of `ROUTES` for each case."""
