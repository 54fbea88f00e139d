"""Initializers: how a parameter's first values are drawn."""

from __future__ import annotations

from singanet.initializer.distributions import (
    Constant,
    Eye,
    Gaussian,
    Orthogonal,
    TruncatedNormal,
    Uniform,
)
from singanet.initializer.initializer import Initializer
from singanet.initializer.scaled import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    LecunNormal,
    LecunUniform,
)
from singanet.initializer.spec import from_spec

__all__ = [
    "Constant",
    "Eye",
    "Gaussian",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Orthogonal",
    "TruncatedNormal",
    "Uniform",
    "from_spec",
]
