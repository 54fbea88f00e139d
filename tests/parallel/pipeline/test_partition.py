from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.parallel.pipeline.partition import Cost, balanced

COSTS = st.lists(
    st.builds(Cost, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=7
)


def slowest(costs, cut, alive, limit):
    """The seconds of the slowest stage where stages begin at ``cut``; None beyond the limit."""
    parts = [costs[a:b] for a, b in zip([0, *cut], [*cut, len(costs)], strict=True)]
    for part, count in zip(parts, alive, strict=True):
        if sum(c.nbytes * count + c.held for c in part) > limit:
            return None
    return max(sum(c.work for c in part) for part in parts)


@settings(max_examples=40, deadline=None)
@given(COSTS, st.integers(1, 3), st.integers(5, 60))
def test_no_other_contiguous_split_has_a_quicker_slowest_stage(costs, stages, limit):
    alive = [stages - k for k in range(stages)]
    cuts = combinations(range(1, len(costs)), stages - 1)
    every = [slowest(costs, cut, alive, limit) for cut in cuts]
    possible = [seconds for seconds in every if seconds is not None]
    if not possible:
        with pytest.raises(ArgumentError, match="memory"):
            balanced(costs, stages, alive, limit)
        return
    found = balanced(costs, stages, alive, limit)
    assert found == sorted(found)
    cut = [found.index(k) for k in range(1, stages)]
    assert slowest(costs, cut, alive, limit) == min(possible)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ArgumentError, match="at most 2 stages"):
        balanced([Cost(1, 1, 1)] * 2, 3, [1] * 3)
