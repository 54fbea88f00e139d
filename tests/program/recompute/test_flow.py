"""What kernels make and need: gaps, makers, what happens in place, and what may run twice."""

from __future__ import annotations

from singanet.program.ir import Buffer, Kernel
from singanet.program.recompute.flow import Flow

W, X, A, B, C, D = range(6)
BUFFERS = [Buffer(640, "parameter"), *(Buffer(100) for _ in range(5))]
KERNELS = [
    Kernel("feed", (), (X,), barrier=True),
    Kernel("conv", (X, W), (A,)),
    Kernel("fill", (), (B,)),
    Kernel("half", (A, B), (B,)),
    Kernel("relu", (B,), (C,), in_place=((B, C),)),
    Kernel("loss", (C,), (D,), phase="loss"),
    Kernel("relu back", (C, D), (D,), phase="backward"),
    Kernel("conv back", (D, X, A), (D,), phase="backward"),
    Kernel("sgd", (W, D), (W,), phase="update"),
]
PASSES = [1, 9, 1, 1, 1, 1, 1, 9, 1]


def flow(kernels=KERNELS, buffers=BUFFERS):
    return Flow(kernels, buffers, PASSES[: len(kernels)], [10] * len(kernels))


def test_gaps_are_the_longest_waits_for_the_backward_pass():
    found = flow()
    assert found.gap(A) == (2 * 3 + 1, 2 * 7)
    assert found.gap(X) == (2 * 1 + 1, 2 * 7)
    assert found.gap(C) == (2 * 5 + 1, 2 * 6)
    # Used up in the forward pass, or outside of the arena.
    assert found.gap(B) is None
    assert found.gap(W) is None


def test_a_result_in_place_ends_its_operand():
    found = flow()
    assert found.end(B, 4) == 2 * 4
    assert found.end(A, 3) == 2 * 3 + 1
    other = [*BUFFERS[:C], Buffer(300), BUFFERS[D]]
    assert flow(buffers=other).end(B, 4) == 2 * 4 + 1


def test_of_two_operands_one_is_taken():
    kernels = [
        Kernel("a", (), (A,)),
        Kernel("b", (), (B,)),
        Kernel("add", (A, B), (C,), in_place=((A, C), (B, C))),
    ]
    found = flow(kernels)
    assert [found.end(A, 2), found.end(B, 2)] == [2 * 2, 2 * 2 + 1]


def test_makers_are_those_since_all_was_overwritten():
    found = flow()
    assert found.makers(B, 4) == [2, 3]
    assert found.makers(B, 3) == [2]
    assert found.makers(B, 2) == []
    kernels = [*KERNELS[:4], Kernel("again", (A,), (B,)), *KERNELS[4:]]
    assert Flow(kernels, BUFFERS, [1] * 10, [1] * 10).makers(B, 6) == [4]


def test_changes_between_kernels_leave_both_out():
    found = flow()
    assert found.changed(B, 2, 4)
    assert not found.changed(B, 3, 9)
    assert not found.changed(B, 1, 2)


def test_what_feeds_or_updates_happens_once():
    found = flow()
    assert [name.name for name, may in zip(KERNELS, found.repeatable, strict=True) if not may] == [
        "feed",
        "sgd",
    ]
    assert not found.makes_again(X, 7, 99)
    assert found.makes_again(A, 7, 9)
    assert not found.makes_again(A, 7, 8)
    assert found.cost(1) == 90


def test_what_pythons_steps_have_seen_on_both_ways_has_no_gap():
    kernels = [
        Kernel("make", (), (A,)),
        Kernel("python step", (A,), (B,), barrier=True),
        Kernel("copy", (B,), (C,)),
        Kernel("other", (C,), (D,), phase="backward"),
        Kernel("python step", (A, D), (X,), phase="backward", barrier=True),
    ]
    assert flow(kernels).gap(A) is None
    plain = [*kernels[:4], Kernel("kernel", (A, D), (X,), phase="backward")]
    assert flow(plain).gap(A) == (3, 8)
