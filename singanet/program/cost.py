"""Costs of calls, in time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from singanet.program.ir import Call, Ref, Token, refs_of

_ADDS_A_PASS = 8
"""Multiply-adds for each value of operands and result; with fewer a product waits for memory."""

_PRODUCTS = frozenset(("dot", "einsum", "inner", "outer", "tensordot", "vdot", "convolve"))
"""Functions whose work does not follow from the shapes of their operands."""

_MANY = 16

_DISPATCH = 50_000
"""The bytes read from memory, at 10 GB/s, in the time of a Python call, some 5 microseconds."""

NEVER = 1 << 40
"""The passes of a call that must not run twice."""


def passes_of(call: Call) -> int:
    """How often a call goes over its operands again; `NEVER` if it must not be made twice."""
    return NEVER if call.once else passes_at_first(call)


def passes_at_first(call: Call) -> int:
    """Of oneDNN's plans as they say, of products by their shapes, of all else one."""
    if call.function is np.matmul:
        a, b, out = refs_of(call)
        adds = math.prod(out.shape) * a.shape[-1]
        return passes_for(adds, _values(a) + _values(b) + _values(out))
    return _MANY if call.name in _PRODUCTS else call.passes


def passes_for(adds: int, values: int) -> int:
    """The passes of a call with ``adds`` multiply-adds on ``values`` values."""
    return 1 + adds // max(values, 1) // _ADDS_A_PASS


def bytes_of(call: Call, tokens: Sequence[Token]) -> int:
    """The bytes that a call reads and writes."""
    if call.bind is not None:
        return sum(tokens[token].nbytes for token in {*call.reads, *call.writes})
    return sum(_values(ref) * ref.dtype.itemsize for ref in refs_of(call))


def work_of(call: Call, tokens: Sequence[Token]) -> int:
    """The work of a call in bytes gone over, its dispatch included."""
    return passes_at_first(call) * bytes_of(call, tokens) + call.parts * _DISPATCH


def _values(ref: Ref) -> int:
    return math.prod(ref.shape)


CALL_BYTES = 2300
"""Bytes resident for the Python objects of one call, bound to its arrays.

This and the numbers below are least squares over twelve nets, with CPython 3.11: the memory of the
process without arrays. `tracemalloc` counts 1700 of them; the rest are the net's own objects and
holes in Python's heap after recording.
"""

PLAN_BYTES = {True: 76_000, False: 63_000}
"""Bytes of the machine code and descriptors of one plan of oneDNN 3.

The key is whether the code is for registers of 512 bits: it is longer, as it unrolls more rows of a
product.
"""

EXECUTION_BYTES = 17_000
"""Bytes of the memory objects and arguments that bind one call of such a plan."""

PRODUCTS_BYTES = {True: 4_000_000, False: 2_000_000}
"""Bytes of the code of oneDNN's matrix products, made at the first one, by the same key.

The kernels of recurrent layers are made of these.
"""
