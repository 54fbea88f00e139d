"""Samples kept back from training."""

from __future__ import annotations

import numpy as np

from singanet.errors import ArgumentError, DataError
from singanet.types import Array


def split(count: int, share: float, seed: int) -> tuple[Array, Array]:
    """The numbers of the samples to train on and of the ``share`` kept back, both in order.

    They are drawn by ``seed``, since the samples of a file may be sorted by class. Errors: a
    share outside of (0, 1); too few samples to have both.
    """
    kept_back = held(count, share)
    # The third number keeps this draw apart from those that shuffle and shift.
    order = np.random.default_rng([seed, 0, 2]).permutation(count)
    return np.sort(order[kept_back:]), np.sort(order[:kept_back])


def held(count: int, share: float) -> int:
    """How many of ``count`` are kept back. Errors: those of `split`."""
    if not 0.0 < share < 1.0:
        raise ArgumentError(
            "--validation-split",
            expected="a share from 0 to below 1",
            received=str(share),
            advice="0.1 keeps a tenth of the training data back, 0 none",
        )
    found = max(1, round(count * share))
    if found >= count:
        raise DataError(
            "--validation-split",
            expected="samples on both sides of the split",
            received=f"{count - found} to train on and {found} to validate with, of {count}",
            advice="choose a smaller share, or 0",
        )
    return found
