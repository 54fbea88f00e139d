"""Initializers whose spread follows from the number of inputs and outputs."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from singanet.initializer.initializer import Initializer, wrong_shape
from singanet.types import Array, Shape


class Scaled(Initializer):
    """A draw with zero mean and the variance that ``variance(fan_in, fan_out)`` asks for."""

    uniform = False

    @abstractmethod
    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        std = math.sqrt(self.variance(*known_fans(type(self).__name__, shape, fans)))
        if self.uniform:
            bound = math.sqrt(3.0) * std
            return rng.uniform(-bound, bound, shape)
        return rng.normal(0.0, std, shape)

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Where the fans are known, and the shape need not be; see `Initializer`."""
        return min(fans) > 0 and type(self).__call__ is Scaled.__call__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class GlorotNormal(Scaled):
    """N(0, 2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 2.0 / (fan_in + fan_out)


class GlorotUniform(GlorotNormal):
    """U(-b, b), b = sqrt(6 / (fan_in + fan_out)): SINGA's ``xavier``."""

    uniform = True


class HeNormal(Scaled):
    """N(0, 2 / fan_in) (He et al. 2015): SINGA's ``msra``."""

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 2.0 / fan_in


class HeUniform(HeNormal):
    """U(-b, b), b = sqrt(6 / fan_in) (He et al. 2015)."""

    uniform = True


class LecunNormal(Scaled):
    """N(0, 1 / fan_in) (LeCun et al. 1998)."""

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 1.0 / fan_in


class LecunUniform(LecunNormal):
    """U(-b, b), b = sqrt(3 / fan_in) (LeCun et al. 1998)."""

    uniform = True


def known_fans(name: str, shape: Shape, fans: tuple[int, int]) -> tuple[int, int]:
    """``fans``, or what ``shape`` says of them: (in, out), or filters (out, in, *kernel)."""
    if fans[0] > 0 and fans[1] > 0:
        return fans
    if len(shape) == 1:
        fans = (shape[0], shape[0])
    elif len(shape) == 2:
        fans = (shape[0], shape[1])
    elif len(shape) > 2:
        kernel = math.prod(shape[2:])
        fans = (shape[1] * kernel, shape[0] * kernel)
    if fans[0] <= 0 or fans[1] <= 0:
        raise wrong_shape(name, "known fans, or a shape to take positive ones from", shape)
    return fans
