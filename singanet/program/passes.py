"""How long a call computes, in what going over its operands once takes."""

from __future__ import annotations

import math

import numpy as np

from singanet.program.call import Call, refs_of

_ADDS_A_PASS = 8
"""Multiply-adds for each value of operands and result; with fewer a product waits for memory."""

_PRODUCTS = frozenset(("dot", "einsum", "inner", "outer", "tensordot", "vdot", "convolve"))
"""Functions whose work their operands' shapes alone do not tell."""

_MANY = 16


def passes_of(call: Call) -> int:
    """Of oneDNN's plans as they say, of products by their shapes, of all else one."""
    if call.function is np.matmul:
        a, b, out = refs_of(call)
        adds = math.prod(out.shape) * a.shape[-1]
        return 1 + adds // sum(map(math.prod, (a.shape, b.shape, out.shape))) // _ADDS_A_PASS
    return _MANY if call.name in _PRODUCTS else call.passes
