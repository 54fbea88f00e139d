"""Scores by distance, against a loop over all pairs."""

import math

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import ByDistance
from tests.kit.layers import case, cases


def picked(of_keys):
    def expected(p, x):
        n, heads, length, _ = x.shape
        y = np.empty((n, heads, length, length))
        for i, j in np.ndindex(length, length):
            far, sign = abs(i - j), 1 if i > j else -1
            bucket = i - j
            if far > 2:
                bucket = sign * (math.ceil(math.log(far / 2) / math.log(5 / 2)) + 2)
            at = min(max(bucket + 4, 0), 7)
            y[:, :, i, j] = x[:, :, j if of_keys else i, at]
        return y

    return expected


CASES = {
    "ByDistance": case(lambda: ByDistance("far", 4, 6), (2, 5, 8), picked(False)),
    "ByDistance of keys": case(lambda: ByDistance("far", 4, 6, True), (2, 7, 8), picked(True)),
    "ByDistance of a step": case(lambda: ByDistance("far", 4, 6), (2, 1, 8), picked(False)),
}


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_what_is_refused():
    with pytest.raises(ShapeError, match="expected 8 scores of each step"):
        ByDistance("far", 4, 6).build((2, 5, 7))
    with pytest.raises(ArgumentError, match="argument max_distance"):
        ByDistance("far", 4, 1)
