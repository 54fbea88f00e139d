"""Initializers: rules for a parameter's first values."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.base.arguments import is_int, is_number
from singanet.base.described import CheckedType
from singanet.base.elsewhere import names_of
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.types import Array, Shape

__all__ = [
    "Constant",
    "Dirac",
    "Eye",
    "Gaussian",
    "GlorotNormal",
    "GlorotTruncated",
    "GlorotUniform",
    "HeNormal",
    "HeTruncated",
    "HeUniform",
    "Initializer",
    "LecunNormal",
    "LecunTruncated",
    "LecunUniform",
    "Orthogonal",
    "TruncatedNormal",
    "Uniform",
    "VarianceScaling",
    "from_spec",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


class Initializer(metaclass=CheckedType):
    """Draws the first values of a parameter; subclass it for a custom rule.

    ``copies`` is the number of float64 arrays of the shape in memory at a time.
    """

    copies: ClassVar[int] = 2

    @abstractmethod
    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Return a float64 array of ``shape``; ``fans`` is (fan in, fan out), (0, 0) if unknown."""

    def _draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Return whether a large array may be drawn in consecutive pieces with the same result.

        The answer of a class is not valid for its subclasses.
        """
        return False


def wrong_shape(name: str, expected: str, shape: Shape) -> ArgumentError:
    """Make the error for a shape that the initializer ``name`` cannot fill."""
    return ArgumentError(
        name,
        expected=expected,
        received=f"shape {tuple(shape)}",
        advice="choose another initializer for this parameter",
    )


def check_finite(initializer: object, **numbers: Any) -> None:
    """Refuse ``numbers`` that are not finite numbers."""
    for key, number in numbers.items():
        if not is_number(number):
            raise ArgumentError(
                type(initializer).__name__,
                expected=f"{key} to be a finite number",
                received=brief(number),
                advice=f"give {key} a number",
            )


def check_not_negative(initializer: object, **numbers: float) -> None:
    """Refuse negative ``numbers``."""
    for key, number in numbers.items():
        if number < 0:
            raise ArgumentError(
                type(initializer).__name__,
                expected=f"{key} >= 0",
                received=brief(number),
                advice=f"give {key} a number that is not negative",
            )


@dataclass(frozen=True)
class Constant(Initializer):
    """An initializer that sets every element to ``value``.

    Args:
        value: Finite number.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> singanet.initializer.Constant(0.5)(rng, (2, 2), (0, 0))
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, value=self.value)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        return np.full(shape, self.value, np.float64)

    def _draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        return type(self) is Constant


@dataclass(frozen=True)
class Uniform(Initializer):
    """An initializer that draws from the uniform distribution over [low, high).

    Args:
        low: Finite number, the lower bound, at most ``high``.
        high: Finite number, the upper bound.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.Uniform(low=-0.1, high=0.1)(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.06
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_finite(self, low=self.low, high=self.high)
        if self.low > self.high:
            raise ArgumentError(
                "Uniform",
                expected="low <= high",
                received=f"low={self.low}, high={self.high}",
                advice="swap the two bounds",
            )

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        return rng.uniform(self.low, self.high, shape)

    def _draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        return type(self) is Uniform


@dataclass(frozen=True)
class Gaussian(Initializer):
    """An initializer that draws from a normal distribution.

    Args:
        mean: Finite number, the mean.
        std: Number, at least 0, the standard deviation.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.Gaussian(mean=0.0, std=0.1)(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.1
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        check_finite(self, mean=self.mean, std=self.std)
        check_not_negative(self, std=self.std)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        return rng.normal(self.mean, self.std, shape)

    def _draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        return type(self) is Gaussian


@dataclass(frozen=True)
class TruncatedNormal(Gaussian):
    """An initializer that draws as `Gaussian`, and again if further than two ``std`` from ``mean``.

    PyTorch's trunc_normal_ redraws outside of absolute bounds, by default -2 and 2, for any
    ``std``.

    Args:
        mean: Finite number, the mean before the truncation.
        std: Number, at least 0, the standard deviation before the truncation.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.TruncatedNormal(mean=0.0, std=0.1)(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.09
    """

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        drawn = np.asarray(rng.standard_normal(shape))
        # Each round leaves 4.6 % of the elements outside, so even 1e9 elements need few rounds.
        while (outside := np.abs(drawn) > 2).any():
            drawn[outside] = rng.standard_normal(int(outside.sum()))
        return np.asarray(drawn * self.std + self.mean)


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """``gain`` times orthonormal rows or columns, whichever are fewer (Saxe et al. 2014).

    A shape of more than two axes is reshaped to (shape[0], product of the rest).

    Args:
        gain: Finite number, the factor; 1 by default.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.Orthogonal()(rng, (4, 2), (4, 2))
        >>> np.allclose(w.T @ w, np.eye(2))
        True
    """

    # The draw, and four temporary arrays of NumPy's QR decomposition.
    copies: ClassVar[int] = 5
    gain: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, gain=self.gain)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        if len(shape) < 2:
            raise wrong_shape("Orthogonal", "a shape of at least two axes", shape)
        rows, columns = shape[0], math.prod(shape[1:])
        drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        # The signs of R's diagonal make the draw uniform over the orthogonal matrices.
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        matrix = q if rows >= columns else q.T
        return np.ascontiguousarray(self.gain * matrix).reshape(shape)


