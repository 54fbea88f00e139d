"""Layouts: nothing needed at one time overlaps, whatever the strategy, and little is wasted."""

import random
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.engine.timeline import Lifetimes
from singanet.errors import ArgumentError
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import (
    ALIGNMENT,
    STRATEGIES,
    dependency_order,
    edges,
    lifetimes,
    merge_in_place,
    place_few,
    place_many,
    plan_arena,
    pressure,
    smallest,
)
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


def counted(kernels, buffers):
    """The bytes needed before the first kernel, at each, and after the last: none in place."""
    spans = needed(kernels, buffers)
    return [
        [b for b, span in zip(buffers, spans, strict=True) if span and span[0] <= at <= span[1]]
        for at in range(-1, len(kernels) + 1)
    ]


@given(st.integers(0, 1 << 30), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_random_programs_are_laid_out_rightly(seed, count):
    kernels, buffers = at_random(count, seed)
    layout = plan_arena(kernels, buffers)
    check(kernels, buffers, layout)
    apart = [Kernel(k.name, k.reads, k.writes) for k in kernels]
    plain = plan_arena(apart, buffers)
    check(kernels, buffers, plain)
    there = counted(kernels, buffers)
    assert plain.lower_bound == max(sum(rounded(b.nbytes) for b in each) for each in there)
    assert layout.lower_bound <= plain.lower_bound
    lives = lifetimes(kernels, buffers).live(len(kernels) + 2, -1)
    assert lives.tolist() == [sum(rounded(b.nbytes) for b in each) for each in there]


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (chain, 1.01), (lambda: chain(60, 3), 1.01), (residual, 1.005),
        (lambda: residual((1, 2, 1), 16, 64, 2), 1.01),
        *((lambda seed=seed: at_random(400, seed), 1.1) for seed in range(3)),
    ],
)  # fmt: skip
def test_programs_are_laid_out_close_to_the_bound(make, most):
    kernels, buffers = make()
    layout = plan_arena(kernels, buffers)
    if len(kernels) < 400:
        check(kernels, buffers, layout)
        assert layout.in_place
    assert layout.nbytes <= most * layout.lower_bound
    assert most > 1.05 or layout.unplanned_bytes > 2 * layout.nbytes


INPUT, TEMPORARY = Buffer(64, "input"), Buffer(64)


@pytest.mark.parametrize(
    ("kernels", "buffers", "offsets", "nbytes"),
    [
        # Parameters stay outside.
        ([Kernel("sgd", (0, 1), (0,))], [Buffer(64, "parameter"), Buffer(64, "constant")],
         (None, None), 0),
        ([Kernel("k", (0,), (1,))], [Buffer(0, "input"), Buffer(0)], (0, 0), 0),
        ([], [], (), 0),
        # Inputs are all filled before the first kernel.
        ([Kernel("a", (0,), (2,)), Kernel("b", (1, 2), (3,))],
         [INPUT, INPUT, TEMPORARY, Buffer(64, "output")], None, 192),
        # One that nobody reads, too; an unused buffer never.
        ([Kernel("k", (), (1,))], [INPUT, TEMPORARY], None, 64),
        ([Kernel("k", (0,), (1,))], [INPUT, TEMPORARY, Buffer(640)], None, 128),
    ],
)  # fmt: skip
def test_small_programs(kernels, buffers, offsets, nbytes):
    layout = plan_arena(kernels, buffers)
    assert layout.offsets == offsets or offsets is None
    assert layout.nbytes == nbytes
    check(kernels, buffers, layout)


def intervals_of(triples):
    return Lifetimes(*(np.array(part, np.int64) for part in zip(*triples, strict=True)))


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


@given(TRIPLES)
@settings(max_examples=100, deadline=None)
def test_no_strategy_lets_anything_overlap(triples):
    intervals = intervals_of(triples)
    for strategy in STRATEGIES.values():
        offsets = strategy(intervals)
        assert offsets.min() >= 0
        assert (offsets % 64 == 0).all()
        assert not overlaps(intervals, offsets)
    if len(triples) < 6:
        optimum = least_of_all(intervals)
        assert optimum <= smallest(intervals, 0, STRATEGIES)[1] <= 1.35 * optimum
    # The pressure is the most needed during a lifetime.
    load = [sum(t[2] for t in triples if t[0] <= at <= t[1]) for at in range(-1, 20)]
    expected = [max(load[first + 1 : last + 2]) for first, last, _ in triples]
    assert pressure(intervals).tolist() == expected


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


