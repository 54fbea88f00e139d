"""Click data as large as Criteo's, made by a planted model."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.data.tabular import TabularDataset
from singanet.errors import ArgumentError
from singanet.types import Array

CRITEO_FIELDS: Final = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Values of the 26 categorical fields of Criteo's published data (Kaggle, 2014), 33,762,577."""

_MEASURES = 13
_GROUPS = 8  # of ids, within which they act alike on the next field
_PRIME = 2_654_435_761  # above any field, so that multiples of it visit each id once
_SPREAD = 2.0  # of the planted log odds
_SHARE = 0.256  # of clicks, as in the published data


def clicks(
    rows: int = 100_000, scale: float = 1.0, exponent: float = 1.1, seed: int = 0
) -> TabularDataset:
    """``rows`` of made click data with the fields of Criteo's: 26 of ids, 13 of measures.

    Field sizes are `CRITEO_FIELDS` times ``scale``, at least two. The share of the ids of a field
    falls with their rank r as the integral of x^-``exponent`` from r to r + 1 (a Zipf tail), and
    ranks are scattered over the field. A click is drawn by log odds that sum a weight of each id,
    products of neighbouring fields, and weights of the measures; a quarter of the rows are clicks.
    Weights belong to ``seed`` and ``scale``, whatever ``rows`` is; the planted model itself has an
    AUC of 0.87. The last fifth is for testing. Errors: fewer than ten rows, a scale outside of
    (0, 1], an exponent that is not above 0.
    """
    rows = checked_count("clicks", "argument rows", rows, 10)
    _expect(is_number(scale) and 0 < scale <= 1, "scale", "above 0 and at most 1", scale)
    _expect(is_number(exponent) and exponent > 0, "exponent", "above 0", exponent)
    sizes = [max(2, round(size * scale)) for size in CRITEO_FIELDS]
    world = np.random.default_rng([seed, 0])
    drawn = np.random.default_rng([seed, 1, rows])
    odds = np.zeros(rows)
    categorical = np.empty((rows, len(sizes)), np.int32)
    before: Array | None = None
    for field, size in enumerate(sizes):
        ranks = _ranks(drawn.random(rows), size, exponent)
        turn, groups = int(world.integers(size)), int(world.integers(1 << 31))
        categorical[:, field] = (ranks * _PRIME + turn) % size
        odds += world.standard_normal(size, np.float32)[ranks]
        group = (ranks + groups) % _GROUPS
        together = world.standard_normal((_GROUPS, _GROUPS))
        if before is not None:
            odds += together[before, group]
        before = group
    skewed = np.exp(drawn.standard_normal((rows, _MEASURES)))
    measures = np.log1p(skewed)
    test = np.arange(rows) >= rows - rows // 5
    measures -= measures[~test].mean(axis=0)
    measures /= measures[~test].std(axis=0)
    odds += measures @ world.standard_normal(_MEASURES)
    odds *= _SPREAD / odds.std()
    # The mean of a sigmoid over a normal distribution, by MacKay's approximation (1992).
    center = math.log(_SHARE / (1 - _SHARE)) * math.sqrt(1 + math.pi * _SPREAD**2 / 8)
    odds += center - odds.mean()
    y = (drawn.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int32)
    numeric = measures.astype(np.float32)
    return TabularDataset(
        name="clicks",
        x_train={"categorical": categorical[~test], "numeric": numeric[~test]},
        y_train=y[~test],
        x_test={"categorical": categorical[test], "numeric": numeric[test]},
        y_test=y[test],
        categories={f"C{k}": range(size) for k, size in enumerate(sizes, start=1)},
        numeric=tuple(f"I{k}" for k in range(1, _MEASURES + 1)),
        label=("no click", "a click"),
    )


def _ranks(uniform: Array, size: int, exponent: float) -> Array:
    """Ranks 0 to ``size`` - 1 by numbers in [0, 1): the inverse of the bounded Pareto's CDF."""
    low = 1.0 - exponent
    if abs(low) < 1e-9:
        x = np.exp(uniform * math.log(size + 1))
    else:
        x = (1.0 + uniform * ((size + 1) ** low - 1.0)) ** (1.0 / low)
    # Rounding may reach the end of the last interval.
    return np.minimum(x.astype(np.int64), size) - 1


def _expect(right: bool, name: str, expected: str, received: float) -> None:
    if not right:
        raise ArgumentError(
            f"clicks, argument {name}",
            expected=f"a number {expected}",
            received=repr(received),
            advice="call clicks(rows=1_000_000, scale=0.01) for a hundredth of the fields",
        )