@dataclass(frozen=True)
class Eye(Initializer):
    """``gain`` on the diagonal of a matrix, zero elsewhere.

    Args:
        gain: Finite number, the element on the diagonal; 1 by default.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> singanet.initializer.Eye()(rng, (2, 3), (0, 0))
        array([[1., 0., 0.],
               [0., 1., 0.]])
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, gain=self.gain)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        if len(shape) != 2:
            raise wrong_shape("Eye", "a shape of two axes", shape)
        return np.asarray(self.gain * np.eye(*shape))


@dataclass(frozen=True)
class Dirac(Initializer):
    """1 if filter k reads channel k in the middle of its window, otherwise 0.

    So a convolution copies its channels, in each of ``groups`` separately. A weight of two axes,
    such as (F, C·kh·kw) of `Conv2D`, needs the ``kernel``, (kh, kw); Zagoruyko and Komodakis, 2017.

    Args:
        kernel: Sequence of positive ints, the extents of the window; None if the weight's shape has
            them, (F, C, kh, kw).
        groups: Positive int that divides the filters.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> singanet.initializer.Dirac()(rng, (1, 1, 3, 3), (0, 0))
        array([[[[0., 0., 0.],
                 [0., 1., 0.],
                 [0., 0., 0.]]]])
    """

    kernel: Sequence[int] | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        kernel = (1,) if self.kernel is None else self.kernel
        several = isinstance(kernel, (tuple, list)) and all(is_int(size) for size in kernel)
        if not several or not kernel or not is_int(self.groups):
            raise ArgumentError(
                "Dirac",
                expected="kernel=(height, width) and a number of groups, all of at least 1",
                received=f"kernel={self.kernel!r}, groups={self.groups!r}",
                advice="write Dirac((3, 3)) for a Conv2D of 3 x 3",
            )
        if self.kernel is not None:
            object.__setattr__(self, "kernel", tuple(self.kernel))

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        window = tuple(shape[2:]) if self.kernel is None else tuple(self.kernel)
        values = np.zeros(shape)
        taps = math.prod(window)
        if not window or len(shape) < 2 or math.prod(shape[1:]) % taps or shape[0] % self.groups:
            raise wrong_shape("Dirac", f"filters (F, C, *{window or 'kernel'}), F in groups", shape)
        filters = values.reshape(shape[0], -1, taps)
        middle = int(np.ravel_multi_index([size // 2 for size in window], window))
        of_group = shape[0] // self.groups
        for k in range(min(of_group, filters.shape[1])):
            filters[k::of_group, k, middle] = 1.0
        return values


_CUT = 0.87962566103423978
"""The standard deviation of the normal distribution truncated to [-2, 2]."""
_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("uniform", "normal", "untruncated_normal", "truncated_normal")


class Scaled(Initializer):
    """A draw with zero mean and the variance ``_variance(fan_in, fan_out)``."""

    _uniform = False
    _truncated = False
    """Whether the normal distribution is truncated at two standard deviations."""

    @abstractmethod
    def _variance(self, fan_in: int, fan_out: int) -> float:
        """Return the variance of one element."""

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        std = math.sqrt(self._variance(*known_fans(type(self).__name__, shape, fans)))
        if self._uniform:
            bound = math.sqrt(3.0) * std
            return rng.uniform(-bound, bound, shape)
        if self._truncated:
            return TruncatedNormal(0.0, std / _CUT)(rng, shape, fans)
        return rng.normal(0.0, std, shape)

    def _draws_one_by_one(self, fans: tuple[int, int]) -> bool:
        """Return True if the fans are known without the shape; see `Initializer`."""
        own = type(self).__call__ is Scaled.__call__
        return own and min(fans) > 0 and (self._uniform or not self._truncated)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class GlorotNormal(Scaled):
    """N(0, 2 / (fan_in + fan_out)) (Glorot and Bengio 2010).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.GlorotNormal()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.06
    """

    def _variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 2.0 / (fan_in + fan_out)


class GlorotUniform(GlorotNormal):
    """U(-b, b), b = sqrt(6 / (fan_in + fan_out)): SINGA's ``xavier``.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.GlorotUniform()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.06
    """

    _uniform = True


class HeNormal(Scaled):
    """N(0, 2 / fan_in) (He et al. 2015): SINGA's ``msra``.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.HeNormal()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.14
    """

    def _variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 2.0 / fan_in


class HeUniform(HeNormal):
    """U(-b, b), b = sqrt(6 / fan_in) (He et al. 2015).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.HeUniform()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.14
    """

    _uniform = True


class LecunNormal(Scaled):
    """N(0, 1 / fan_in) (LeCun et al. 1998).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.LecunNormal()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.1
    """

    def _variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return 1.0 / fan_in


class LecunUniform(LecunNormal):
    """U(-b, b), b = sqrt(3 / fan_in) (LeCun et al. 1998).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.LecunUniform()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.1
    """

    _uniform = True


class GlorotTruncated(GlorotNormal):
    """`GlorotNormal` truncated at two deviations, with its variance: Keras' glorot_normal.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.GlorotTruncated()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.06
    """

    _truncated = True


class HeTruncated(HeNormal):
    """`HeNormal` truncated at two deviations, with its variance: Keras' he_normal.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.HeTruncated()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.14
    """

    _truncated = True


class LecunTruncated(LecunNormal):
    """`LecunNormal` truncated at two deviations, with its variance: Keras' lecun_normal.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.LecunTruncated()(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.1
    """

    _truncated = True


@dataclass(frozen=True)
class VarianceScaling(Scaled):
    """An initializer of variance ``scale`` / n, with n by ``mode``.

    For a gain of PyTorch pass its square as ``scale``.

    Args:
        scale: Number, at least 0.
        mode: "fan_in", "fan_out", or "fan_avg", the mean of both.
        distribution: "truncated_normal" as in Keras, "uniform", or "normal", Keras'
            "untruncated_normal".

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> w = singanet.initializer.VarianceScaling(scale=2.0)(rng, (100, 400), (100, 400))
        >>> round(float(w.std()), 2)
        0.14
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
                    received=brief(given),
                    advice=did_you_mean(str(given), known, "choose one of these"),
                )

    @property
    def _uniform(self) -> bool:  # type: ignore[override]
        """Whether the draw is uniform."""
        return self.distribution == "uniform"

    @property
    def _truncated(self) -> bool:  # type: ignore[override]
        """Whether the normal distribution is truncated."""
        return self.distribution == "truncated_normal"

    def _variance(self, fan_in: int, fan_out: int) -> float:
        """The variance of one element."""
        return self.scale / {"fan_in": fan_in, "fan_out": fan_out}.get(
            self.mode, (fan_in + fan_out) / 2
        )