def test_most_tiny_cases_are_solved_to_the_optimum():
    draw = np.random.default_rng(0)
    exact = 0
    for _ in range(40):
        first = draw.integers(0, 6, 6)
        last, size = first + draw.integers(0, 4, 6), 64 * draw.integers(1, 9, 6)
        intervals = Lifetimes(first, last, size)
        exact += smallest(intervals, 0, STRATEGIES)[1] == least_of_all(intervals)
    assert exact >= 38


def test_other_strategies_can_be_tried():
    kernels, buffers = chain()
    apart = {"apart": lambda intervals: np.cumsum(intervals.size) - intervals.size}
    layout = plan_arena([Kernel(k.name, k.reads, k.writes) for k in kernels], buffers, apart)
    assert layout.strategy == "apart"
    assert layout.nbytes == layout.unplanned_bytes


# -- Offsets found buffer by buffer: the lowest gap among what is needed at the same time -----


LIVES = st.lists(
    st.tuples(st.integers(-1, 12), st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=30
)


def lowest(intervals, order):
    """By the definition: the first byte from which none is another's at the same time."""
    offsets = {}
    for which in order:
        taken = {
            byte
            for other, at in offsets.items()
            if intervals.first[other] <= intervals.last[which]
            and intervals.first[which] <= intervals.last[other]
            for byte in range(at, at + intervals.size[other])
        }
        size = intervals.size[which]
        offset = 0
        while not taken.isdisjoint(range(offset, offset + size)):
            offset += 1
        offsets[which] = offset
    return [offsets[which] for which in range(len(order))]


@given(LIVES, st.randoms(use_true_random=False))
def test_few_and_many_go_to_the_lowest_gap(lives, random):
    first, spans, sizes = (np.array(part, np.int64) for part in zip(*lives, strict=True))
    intervals = Lifetimes(first, first + spans, sizes)
    order = list(range(len(lives)))
    random.shuffle(order)
    wanted = lowest(intervals, order)
    assert place_few(intervals, np.array(order)).tolist() == wanted
    assert place_many(intervals, np.array(order)).tolist() == wanted


# -- results in place -----------------------------------------------------------------------


def in_place(kernels, buffers):
    return merge_in_place(kernels, buffers, lifetimes(kernels, buffers))[1]


def relu(later=(), before=(), **changes):
    """A kernel that may work in place, between two others."""
    x = Buffer(**({"nbytes": 64, "kind": "temporary"} | changes))
    buffers = [Buffer(4, "input"), x, Buffer(64), Buffer(64, "output")]
    start = Kernel("start", (0,), (1,) if x.kind in ("temporary", "output") else ())
    middle = Kernel("relu", (1,), (2,), in_place=((1, 2),))
    return [*before, start, middle, Kernel("end", (2,), (3,)), *later], buffers


def test_a_dying_temporary_gives_its_memory():
    layout = plan_arena(*relu())
    assert in_place(*relu()) == [(1, 2)]
    assert layout.offsets[1] == layout.offsets[2]
    assert layout.nbytes == layout.lower_bound == 128


@pytest.mark.parametrize(
    "case",
    [
        *({"nbytes": 60}, {"kind": "input"}, {"kind": "parameter"}, {"kind": "output"}),
        # Read later; an output that had another value before.
        {"later": [Kernel("again", (1,), (3,))]},
        {"before": [Kernel("before", (0,), (2,))]},
    ],
)
def test_others_give_none(case):
    assert in_place(*relu(**case)) == []


def test_one_memory_goes_to_one_output_and_an_output_takes_one():
    start, pairs = Kernel("start", (), (0, 1)), ((0, 2), (0, 3), (1, 2), (1, 3))
    kernels = [start, Kernel("two", (0, 1), (2, 3), in_place=pairs)]
    assert in_place(kernels, [Buffer(64)] * 4) == [(0, 2), (1, 3)]
    # An unread output in place gives nothing on.
    two = Kernel("two", (0,), (1, 2), in_place=((0, 1), (1, 2)))
    assert in_place([Kernel("start", (), (0,)), two], [Buffer(64)] * 3) == [(0, 1)]


def test_in_place_goes_on_through_a_chain():
    buffers = [Buffer(640, "input"), *[Buffer(640)] * 5, Buffer(640, "output")]
    kernels = [Kernel("copy", (0,), (1,))]
    kernels += [Kernel("relu", (k,), (k + 1,), in_place=((k, k + 1),)) for k in range(1, 6)]
    layout = plan_arena(kernels, buffers)
    assert len(set(layout.offsets[1:])) == 1
    assert layout.nbytes == 1280


# -- lifetimes and the bytes they add up to -------------------------------------------------

X, W, A, B, Y = range(5)
BUFFERS = [
    Buffer(10, "input", "x"), Buffer(100, "parameter", "w"), Buffer(20, label="a"),
    Buffer(30, label="b"), Buffer(40, "output", "y"),
]  # fmt: skip
KERNELS = [
    Kernel("first", (X, W), (A,)), Kernel("second", (A,), (B, Y)), Kernel("third", (A, W), (W,)),
]  # fmt: skip


def test_lives_go_from_the_first_write_to_the_last_use():
    lives = lifetimes(KERNELS, BUFFERS)
    assert lives.first.tolist() == [-1, 0, 0, 1, 1]
    assert lives.last.tolist() == [0, 2, 2, 1, 3]
    assert lives.size.tolist() == [64, 0, 64, 64, 64]
    assert lives.live(5, -1).tolist() == [64, 128, 192, 128, 64]


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        *(
            (Kernel("k", (0,), (number,)), "temporary", "'k': expected numbers of buffers from 0")
            for number in (-1, 3)
        ),
        *(
            (Kernel("bad", (2, 0), (2,)), kind, rf"kernel 0 'bad'.*buffer 2 'sum'.*{kind}")
            for kind in ("temporary", "output")
        ),
    ],
)
def test_wrong_numbers_and_unwritten_buffers_are_refused(kernel, kind, words):
    buffers = [Buffer(8, "input"), Buffer(8), Buffer(8, kind, "sum")]
    for lives in (lifetimes, plan_arena):
        with pytest.raises(ArgumentError, match=words):
            lives([kernel], buffers)


