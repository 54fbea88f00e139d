"""Which stage has which layers, and when it takes which micro-batch."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError, UnknownNameError
from singanet.parallel import schedule
from singanet.parallel.pipeline.partition import Cost, balanced
from singanet.parallel.pipeline.timetable import Op, alive
from tests.doubles.timetable import simulate

STAGES, MICRO, TIMES = st.integers(1, 6), st.integers(1, 12), st.integers(1, 9)
NAMES = st.sampled_from(["gpipe", "1f1b"])
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


def seconds(spans):
    return max(each[-1].end for each in spans)


@settings(max_examples=30, deadline=None)
@given(NAMES, STAGES, MICRO, TIMES, TIMES)
def test_each_micro_batch_goes_forward_before_it_goes_back(name, p, m, forward, backward):
    made = schedule(name, p, m)
    for ops in made:
        for kind in ("forward", "backward"):
            assert [op.micro_batch for op in ops if op.kind == kind] == list(range(m))
        places = {op: at for at, op in enumerate(ops)}  # Op is a tuple
        assert all(places["forward", i] < places["backward", i] for i in range(m))
    # Huang et al. 2019: p - 1 of the m + p - 1 turns are idle.
    assert seconds(simulate(name, p, m, forward, backward)) == (m + p - 1) * (forward + backward)
    bounds = [m if name == "gpipe" else min(p - k, m) for k in range(p)]
    assert [alive(ops) for ops in made] == bounds


def test_contexts_alive_at_the_end_of_a_schedule_count_as_those_at_its_beginning():
    f, b = ([Op(kind, k) for k in range(4)] for kind in ("forward", "backward"))
    assert alive([f[0], b[0], f[1], b[1], f[2], f[3], b[2], b[3]]) == 2
    assert alive([f[0], f[1], b[0], b[1], f[2], b[2], f[3], b[3]]) == 2


@settings(max_examples=30, deadline=None)
@given(NAMES, MICRO, st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(0, 3))
def test_stages_of_other_times_keep_their_order_and_what_they_wait_for(name, m, times, wire):
    forward, backward = (list(each) for each in zip(*times, strict=True))
    made = simulate(name, len(times), m, forward, backward, message=wire)
    ends = {(k, s.op): s.end for k, spans in enumerate(made) for s in spans}
    for k, spans in enumerate(made):
        now = 0.0
        for op, start, end in spans:
            assert start >= now
            now = end
            source = k - 1 if op.kind == "forward" else k + 1
            if 0 <= source < len(times):
                assert start >= ends[source, op] + wire
    # The longest chain of a single micro-batch, and of all on one stage, bound it from below.
    alone = sum(forward) + sum(backward) + 2 * wire * (len(times) - 1)
    assert seconds(made) >= max(alone, *(m * (f + b) for f, b in times))
    if m == 1:
        assert seconds(made) == alone


def test_wrong_arguments():
    with pytest.raises(UnknownNameError, match="1f1b"):
        schedule("2f2b", 2, 2)
    with pytest.raises(ArgumentError, match="stages"):
        schedule("gpipe", 0, 2)
    with pytest.raises(ArgumentError, match="at most 2 stages"):
        balanced([Cost(1, 1, 1)] * 2, 3, [1] * 3)