def known_fans(name: str, shape: Shape, fans: tuple[int, int]) -> tuple[int, int]:
    """Return ``fans``, or the fans of ``shape``: (in, out), or filters (out, in, *kernel)."""
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


# The required and the optional keys of each initializer's spec.
_NAMES: dict[str, tuple[Callable[..., Initializer], tuple[str, ...], tuple[str, ...]]] = {
    "constant": (Constant, (), ("value",)),
    "uniform": (Uniform, ("low", "high"), ()),
    "gaussian": (Gaussian, ("mean", "std"), ()),
    "truncated_normal": (TruncatedNormal, ("mean", "std"), ()),
    "xavier": (GlorotUniform, (), ()),
    "msra": (HeNormal, (), ()),
    "glorot_uniform": (GlorotUniform, (), ()),
    "glorot_normal": (GlorotNormal, (), ()),
    "he_uniform": (HeUniform, (), ()),
    "he_normal": (HeNormal, (), ()),
    "lecun_uniform": (LecunUniform, (), ()),
    "lecun_normal": (LecunNormal, (), ()),
    "orthogonal": (Orthogonal, (), ("gain",)),
    "eye": (Eye, (), ("gain",)),
    "glorot_truncated": (GlorotTruncated, (), ()),
    "he_truncated": (HeTruncated, (), ()),
    "lecun_truncated": (LecunTruncated, (), ()),
    "variance_scaling": (VarianceScaling, (), ("scale", "mode", "distribution")),
    "dirac": (Dirac, (), ("kernel", "groups")),
    # Keras' names, with its defaults.
    "zeros": (Constant, (), ()),
    "ones": (partial(Constant, 1.0), (), ()),
    "random_normal": (partial(Gaussian, 0.0, 0.05), (), ()),
    "random_uniform": (partial(Uniform, -0.05, 0.05), (), ()),
    "identity": (Eye, (), ("gain",)),
}

