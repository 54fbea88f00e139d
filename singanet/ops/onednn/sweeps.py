"""Arithmetic of arrays element by element, shared by oneDNN's threads.

Each step is rounded as NumPy rounds it, so that the bits are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Algorithm as Alg
from singanet.ops.onednn.binding import Arg, Prop
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.descriptors import NotOfferedError
from singanet.ops.onednn.plan import Runnable
from singanet.ops.onednn.runtime import SHARED

_BINARY = {
    np.add: Alg.BINARY_ADD,
    np.subtract: Alg.BINARY_SUBTRACT,
    np.multiply: Alg.BINARY_MULTIPLY,
    np.divide: Alg.BINARY_DIVIDE,
}

_LEAST = 1 << 14
"""Elements from which oneDNN is faster, in one thread too."""

_OPERANDS = ((Arg.SRC, Arg.SCALE_OF_SRC), (Arg.SRC_1, Arg.SCALE_OF_SRC_1))


def has_sweep(ops: OneDnnBase, function: Any, size: int) -> bool:
    """See `Ops`."""
    offered = size >= _LEAST and (function in _BINARY or function is np.sqrt)
    return offered and ops.runtime() is not None


def sweep(
    ops: OneDnnBase, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
) -> Runnable | None:
    """See `Ops`."""
    runtime = ops.runtime() if has_sweep(ops, function, size) else None
    if runtime is None:
        return None
    # What is done in parts is shared as the whole is.
    passes = SHARED if work >= SHARED else 0
    if function is np.sqrt:
        return runtime.plan(_root, (size, passes), passes)
    return runtime.plan(_binary, (size, int(_BINARY[function]), number, scaled, passes), passes)


def _binary(
    build: Builder, size: int, algorithm: int, number: bool, scaled: tuple[bool, ...], _: int
) -> None:
    """Operands: the result, both arrays, and what each that is scaled is multiplied by."""
    line, one = build.rows((size,)), build.rows((1,))
    factors = [pair for pair, is_it in zip(_OPERANDS, scaled, strict=True) if is_it]
    attributes = build.scaled([arg for arg, _ in factors]) if factors else None
    given = [line, one if number else line]
    desc = build.primitive_desc("binary", algorithm, *given, line, attributes=attributes)
    _expect_in_place(build, desc)
    order = [Arg.DST, Arg.SRC, Arg.SRC_1, *(scale for _, scale in factors)]
    build.stage(desc, build.operands(order, [line, *given, *[one] * len(factors)]))


def _root(build: Builder, size: int, _: int) -> None:
    line, prop = build.rows((size,)), int(Prop.FORWARD_INFERENCE)
    desc = build.primitive_desc("eltwise_forward", prop, int(Alg.SQUARE_ROOT), line, line, 0.0, 0.0)
    _expect_in_place(build, desc)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC), [line, line]))


def _expect_in_place(build: Builder, desc: Any) -> None:
    """The result may lie where the second operand does: generated code has read both before."""
    if not build.implementation(desc).startswith("jit"):
        raise NotOfferedError("arithmetic")
