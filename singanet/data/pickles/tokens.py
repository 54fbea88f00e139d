"""Tokens that a pickle's program leaves on our stack instead of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALLOWED = frozenset(
    {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
        ("collections", "OrderedDict"),
        ("_codecs", "encode"),
        # How protocol 2 spells b"": called without arguments, or refused.
        ("__builtin__", "bytes"),
    }
)
"""Every name a pickle may mention; none of them is ever imported or called."""


@dataclass(frozen=True, slots=True)
class Global:
    """A mention of one of `ALLOWED`."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredText:
    """A long string left in the file; ``coding`` says how its bytes are spelled there."""

    offset: int
    size: int
    coding: str


@dataclass(slots=True, eq=False)
class Made:
    """A call that was asked for and not made, with the state set on its result."""

    maker: str
    args: tuple[Any, ...]
    state: Any = None
