"""Which outputs take the memory of an input, and which may not."""

from __future__ import annotations

import pytest

from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import lifetimes, merge_in_place, plan_arena


def in_place(kernels, buffers):
    return merge_in_place(kernels, buffers, lifetimes(kernels, buffers))[1]


def relu(**changes):
    x = Buffer(**({"nbytes": 64, "kind": "temporary"} | changes))
    buffers = [Buffer(4, "input"), x, Buffer(64), Buffer(64, "output")]
    start = Kernel("start", (0,), (1,) if x.kind in ("temporary", "output") else ())
    kernels = [start, Kernel("relu", (1,), (2,), in_place=((1, 2),)), Kernel("end", (2,), (3,))]
    return kernels, buffers


def test_a_dying_temporary_gives_its_memory():
    kernels, buffers = relu()
    assert in_place(kernels, buffers) == [(1, 2)]
    layout = plan_arena(kernels, buffers)
    assert layout.offsets[1] == layout.offsets[2]
    assert layout.nbytes == layout.lower_bound == 128


@pytest.mark.parametrize(
    "changes",
    [{"nbytes": 60}, {"kind": "input"}, {"kind": "parameter"}, {"kind": "output"}],
)
def test_other_sizes_and_kinds_do_not(changes):
    assert in_place(*relu(**changes)) == []


def test_what_is_read_later_is_not_given():
    kernels, buffers = relu()
    kernels.append(Kernel("again", (1,), (3,)))
    assert in_place(kernels, buffers) == []


def test_what_held_something_before_takes_no_other_memory():
    kernels, buffers = relu()
    kernels.insert(0, Kernel("before", (0,), (2,)))
    assert in_place(kernels, buffers) == []


def test_one_memory_goes_to_one_output_and_an_output_takes_one():
    buffers = [Buffer(64) for _ in range(4)]
    start = Kernel("start", (), (0, 1))
    pairs = ((0, 2), (0, 3), (1, 2), (1, 3))
    kernels = [start, Kernel("two", (0, 1), (2, 3), in_place=pairs)]
    assert in_place(kernels, buffers) == [(0, 2), (1, 3)]


def test_an_unread_output_in_place_gives_nothing_on():
    buffers = [Buffer(64) for _ in range(3)]
    kernels = [
        Kernel("start", (), (0,)),
        Kernel("two", (0,), (1, 2), in_place=((0, 1), (1, 2))),
    ]
    assert in_place(kernels, buffers) == [(0, 1)]


def test_in_place_goes_on_through_a_chain():
    buffers = [Buffer(640, "input")] + [Buffer(640) for _ in range(5)] + [Buffer(640, "output")]
    kernels = [Kernel("copy", (0,), (1,))]
    kernels += [Kernel("relu", (k,), (k + 1,), in_place=((k, k + 1),)) for k in range(1, 6)]
    layout = plan_arena(kernels, buffers)
    assert len(set(layout.offsets[1:])) == 1
    assert layout.nbytes == 1280
