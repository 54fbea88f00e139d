"""Initializers: how a parameter's first values are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.initializer.initializers import (
    Constant,
    Dirac,
    Eye,
    Gaussian,
    GlorotNormal,
    GlorotTruncated,
    GlorotUniform,
    HeNormal,
    HeTruncated,
    HeUniform,
    Initializer,
    LecunNormal,
    LecunTruncated,
    LecunUniform,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    VarianceScaling,
    from_spec,
)

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
    __getattr__ = names_of(__name__, __all__)
