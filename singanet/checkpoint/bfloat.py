"""bfloat16, which NumPy lacks, as the float32 numbers it is short for."""

from __future__ import annotations

import numpy as np

from singanet.types import Array


def widen(words: Array) -> Array:
    """uint16 ``words`` of bfloat16 as float32 of the same values, in pieces to spare memory."""
    out = np.empty(words.shape, np.float32)
    bits, flat = out.reshape(-1).view(np.uint32), words.reshape(-1)
    for start in range(0, len(flat), 1 << 20):
        piece = slice(start, start + (1 << 20))
        bits[piece] = flat[piece].astype(np.uint32) << 16
    return out