# -- edges and orders: SINGA's scheduler cases, and the promises of any order ---------------


def recorded(lines):
    """Kernels and buffer numbers of lines such as ``"in b1 > mid"``: reads > writes."""
    numbers, kernels = {}, []
    for line in lines:
        sides = [side.split() for side in line.split(">")]
        for name in (*sides[0], *sides[1]):
            numbers.setdefault(name, len(numbers))
        kernels.append(Kernel("op", *(tuple(numbers[n] for n in side) for side in sides)))
    return kernels, numbers


# The cases of SINGA's test_scheduler.cc: (in + b1) in + b2, and (in + b1) in + (in + b2), with
# their gradients. The fifth call of the first one names one of its three inputs alone.
FIRST = [
    "in b1 > mid", "mid in > out", "out b2 > out", "out > dy1 db2", "dy1 > dy2 dx1",
    "dy2 > dx2 db1", "dx1 dx2 > dx",
]  # fmt: skip
SECOND = [
    "in b1 > mid1", "mid1 in > out", "in b2 > mid2", "out mid2 > out", "out > dy1 dy2",
    "in mid1 dy1 > dy3 dx1", "dy3 > dx2 db1", "dy2 > dx3 db2", "dx1 dx2 > dx", "dx dx3 > dx",
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "nodes", "links", "blocks", "ends"),
    [
        (FIRST, 7, 14, 12, {"db2", "db1", "dx"}),
        (SECOND, 10, 21, 15, {"db2", "db1", "dx"}),
        (["in > out"], 1, 2, 2, {"out"}),
        (["in > out", ">"], 2, 3, 2, {"out"}),
        (["in > in"], 1, 2, 1, {"in"}),
        (["in > in", "in out > out"], 2, 4, 2, {"out"}),
        (["in > mid out", "mid >", "out > out"], 3, 4, 3, {"out"}),
        (["in > out1", "> out2"], 2, 3, 3, {"out1", "out2"}),
        # A buffer named twice by a call counts once.
        (["in in > out"], 1, 2, 2, {"out"}),
        ([], 0, 0, 0, set()),
    ],
)
def test_counts_are_those_of_singa(case, nodes, links, blocks, ends):
    kernels, numbers = recorded(case)
    assert (len(kernels), len(edges(kernels)), len(numbers)) == (nodes, links, blocks)
    leaves = {edge.buffer for edge in edges(kernels) if edge.target is None}
    assert leaves == {numbers[name] for name in ends}


def test_writes_wait():
    # SINGA counts five edges here, and none from the second call to the third for "mid".
    kernels, numbers = recorded(["in > in", "in mid > out", "out > mid"])
    found = edges(kernels)
    assert len(found) == 6
    waits = [(e.source, e.target, e.kind) for e in found if e.buffer == numbers["mid"]]
    assert (1, 2, "overwrite after read") in waits
    kernels, numbers = recorded(["> a", "> a", "a > b"])
    found = [(e.source, e.target, e.kind) for e in edges(kernels) if e.buffer == numbers["a"]]
    assert found == [(0, 1, "overwrite after write"), (1, 2, "read")]


def test_a_call_without_buffers_owns_the_leaves():
    kernels, numbers = recorded(["in > a b", "a > c", ">", "b > d"])
    sync = [(e.buffer, e.source, e.target) for e in edges(kernels) if 2 in (e.source, e.target)]
    b, c = numbers["b"], numbers["c"]
    assert set(sync) == {(b, 0, 2), (c, 1, 2), (b, 2, 3), (c, 2, None)}


