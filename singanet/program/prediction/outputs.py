"""What comes out of a prediction, written into arrays of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.ops import ops_for
from singanet.types import Array

_WHERE = "predictor, out="


def put(found: Any, out: Any) -> Any:
    """``out``, with the output ``found``, an array or several by name, in it.

    Nothing is written unless all of it fits. Errors: other names, shapes or types, an array that
    is read-only, and what is no array.
    """
    if isinstance(found, Mapping):
        if not isinstance(out, Mapping) or out.keys() != found.keys():
            raise UnknownNameError(
                _WHERE,
                expected=f"a dict of arrays for {', '.join(map(repr, found))}",
                received=", ".join(map(repr, out)) if isinstance(out, Mapping) else _told(out),
                advice="give each output of the net an array",
            )
        pairs = [(found[name], out[name], f" of output {name!r}") for name in found]
    else:
        pairs = [(found, out, "")]
    for made, given, what in pairs:
        if type(given) is not type(made) or given.shape != made.shape or given.dtype != made.dtype:
            _refuse(made, given, what)
        if type(given) is np.ndarray and not given.flags.writeable:
            raise ArgumentError(
                _WHERE,
                expected=f"an array{what} that can be written on",
                received="a read-only one",
                advice="give a copy of it",
            )
    for made, given, _ in pairs:
        ops_for(made).copyto(given, made)
    return out


def _refuse(made: Array, given: Any, what: str) -> None:
    wanted = f"an array{what} of shape {made.shape} and type {made.dtype}"
    if isinstance(given, type(made)) and given.shape != made.shape:
        raise ShapeError(
            _WHERE,
            expected=wanted,
            received=f"shape {given.shape}",
            advice="batches of another size need an array of their own, or a part of a larger one",
        )
    raise ArgumentError(
        _WHERE,
        expected=wanted,
        received=_told(given),
        advice="make it by numpy.empty_like of what the predictor gives without out",
    )


def _told(given: Any) -> str:
    if hasattr(given, "dtype"):
        return f"a {type(given).__name__} of type {given.dtype}"
    return f"a {type(given).__name__}"
