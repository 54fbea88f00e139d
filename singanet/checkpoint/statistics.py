"""A few numbers about an array, found in pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.types import Array

_PIECE = 1 << 18


@dataclass(frozen=True)
class Statistics:
    """Least, greatest and mean of the numbers, and how many are NaN; those apart from the rest."""

    least: float
    greatest: float
    mean: float
    nans: int


def statistics(array: Array) -> Statistics:
    """The statistics of ``array``; NaN for each where no number is left."""
    flat = array.reshape(-1)
    least, greatest, total, count, nans = np.inf, -np.inf, 0.0, 0, 0
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE].astype(np.float64)
        kept = piece[~np.isnan(piece)]
        nans += piece.size - kept.size
        if kept.size:
            least, greatest = min(least, float(kept.min())), max(greatest, float(kept.max()))
            with np.errstate(invalid="ignore", over="ignore"):  # the mean of both infinities
                total += float(kept.sum())
            count += kept.size
    if not count:
        return Statistics(np.nan, np.nan, np.nan, nans)
    return Statistics(least, greatest, total / count, nans)
