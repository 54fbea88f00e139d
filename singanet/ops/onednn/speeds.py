"""How fast a processor is at what convolutions are made of, by which routes are estimated."""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

_USUAL = 1 << 20

ADDS_A_PASS = 64
"""Multiply-adds of float32 in the time in which a kernel goes over a number in memory."""

_FEW_PIXELS = 49
"""Pixels of an image up to which oneDNN goes over the whole weight for each image."""


_PAYS = 1.25
"""Times the speed of float32 from which products of bfloat16 pay, whose factors are rounded."""


class Speeds(NamedTuple):
    """Nanoseconds of one thread.

    Processors differ in the speed of arithmetic and, independently, in that of copies with strides:
    so the fastest route differs too.
    """

    direct: float
    """A multiplication in oneDNN's convolution."""
    weight: float
    """A number of the weight that oneDNN rearranges."""
    distant: float
    """One of a weight larger than the cache, which is read for each image of few pixels."""
    products: float
    """A multiplication between Winograd's transforms."""
    value: float
    """One of the 36 values of a tile and a channel."""
    kernel: float
    """One of the 36 values of a kernel, entered and read."""
    narrow: float
    """A multiplication of bfloat16 in a product, where the processor has such."""
    narrow_direct: float
    """One in oneDNN's convolution."""
    tile_value: float
    """One of the values of a tile and a channel where all is compiled; products are as direct."""
    tile_kernel: float
    """One of the values of a kernel there, entered or left."""
    shared: float
    """What a kernel of two threads takes beyond half of its time with one."""

    @property
    def narrow_gain(self) -> float:
        """How many times as fast as float32 a product of bfloat16 is."""
        return self.direct / self.narrow

    @property
    def narrow_pays(self) -> bool:
        """Whether that is enough for "auto" to ask for them."""
        return self.narrow_gain >= _PAYS

    @property
    def narrow_adds_a_pass(self) -> int:
        """As `ADDS_A_PASS`, of bfloat16."""
        return round(ADDS_A_PASS * max(1.0, self.narrow_gain))

    def direct_time(self, images: int, pixels: int, weight: int, arranged: bool = False) -> float:
        """Nanoseconds of a convolution to ``pixels`` of each image, by so many numbers of weight.

        ``arranged`` says that the weight is as oneDNN likes it already.
        """
        reads = images * self.distant if is_read_often(pixels, weight) else 0
        return weight * (self.direct * images * pixels + reads + (0 if arranged else self.weight))


def is_read_often(pixels: int, weight: int) -> bool:
    """Whether so many numbers of weight, larger than the cache, are read for each small image."""
    return pixels <= _FEW_PIXELS and 4 * weight > cache_size()


@cache
def cache_size() -> int:
    """Bytes of the cache that a core has for itself, as far as the system says."""
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or _USUAL
    except (AttributeError, ValueError, OSError):  # Windows asks otherwise, macOS has no such name
        return _USUAL


BUILT_IN = Speeds(0.0162, 0.6, 0.0, 0.0182, 2.1, 0.74, 0.004, 0.004, 0.3, 0.55, 15_000.0)
"""What fits `net.tune_kernels` of vgg11, resnet18, resnet20, resnet50, googlenet and wrn-16-4.

On an AMD EPYC, 244 kernels, four of five within a quarter; elsewhere they are measured.
"""
