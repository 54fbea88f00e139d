"""The rows of queries and keys, which llama.cpp has in another order than transformers.

A rotary embedding turns pairs of a head's features. Transformers has the first of all pairs before
the second of all, llama.cpp the two of each pair side by side: for its Llama family
(``general.architecture`` llama), not for Qwen, Gemma or Phi.
"""

from __future__ import annotations

import numpy as np

from singanet.errors import ShapeError
from singanet.types import Array


def interleaved(rows: Array, heads: int) -> Array:
    """``rows`` of transformers, a weight (heads × features, ...) or a bias, as llama.cpp has them.

    Of keys ``heads`` is the number of their own. A copy. Errors: `ShapeError` where rows are not
    ``heads`` times an even number.
    """
    return _turned(rows, heads, 2, -1)


def halved(rows: Array, heads: int) -> Array:
    """``rows`` of llama.cpp as transformers has them; the reverse of `interleaved`."""
    return _turned(rows, heads, -1, 2)


def _turned(rows: Array, heads: int, *pairs: int) -> Array:
    if rows.ndim < 1 or heads < 1 or rows.shape[0] % (2 * heads):
        raise ShapeError(
            "rotary rows",
            expected=f"{heads} heads of an even number of rows each",
            received=f"shape {rows.shape}",
            advice="pass a weight with its output features first, and the number of its heads",
        )
    parts = rows.reshape(heads, *pairs, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(rows.shape)
