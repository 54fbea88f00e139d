"""Layouts: nothing needed at one time overlaps, whatever the strategy, and little is wasted."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import ALIGNMENT, STRATEGIES, Intervals, plan_arena, pressure, smallest
from tests.program.steps import at_random, chain, residual


def rounded(nbytes):
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def needed(kernels, buffers):
    """(first, last) of each buffer in use, counted plainly; None for the others."""
    spans = []
    for number, buffer in enumerate(buffers):
        uses = [k for k, one in enumerate(kernels) if number in one.reads + one.writes]
        if buffer.kind == "input":
            uses.append(-1)
        if buffer.kind == "output":
            uses.append(len(kernels))
        spans.append((min(uses), max(uses)) if uses and buffer.planned else None)
    return spans


def check(kernels, buffers, layout):
    spans, pairs = needed(kernels, buffers), set(layout.in_place)
    lows = layout.offsets
    for number, buffer in enumerate(buffers):
        assert (lows[number] is None) == (not buffer.planned)
        if buffer.planned:
            assert lows[number] % ALIGNMENT == 0
            assert 0 <= lows[number] <= layout.nbytes - buffer.nbytes or spans[number] is None
    # Byte ranges of two buffers needed at one kernel may meet in an in-place pair alone.
    used = [n for n in range(len(buffers)) if spans[n] and buffers[n].nbytes]
    for i, a in enumerate(used):
        for b in used[i + 1 :]:
            together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
            ends = lows[a] + buffers[a].nbytes, lows[b] + buffers[b].nbytes
            if together and lows[a] < ends[1] and lows[b] < ends[0]:
                assert (a, b) in pairs or (b, a) in pairs
    for read, written in pairs:
        kernel = next(k for k in kernels if (read, written) in k.in_place)
        at = kernels.index(kernel)
        assert buffers[read].kind == "temporary"
        assert buffers[read].nbytes == buffers[written].nbytes
        assert spans[read][1] == spans[written][0] == at
    assert layout.lower_bound <= layout.nbytes <= layout.unplanned_bytes


def bound(kernels, buffers):
    """The most needed at once without anything in place."""
    spans = needed(kernels, buffers)
    return max(
        sum(
            rounded(b.nbytes)
            for b, span in zip(buffers, spans, strict=True)
            if span and span[0] <= at <= span[1]
        )
        for at in range(-1, len(kernels) + 1)
    )


@given(st.integers(0, 1 << 30), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_random_programs_are_laid_out_rightly(seed, count):
    kernels, buffers = at_random(count, seed)
    layout = plan_arena(kernels, buffers)
    check(kernels, buffers, layout)
    apart = [Kernel(k.name, k.reads, k.writes) for k in kernels]
    plain = plan_arena(apart, buffers)
    check(kernels, buffers, plain)
    assert plain.lower_bound == bound(kernels, buffers)
    assert layout.lower_bound <= plain.lower_bound


@pytest.mark.parametrize("make", [chain, lambda: residual((1, 2, 1), 16, 64, 2)])
def test_training_steps_are_laid_out_rightly(make):
    kernels, buffers = make()
    layout = plan_arena(kernels, buffers)
    check(kernels, buffers, layout)
    assert layout.in_place


def intervals_of(triples):
    return Intervals(*(np.array(part, np.int64) for part in zip(*triples, strict=True)))


def overlaps(intervals, offsets):
    ends = offsets + intervals.size
    first, last = intervals.first, intervals.last
    times = (first[:, None] <= last) & (first <= last[:, None])
    places = (offsets[:, None] < ends) & (offsets < ends[:, None])
    return (times & places & ~np.eye(len(ends), dtype=bool)).any()


TRIPLES = st.lists(
    st.tuples(st.integers(-1, 12), st.integers(0, 6), st.integers(1, 9)).map(
        lambda t: (t[0], t[0] + t[1], 64 * t[2])
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("name", STRATEGIES)
@given(TRIPLES)
@settings(max_examples=100, deadline=None)
def test_no_strategy_lets_anything_overlap(name, triples):
    intervals = intervals_of(triples)
    offsets = STRATEGIES[name](intervals)
    assert offsets.min() >= 0
    assert (offsets % 64 == 0).all()
    assert not overlaps(intervals, offsets)


def least_of_all(intervals):
    """The smallest arena there is: some order of placing each as low as it goes reaches it."""
    best = int(intervals.size.sum()) + 1
    for order in permutations(range(len(intervals.size))):
        placed = []
        for k in order:
            start, end, size = intervals.first[k], intervals.last[k], intervals.size[k]
            near = [(low, high) for s, e, low, high in placed if s <= end and start <= e]
            low = min(
                candidate
                for candidate in [0, *(high for _, high in near)]
                if all(candidate + size <= a or b <= candidate for a, b in near)
            )
            if low + size >= best:
                break
            placed.append((start, end, low, low + size))
        else:
            best = max(high for *_, high in placed)
    return best


@given(TRIPLES.map(lambda triples: triples[:5]))
@settings(max_examples=100, deadline=None)
def test_tiny_cases_against_the_optimum(triples):
    intervals = intervals_of(triples)
    optimum = least_of_all(intervals)
    _, nbytes, _ = smallest(intervals, 0, STRATEGIES)
    assert optimum <= nbytes <= 1.35 * optimum


def test_most_tiny_cases_are_solved_to_the_optimum():
    draw = np.random.default_rng(0)
    exact = 0
    for _ in range(60):
        first = draw.integers(0, 6, 6)
        last, size = first + draw.integers(0, 4, 6), 64 * draw.integers(1, 9, 6)
        intervals = Intervals(first, last, size)
        exact += smallest(intervals, 0, STRATEGIES)[1] == least_of_all(intervals)
    assert exact >= 57


@pytest.mark.parametrize(
    ("make", "most"), [(lambda: chain(60, 3), 1.01), (residual, 1.005), (chain, 1.01)]
)
def test_nets_are_laid_out_close_to_the_bound(make, most):
    layout = plan_arena(*make())
    assert layout.nbytes <= most * layout.lower_bound
    assert layout.unplanned_bytes > 2.5 * layout.nbytes


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_stay_near_the_bound(seed):
    layout = plan_arena(*at_random(400, seed))
    assert layout.nbytes <= 1.1 * layout.lower_bound


def test_parameters_stay_outside():
    layout = plan_arena(
        [Kernel("sgd", (0, 1), (0,))], [Buffer(64, "parameter"), Buffer(64, "constant")]
    )
    assert layout.offsets == (None, None)
    assert layout.nbytes == layout.lower_bound == layout.unplanned_bytes == 0


def test_empty_buffers_and_empty_programs():
    layout = plan_arena([Kernel("k", (0,), (1,))], [Buffer(0, "input"), Buffer(0)])
    assert layout.offsets == (0, 0)
    assert layout.nbytes == 0
    assert plan_arena([], []).offsets == ()


def test_inputs_are_all_filled_before_the_first_kernel():
    kernels = [Kernel("a", (0,), (2,)), Kernel("b", (1, 2), (3,))]
    buffers = [Buffer(64, "input"), Buffer(64, "input"), Buffer(64), Buffer(64, "output")]
    layout = plan_arena(kernels, buffers)
    assert layout.nbytes == 192
    check(kernels, buffers, layout)


def test_a_program_that_reads_nothing_written_is_refused():
    with pytest.raises(ArgumentError, match="written before it is read"):
        plan_arena([Kernel("k", (0,), ())], [Buffer(4)])


@given(TRIPLES)
@settings(max_examples=100, deadline=None)
def test_pressure_is_the_most_needed_during_a_lifetime(triples):
    intervals = intervals_of(triples)
    load = {
        at: sum(size for first, last, size in triples if first <= at <= last)
        for at in range(-1, 20)
    }
    expected = [max(load[at] for at in range(first, last + 1)) for first, last, _ in triples]
    assert pressure(intervals).tolist() == expected


def test_other_strategies_can_be_tried():
    kernels, buffers = chain()
    apart = {"apart": lambda intervals: np.cumsum(intervals.size) - intervals.size}
    layout = plan_arena([Kernel(k.name, k.reads, k.writes) for k in kernels], buffers, apart)
    assert layout.strategy == "apart"
    assert layout.nbytes == layout.unplanned_bytes
