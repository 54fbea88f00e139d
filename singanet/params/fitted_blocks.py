"""Blocks of 4 bits whose numbers are chosen for what products make of them.

Of each block scale and minimum are those of the least squared error among some ranges. Where the
rows are known that a matrix multiplies, what an input is off by goes on to the inputs after it
(GPTQ, Frantar et al. 2022, https://arxiv.org/abs/2210.17323).
"""

from __future__ import annotations

import numpy as np

from singanet.ops.held import BLOCK
from singanet.types import Array

_MOST = np.float32(15)
_RANGES = (1.0, 0.88)
"""Parts of the range of a block that its 16 numbers may be spread over."""
_AT_A_TIME = 1 << 13
"""Blocks that are fitted at a time."""
_DAMPING = 0.01
"""Of the mean second moment what is added to each, so that none is nought."""
_TINY = np.finfo(np.float32).tiny


def fitted(values: Array) -> Array:
    """float32 ``values`` (n, 32) as n blocks Q4_1: bytes (n, 20)."""
    blocks = np.empty((len(values), 20), np.uint8)
    for start in range(0, len(values), _AT_A_TIME):
        part = values[start : start + _AT_A_TIME]
        scale, least = _fit(part)
        blocks[start : start + _AT_A_TIME] = _packed(_codes(part, scale, least), scale, least)
    return blocks


def fed_back(values: Array, moments: Array) -> Array:
    """``values`` (inputs, outputs) as blocks Q4_1 (outputs, blocks, 20).

    ``moments`` (inputs, inputs) are the sums of the products of what the inputs have been. Of each
    input in turn the error is made good, as far as can be, by those after it.
    """
    inputs, outputs = values.shape
    factors = _factors(moments)
    left = np.array(values, np.float32)
    blocks = np.empty((outputs, inputs // BLOCK, 20), np.uint8)
    for start in range(0, inputs, BLOCK):
        rows = slice(start, start + BLOCK)
        part, errors = left[rows], np.empty((BLOCK, outputs), np.float32)
        scale, least = _fit(np.ascontiguousarray(part.T))
        codes = np.empty((outputs, BLOCK), np.uint8)
        for k in range(BLOCK):
            number = start + k
            codes[:, k] = _codes(part[k][:, None], scale, least)[:, 0]
            made = codes[:, k] * scale[:, 0] + least[:, 0]
            errors[k] = (part[k] - made) / factors[number, number]
            part[k + 1 :] -= np.outer(factors[number, number + 1 : rows.stop], errors[k])
        left[rows.stop :] -= factors[rows, rows.stop :].T @ errors
        blocks[:, start // BLOCK] = _packed(codes, scale, least)
    return blocks


def _factors(moments: Array) -> Array:
    """The upper Cholesky factor of the inverse of ``moments``, which are damped."""
    exact = moments.astype(np.float64)
    middle = float(np.mean(np.diag(exact)))
    # Of inputs that have been nothing any number will do.
    exact[np.diag_indices_from(exact)] += _DAMPING * middle if middle > 0 else 1.0
    inverse = np.linalg.inv(exact)
    lower = np.linalg.cholesky((inverse + inverse.T) / 2)
    return lower.T.astype(np.float32)


def _codes(values: Array, scale: Array, least: Array) -> Array:
    """Whole numbers from 0 to 15, the nearest ones."""
    made = (values - least) / np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(made), 0, _MOST).astype(np.uint8)


def _fit(values: Array) -> tuple[Array, Array]:
    """The scale and minimum (n, 1) of each row, as float16 has them, of the least squared error."""
    low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
    best = np.full((len(values), 1), np.inf, np.float32)
    scale, least = np.zeros_like(low), low.copy()
    for part in _RANGES:
        step = part * (high - low) / _MOST
        begin = low + (1 - part) / 2 * (high - low)
        for again in (False, True):
            if again:
                step, begin = _refitted(values, _codes(values, step, begin), step, begin)
            step, begin = _halves(step), _halves(begin)
            off = _codes(values, step, begin) * step + begin - values
            error = np.einsum("ij,ij->i", off, off)[:, None]
            better = error < best
            best = np.where(better, error, best)
            scale, least = np.where(better, step, scale), np.where(better, begin, least)
    return scale, least


def _refitted(values: Array, codes: Array, scale: Array, least: Array) -> tuple[Array, Array]:
    """The line that is nearest to ``values`` at ``codes``; of equal ones the one that was."""
    floats = codes.astype(np.float32)
    mean, middle = floats.mean(1, keepdims=True), values.mean(1, keepdims=True)
    floats -= mean
    size = np.einsum("ij,ij->i", floats, floats)[:, None]
    slope = np.einsum("ij,ij->i", floats, values)[:, None] / np.maximum(size, _TINY)
    fits = (size > 0) & (slope > 0)
    return np.where(fits, slope, scale), np.where(fits, middle - slope * mean, least)


def _halves(numbers: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return numbers.astype(np.float16).astype(np.float32)


def _packed(codes: Array, scale: Array, least: Array) -> Array:
    blocks = np.empty((len(codes), 20), np.uint8)
    with np.errstate(over="ignore", under="ignore"):
        blocks[:, :2] = scale.astype("<f2").view(np.uint8)
        blocks[:, 2:4] = least.astype("<f2").view(np.uint8)
    blocks[:, 4:] = codes[:, :16] | codes[:, 16:] << 4
    return blocks
