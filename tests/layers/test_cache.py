"""What a cache of an embedding is told."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.layers import Cache, Embedding


@pytest.mark.parametrize(
    ("capacity", "rows", "lines"),
    [
        (0.1, 1000, 100),
        (1.0, 1000, 1000),
        (np.float64(0.5), 7, 3),
        (1, 1000, 1),
        (np.int64(40), 1000, 40),
        (40, 7, 7),
        (1e-6, 1000, 1),
    ],
)
def test_capacity_is_a_fraction_or_as_an_int_a_number(capacity, rows, lines):
    assert Cache(capacity=capacity).lines(rows) == lines


@pytest.mark.parametrize("capacity", [0, -1, 0.0, -0.5, 1.5, 40.0, float("nan"), True, "all", None])
def test_other_capacities_are_refused(capacity):
    with pytest.raises(ArgumentError, match="Cache, capacity: expected a fraction"):
        Cache(capacity=capacity)


@pytest.mark.parametrize("policy", ["LRU", "Lfu", "LFUOpt"])
def test_a_policy_may_be_in_capitals(policy):
    """Hetu writes cstable_policy="LFUOpt"."""
    assert Cache(policy).policy == policy.lower()


def test_other_arguments_are_refused():
    with pytest.raises(ArgumentError, match=f"{Cache().policy!r} suits most data"):
        Cache("random")
    with pytest.raises(ArgumentError, match="did you mean 'lfu'"):
        Cache("lfuu")
    for bound in ("pull_bound", "push_bound"):
        with pytest.raises(ArgumentError, match=bound):
            Cache(**{bound: -1})
    with pytest.raises(ArgumentError, match="expected a Cache, or None"):
        Embedding("words", 10, 4, cache="lru")