def as_recorded(kernels):
    return list(range(len(kernels)))


def test_the_second_case_begins_at_0_and_2_and_runs_breadth_first():
    kernels, _ = recorded(SECOND)
    waiting = {edge.target for edge in edges(kernels) if edge.source is not None}
    assert [k for k in range(len(kernels)) if k not in waiting] == [0, 2]
    # Step by step after the test of SINGA: 0 frees 1, 3 follows 1 and 2, 4 frees 5 and 7, ...
    assert dependency_order(kernels) == [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]
    assert dependency_order([]) == []
    assert lifetimes([], [Buffer(4)]).first.tolist() == [0]


@pytest.mark.parametrize("order_of", [as_recorded, dependency_order])
def test_only_in_and_the_biases_stay_in_the_second_case(order_of):
    kernels, numbers = recorded(SECOND)
    names, kept = list(numbers), ("in", "b1", "b2")
    buffers = [Buffer(4, "parameter" if name in kept else "temporary") for name in names]
    order = order_of(kernels)
    lives = lifetimes([kernels[k] for k in order], buffers)
    by_kernel = {
        k: {name for name, last in zip(names, lives.last, strict=True) if last == at} - {*kept}
        for at, k in enumerate(order)
    }
    assert [" ".join(sorted(by_kernel[k])) for k in range(10)] == [
        "", "", "", "mid2", "out", "dy1 mid1", "db1 dy3", "db2 dy2", "dx1 dx2", "dx dx3",
    ]  # fmt: skip
    assert set(names) - set().union(*by_kernel.values()) == set(kept)


@pytest.mark.parametrize("order_of", [as_recorded, dependency_order])
def test_the_first_case_computes_what_singa_does(order_of):
    kernels, numbers = recorded(FIRST)
    value = dict.fromkeys(numbers, 0.0) | {"b1": -1.0, "b2": 2.0}
    steps = [
        lambda v: v.update(mid=v["in"] + v["b1"]),
        lambda v: v.update(out=v["mid"] * v["in"]),
        lambda v: v.update(out=v["out"] + v["b2"]),
        lambda v: v.update(dy1=v["out"], db2=v["out"]),
        lambda v: v.update(dy2=v["dy1"] * v["in"], dx1=v["dy1"] * v["mid"]),
        lambda v: v.update(dx2=v["dy2"], db1=v["dy2"]),
        lambda v: v.update(dx=v["dx1"] + v["dx2"]),
    ]
    for k in order_of(kernels):
        steps[k](value)
    assert (value["dx"], value["db1"], value["db2"]) == (-2.0, 0.0, 2.0)


def run(kernels, count, order):
    """Each kernel mixes its reads into its writes, as numbers nobody meets twice."""
    memory = [f"start {k}" for k in range(count)]
    for k in order:
        seen = tuple(memory[n] for n in kernels[k].reads)
        for n in kernels[k].writes:
            memory[n] = hash((k, n, seen))
    return memory


def random_kernels(seed, count=30, buffers=8):
    draw = random.Random(seed)
    kernels = []
    for k in range(count):
        reads = draw.sample(range(buffers), draw.randint(0, 3))
        writes = draw.sample(range(buffers), draw.randint(0, 2))
        kernels.append(Kernel(f"k{k}", tuple(reads), tuple(writes), barrier=draw.random() < 0.1))
    return kernels


@given(st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_the_dependency_order_computes_the_same_and_keeps_barriers(seed):
    kernels = random_kernels(seed)
    order = dependency_order(kernels)
    assert sorted(order) == list(range(len(kernels)))
    assert run(kernels, 8, order) == run(kernels, 8, range(len(kernels)))
    for at, k in enumerate(order):
        if kernels[k].barrier or not (kernels[k].reads or kernels[k].writes):
            assert at == k
            assert set(order[:at]) == set(range(k))


@given(st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_every_pair_that_meets_in_a_buffer_is_tied_by_edges(seed):
    kernels = random_kernels(seed, count=15)
    after = {k: set() for k in range(len(kernels))}
    for edge in reversed(edges(kernels)):
        if edge.source is not None and edge.target is not None:
            assert edge.source < edge.target
            after[edge.source].add(edge.target)
    for k in reversed(range(len(kernels))):
        after[k] |= set().union(*(after[n] for n in after[k]))
    for a in range(len(kernels)):
        for b in range(a + 1, len(kernels)):
            wrote = set(kernels[a].writes) & {*kernels[b].reads, *kernels[b].writes}
            if wrote or set(kernels[a].reads) & set(kernels[b].writes):
                assert b in after[a], (kernels[a], kernels[b])
