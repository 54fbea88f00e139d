"""Cast between float16 and float32, and detect the compiler."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from singanet.base.heap import address
from singanet.types import Array

COMPILER = "run: pip install 'llvmlite>=0.45'"


def compiler_version() -> str:
    """Return the version of the package llvmlite, empty if there is none."""
    try:
        import llvmlite
    except ImportError:
        return ""
    return str(llvmlite.__version__)


@cache
def has_compiler() -> bool:
    """Whether LLVM is installed, in a release with the expected names."""
    try:
        return [int(part) for part in compiler_version().split(".")[:2]] >= [0, 45]
    except ValueError:
        return False


_LEAST = 4096
"""Numbers from which a call costs little compared with the conversion."""
_BOTH = {np.dtype(np.float16), np.dtype(np.float32)}


def cast(x: Array, dtype: Any) -> Array:
    """Return a copy of ``x`` as ``dtype``; a recorded array uses its own method."""
    if type(x) is not np.ndarray or x.size < _LEAST or {x.dtype, np.dtype(dtype)} != _BOTH:
        return x.astype(dtype)
    call, lanes = _compiled(x.itemsize == 4)
    if call is None or not (x.flags.c_contiguous or x.flags.f_contiguous):
        return x.astype(dtype)
    made = np.empty_like(x, dtype)
    many = x.size - x.size % lanes
    call(address(x), address(made), many)
    if many < x.size:
        made.reshape(-1, order="A")[many:] = x.reshape(-1, order="A")[many:]
    return made


def is_compiled(x: Any, y: Any) -> bool:
    """Whether a compiled function, which is loaded now, casts arrays like ``x`` to ones like ``y``.

    Both have a shape and a dtype.
    """
    large = prod(x.shape) >= _LEAST and {x.dtype, y.dtype} == _BOTH
    return large and _compiled(x.dtype.itemsize == 4)[0] is not None


@cache
def _compiled(narrows: bool) -> tuple[Any, int]:
    """Return the compiled function and its lanes; None if the processor lacks the instructions."""
    if not has_compiler():
        return None, 1
    # Imported when first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, panels
    from singanet.ops.compiled.sizes import LANES

    return engine.known(panels.cast, narrows).call if engine.converts_halves() else None, LANES
