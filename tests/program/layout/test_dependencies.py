"""Edges and orders: SINGA's scheduler cases, and what any order must keep."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import dependency_order, edges, lifetimes, releases


def recorded(calls):
    """Kernels and buffer numbers from (reads, writes) by name, numbered as first met."""
    numbers, kernels = {}, []
    for reads, writes in calls:
        for name in (*reads, *writes):
            numbers.setdefault(name, len(numbers))
        kernels.append(
            Kernel("op", tuple(numbers[n] for n in reads), tuple(numbers[n] for n in writes))
        )
    return kernels, numbers


def words(line):
    """``"in b1 > mid"`` as two lists of names."""
    reads, writes = line.split(">")
    return reads.split(), writes.split()


# The cases of SINGA's test_scheduler.cc: (in + b1) in + b2, and (in + b1) in + (in + b2), with
# their gradients. The fifth call of the first one names one of its three inputs alone.
FIRST = [
    "in b1 > mid",
    "mid in > out",
    "out b2 > out",
    "out > dy1 db2",
    "dy1 > dy2 dx1",
    "dy2 > dx2 db1",
    "dx1 dx2 > dx",
]
SECOND = [
    "in b1 > mid1",
    "mid1 in > out",
    "in b2 > mid2",
    "out mid2 > out",
    "out > dy1 dy2",
    "in mid1 dy1 > dy3 dx1",
    "dy3 > dx2 db1",
    "dy2 > dx3 db2",
    "dx1 dx2 > dx",
    "dx dx3 > dx",
]


def leaves(kernels):
    return {edge.buffer for edge in edges(kernels) if edge.target is None}


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
    ],
)
def test_counts_are_those_of_singa(case, nodes, links, blocks, ends):
    kernels, numbers = recorded(map(words, case))
    assert len(kernels) == nodes
    assert len(edges(kernels)) == links
    assert len(numbers) == blocks
    assert leaves(kernels) == {numbers[name] for name in ends}


def test_a_write_waits_for_reads_of_what_nobody_wrote():
    # SINGA counts five edges here, and none from the second call to the third for "mid".
    kernels, numbers = recorded(map(words, ["in > in", "in mid > out", "out > mid"]))
    found = edges(kernels)
    assert len(found) == 6
    waits = [(e.source, e.target, e.kind) for e in found if e.buffer == numbers["mid"]]
    assert (1, 2, "overwrite after read") in waits


def test_an_unread_write_is_waited_for_by_the_next():
    kernels, numbers = recorded(map(words, ["> a", "> a", "a > b"]))
    found = [(e.source, e.target, e.kind) for e in edges(kernels) if e.buffer == numbers["a"]]
    assert found == [(0, 1, "overwrite after write"), (1, 2, "read")]


def test_a_call_without_buffers_owns_the_leaves():
    kernels, numbers = recorded(map(words, ["in > a b", "a > c", ">", "b > d"]))
    sync = [(e.buffer, e.source, e.target) for e in edges(kernels) if 2 in (e.source, e.target)]
    b, c = numbers["b"], numbers["c"]
    assert set(sync) == {(b, 0, 2), (c, 1, 2), (b, 2, 3), (c, 2, None)}


def as_recorded(kernels):
    return list(range(len(kernels)))


def test_the_second_case_begins_at_0_and_2_and_runs_breadth_first():
    kernels, _ = recorded(map(words, SECOND))
    waiting = {edge.target for edge in edges(kernels) if edge.source is not None}
    assert [k for k in range(len(kernels)) if k not in waiting] == [0, 2]
    # Step by step after the test of SINGA: 0 frees 1, 3 follows 1 and 2, 4 frees 5 and 7, ...
    assert dependency_order(kernels) == [0, 2, 1, 3, 4, 5, 7, 6, 8, 9]


@pytest.mark.parametrize("order_of", [as_recorded, dependency_order])
def test_only_in_and_the_biases_stay_in_the_second_case(order_of):
    kernels, numbers = recorded(map(words, SECOND))
    names = list(numbers)
    kept = ("in", "b1", "b2")
    buffers = [Buffer(4, "parameter" if name in kept else "temporary") for name in names]
    order = order_of(kernels)
    freed = releases([kernels[k] for k in order], buffers)
    by_kernel = {k: {names[n] for n in freed[at]} for at, k in enumerate(order)}
    assert by_kernel == {
        0: set(),
        1: set(),
        2: set(),
        3: {"mid2"},
        4: {"out"},
        5: {"mid1", "dy1"},
        6: {"dy3", "db1"},
        7: {"dy2", "db2"},
        8: {"dx1", "dx2"},
        9: {"dx3", "dx"},
    }
    assert set(names) - set().union(*by_kernel.values()) == set(kept)


def run(kernels, count, order):
    """Each kernel mixes what it reads into what it writes, as numbers nobody meets twice."""
    memory = [f"start {k}" for k in range(count)]
    for k in order:
        seen = tuple(memory[n] for n in kernels[k].reads)
        for n in kernels[k].writes:
            memory[n] = hash((k, n, seen))
    return memory


@pytest.mark.parametrize("order_of", [as_recorded, dependency_order])
def test_the_first_case_computes_what_singa_does(order_of):
    kernels, numbers = recorded(map(words, FIRST))
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


def test_a_buffer_named_twice_by_a_call_counts_once():
    twice = [Kernel("square", (0, 0), (1,))]
    assert len(edges(twice)) == 2


def test_no_kernels():
    assert edges([]) == []
    assert dependency_order([]) == []
    assert lifetimes([], [Buffer(4)]).first.tolist() == [0]
