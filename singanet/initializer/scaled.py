"""Initializers whose spread follows from the number of inputs and outputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from singanet.errors import UnknownNameError, did_you_mean, one_of
from singanet.initializer.distributions import TruncatedNormal
from singanet.initializer.initializer import (
    Initializer,
    check_finite,
    check_not_negative,
    wrong_shape,
)
from singanet.types import Array, Shape

_CUT = 0.87962566103423978
"""The deviation of the normal distribution between -2 and 2."""
_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")


class Scaled(Initializer):
    """A draw with zero mean and the variance that ``variance(fan_in, fan_out)`` asks for."""

    uniform = False
    truncated = False
    """Whether nothing is drawn further than two deviations of the bell that is cut off there."""

    @abstractmethod
    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Draw; see `Initializer`."""
        std = math.sqrt(self.variance(*known_fans(type(self).__name__, shape, fans)))
        if self.uniform:
            bound = math.sqrt(3.0) * std
            return rng.uniform(-bound, bound, shape)
        if self.truncated:
            return TruncatedNormal(0.0, std / _CUT)(rng, shape, fans)
        return rng.normal(0.0, std, shape)

    def draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Where the fans are known, and the shape need not be; see `Initializer`."""
        own = type(self).__call__ is Scaled.__call__
        return own and min(fans) > 0 and (self.uniform or not self.truncated)

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


class GlorotTruncated(GlorotNormal):
    """`GlorotNormal` cut at two deviations and widened to its variance: Keras' glorot_normal."""

    truncated = True


class HeTruncated(HeNormal):
    """`HeNormal` cut at two deviations and widened to its variance: Keras' he_normal."""

    truncated = True


class LecunTruncated(LecunNormal):
    """`LecunNormal` cut at two deviations and widened to its variance: Keras' lecun_normal."""

    truncated = True


@dataclass(frozen=True)
class VarianceScaling(Scaled):
    """Variance ``scale`` / n, n by ``mode``: fan_in, fan_out, or fan_avg, the mean of both.

    ``distribution`` is uniform, normal, or truncated_normal, as those of Keras. For a gain of
    PyTorch pass its square as ``scale``.
    """

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"

    def __post_init__(self) -> None:
        check_finite(self, scale=self.scale)
        check_not_negative(self, scale=self.scale)
        for key, known in (("mode", _MODES), ("distribution", _DISTRIBUTIONS)):
            given = getattr(self, key)
            if given not in known:
                raise UnknownNameError(
                    f"VarianceScaling({key}=)",
                    expected=one_of(known),
                    received=repr(given),
                    advice=did_you_mean(str(given), known, "choose one of these"),
                )

    @property
    def uniform(self) -> bool:  # type: ignore[override]
        """Whether the draw is uniform."""
        return self.distribution == "uniform"

    @property
    def truncated(self) -> bool:  # type: ignore[override]
        """Whether the bell is cut off."""
        return self.distribution == "truncated_normal"

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return self.scale / {"fan_in": fan_in, "fan_out": fan_out}.get(
            self.mode, (fan_in + fan_out) / 2
        )


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
