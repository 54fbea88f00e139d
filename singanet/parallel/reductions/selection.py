"""Which elements of a gradient are sent, where only a few are."""

from __future__ import annotations

import numpy as np

from singanet.types import Array

_FEW = 1 << 14
"""Elements that are partitioned as they are: a sample of them would save nothing."""

_SAMPLED = 1 << 7
"""One element in so many is looked at to guess a threshold."""


def largest(values: Array, count: int) -> Array:
    """The rising places of the ``count`` elements of largest magnitude; of equals the first.

    NaN is larger than anything: it has to be seen by all ranks, and not to stay with one.
    ``values`` is flat. Most elements are only compared with a threshold that a sample suggests,
    low enough that too many pass rather than too few; those are cut to ``count`` exactly.
    """
    count = min(count, values.size)
    if count <= 0:
        return np.empty(0, np.int64)
    sizes = np.abs(values)
    found = None
    if sizes.size > _FEW:
        sample = _comparable(sizes[:: _stride(sizes.size)])
        share = count / sizes.size
        # The sample's own count of such elements varies by its root.
        wanted = share * sample.size
        wanted = int(wanted + 3.0 * wanted**0.5) + 2
        while wanted < sample.size:
            least = np.partition(sample, sample.size - wanted)[sample.size - wanted]
            # NaN is below nothing.
            found = np.flatnonzero(~(sizes < least))
            if found.size >= count:
                break
            found, wanted = None, 4 * wanted
    among = np.arange(sizes.size) if found is None else found
    return among[_exactly(_comparable(sizes[among]), count)]


def reaching(values: Array, threshold: float) -> Array:
    """The rising places of the elements of at least ``threshold`` in magnitude, and of NaN."""
    return np.flatnonzero(~(np.abs(values) < threshold))


def _stride(size: int) -> int:
    """How far apart the elements of a sample are: odd, as rows of matrices seldom are long."""
    return min(_SAMPLED, size // (_FEW // 4)) | 1


def _comparable(sizes: Array) -> Array:
    """``sizes`` with infinity for NaN."""
    return np.where(np.isnan(sizes), np.inf, sizes)


def _exactly(sizes: Array, count: int) -> Array:
    """The rising places of the ``count`` largest of ``sizes``, of equals the first."""
    if count == sizes.size:
        return np.arange(count)
    least = np.partition(sizes, sizes.size - count)[sizes.size - count]
    chosen = sizes > least
    ties = np.flatnonzero(sizes == least)[: count - int(np.count_nonzero(chosen))]
    chosen[ties] = True
    return np.flatnonzero(chosen)
