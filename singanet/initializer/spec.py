"""Initializers from SINGA's spec dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.initializer.distributions import (
    Constant,
    Dirac,
    Eye,
    Gaussian,
    Orthogonal,
    TruncatedNormal,
    Uniform,
)
from singanet.initializer.initializer import Initializer
from singanet.initializer.scaled import (
    GlorotNormal,
    GlorotTruncated,
    GlorotUniform,
    HeNormal,
    HeTruncated,
    HeUniform,
    LecunNormal,
    LecunTruncated,
    LecunUniform,
    VarianceScaling,
)

# The keys each name of a spec must have, and those it may have.
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
}

INIT_KEYS = ("init", *dict.fromkeys(key for _, *keys in _NAMES.values() for key in sum(keys, ())))
"""What a spec may say of its initializer."""


def from_spec(spec: Mapping[str, Any], where: str) -> Initializer:
    """The initializer that ``spec['init']`` names (in any case) or is; ``spec`` is only read.

    gaussian and truncated_normal need ``mean`` and ``std``, uniform ``low`` and ``high``;
    constant takes ``value`` (0), orthogonal and eye ``gain`` (1), variance_scaling and dirac the
    arguments of `VarianceScaling` and `Dirac`. ``where`` opens the message of
    an error: a name that is unknown, a key that is missing or no number.
    """
    init = spec.get("init")
    if isinstance(init, Initializer):
        return init
    if not isinstance(init, str):
        raise ArgumentError(
            where,
            expected="'init' to be a name or an Initializer",
            received=f"{init!r}",
            advice=f"use one of {one_of(_NAMES, 20)}",
        )
    name = init.lower()
    if name not in _NAMES:
        raise UnknownNameError(
            where,
            expected=f"'init' among {one_of(_NAMES, 20)}",
            received=f"{init!r}",
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