INIT_KEYS = ("init", *dict.fromkeys(key for _, *keys in _NAMES.values() for key in sum(keys, ())))
"""The keys of an initializer in a spec."""


def from_spec(spec: Mapping[str, Any], where: str) -> Initializer:
    """Return the initializer ``spec['init']``, by name (in any case) or as an object.

    gaussian and truncated_normal need ``mean`` and ``std``, uniform ``low`` and ``high``; constant
    accepts ``value`` (0), orthogonal and eye ``gain`` (1), variance_scaling and dirac the arguments
    of `VarianceScaling` and `Dirac`. Errors: an unknown name; a key that is missing or not a
    number.

    Args:
        spec: Mapping with "init" and the arguments of the initializer; other keys are ignored.
        where: String at the start of errors.
    """
    init = spec.get("init")
    if isinstance(init, Initializer):
        return init
    if not isinstance(init, str):
        raise ArgumentError(
            where,
            expected="'init' to be a name or an Initializer",
            received=brief(init),
            advice="build the net and assign the array by net.set_params({name: array})"
            if hasattr(init, "shape")
            else f"write singanet.initializer.Constant({init})"
            if is_number(init)
            else f"use one of {one_of(_NAMES, 24)}",
        )
    name = init.lower()
    if name not in _NAMES:
        raise UnknownNameError(
            where,
            expected=f"'init' among {one_of(_NAMES, 24)}",
            received=brief(init),
            advice=did_you_mean(name, _NAMES, "choose one of these or pass an Initializer"),
        )
    make, required, optional = _NAMES[name]
    missing = [key for key in required if key not in spec]
    if missing:
        raise ArgumentError(
            where,
            expected=f"the keys {one_of(required)} for init {init!r}",
            received=f"a spec without {one_of(missing)}",
            advice="add the missing key to the spec",
        )
    return make(**{key: spec[key] for key in required + optional if key in spec})
