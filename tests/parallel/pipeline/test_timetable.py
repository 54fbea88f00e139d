import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError, UnknownNameError
from singanet.parallel import schedule
from singanet.parallel.pipeline.timetable import Op, alive
from tests.doubles.timetable import simulate

STAGES, MICRO = st.integers(1, 6), st.integers(1, 12)
NAMES = st.sampled_from(["gpipe", "1f1b"])
TIMES = st.integers(1, 9)


def seconds(spans):
    return max(each[-1].end for each in spans)


@settings(max_examples=30, deadline=None)
@given(NAMES, STAGES, MICRO)
def test_every_stage_takes_each_micro_batch_forward_before_it_goes_back(name, stages, micro):
    for ops in schedule(name, stages, micro):
        for kind in ("forward", "backward"):
            assert [op.micro_batch for op in ops if op.kind == kind] == list(range(micro))
        places = {op: at for at, op in enumerate(ops)}
        assert all(
            places["forward", i] < places["backward", i] for i in range(micro)
        )  # Op is a tuple


@settings(max_examples=30, deadline=None)
@given(NAMES, STAGES, MICRO, TIMES, TIMES)
def test_bubble_of_equal_stages(name, p, m, forward, backward):
    # Huang et al. 2019: p - 1 of the m + p - 1 turns are idle.
    assert seconds(simulate(name, p, m, forward, backward)) == (m + p - 1) * (forward + backward)


@settings(max_examples=30, deadline=None)
@given(STAGES, MICRO)
def test_contexts_alive(p, m):
    assert [alive(ops) for ops in schedule("gpipe", p, m)] == [m] * p
    assert [alive(ops) for ops in schedule("1f1b", p, m)] == [min(p - k, m) for k in range(p)]


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


def test_gpipe_of_one_micro_batch_is_one_after_the_other():
    made = simulate("gpipe", 3, 1, [1, 2, 3], [4, 5, 6], message=0.5)
    assert seconds(made) == 1 + 2 + 3 + 4 + 5 + 6 + 4 * 0.5


def test_wrong_arguments():
    with pytest.raises(UnknownNameError, match="1f1b"):
        schedule("2f2b", 2, 2)
    with pytest.raises(ArgumentError, match="stages"):
        schedule("gpipe", 0, 2)
