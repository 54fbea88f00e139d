"""Costs of calls, in time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from singanet.program.ir import Call, Ref, Token, refs_of

_ADDS_A_PASS = 8
"""Multiply-adds for each value of operands and result; with fewer a product waits for memory."""

_PRODUCTS = frozenset(("dot", "einsum", "inner", "outer", "tensordot", "vdot", "convolve"))
"""Functions whose work their operands' shapes alone do not tell."""

_MANY = 16

_DISPATCH = 50_000
"""Bytes that pass through memory, at 10 GB/s, while Python makes a call: some 5 microseconds."""

NEVER = 1 << 40
"""Passes of a call that must not be made twice."""


def passes_of(call: Call) -> int:
    """Of oneDNN's plans as they say, of products by their shapes, of all else one."""
    if call.once:
        return NEVER
    if call.function is np.matmul:
        a, b, out = refs_of(call)
        adds = math.prod(out.shape) * a.shape[-1]
        return passes_for(adds, _values(a) + _values(b) + _values(out))
    return _MANY if call.name in _PRODUCTS else call.passes


def passes_for(adds: int, values: int) -> int:
    """Of a call with so many multiply-adds on so many values."""
    return 1 + adds // max(values, 1) // _ADDS_A_PASS


def bytes_of(call: Call, tokens: Sequence[Token]) -> int:
    """The bytes of what it reads and writes."""
    if call.bind is not None:
        return sum(tokens[token].nbytes for token in {*call.reads, *call.writes})
    return sum(_values(ref) * ref.dtype.itemsize for ref in refs_of(call))


def work_of(call: Call, tokens: Sequence[Token]) -> int:
    """The work of a call in bytes gone over, its dispatch included."""
    passes = passes_of(replace(call, once=False) if call.once else call)
    return passes * bytes_of(call, tokens) + call.parts * _DISPATCH


def _values(ref: Ref) -> int:
    return math.prod(ref.shape)


CALL_BYTES = 2300
"""Bytes resident for the Python objects of one call, bound to its arrays.

This and those below are least squares over twelve nets, by CPython 3.11: what the process holds
beside arrays. `tracemalloc` sees 1700 of them; the others are the net's own objects and holes that
recording leaves in Python's heap.
"""

PLAN_BYTES = {True: 76_000, False: 63_000}
"""Bytes of the machine code and descriptors of one of oneDNN's plans, version 3.

By whether the code is for registers of 512 bits, which is longer: more rows of a product are
written out in it.
"""

EXECUTION_BYTES = 17_000
"""Bytes of the memory objects and arguments that bind one call of such a plan."""

PRODUCTS_BYTES = {True: 4_000_000, False: 2_000_000}
"""Bytes of the code of oneDNN's matrix products, made at the first one: as `PLAN_BYTES`.

The kernels of recurrent layers are made of these.
"""
