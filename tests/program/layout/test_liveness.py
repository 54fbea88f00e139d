"""Lifetimes and the bytes they add up to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import lifetimes, live_bytes, releases
from tests.program.steps import at_random

X, W, A, B, Y = range(5)
BUFFERS = [
    Buffer(10, "input", "x"),
    Buffer(100, "parameter", "w"),
    Buffer(20, label="a"),
    Buffer(30, label="b"),
    Buffer(40, "output", "y"),
]
KERNELS = [
    Kernel("first", (X, W), (A,)),
    Kernel("second", (A,), (B, Y)),
    Kernel("third", (A, W), (W,)),
]


def test_first_write_to_last_use():
    lives = lifetimes(KERNELS, BUFFERS)
    assert lives.first.tolist() == [-1, 0, 0, 1, 1]
    assert lives.last.tolist() == [0, 2, 2, 1, 3]
    assert lives.kernels == 3


def test_bytes_at_each_kernel():
    sizes = [buffer.nbytes if buffer.planned else 0 for buffer in BUFFERS]
    assert live_bytes(lifetimes(KERNELS, BUFFERS), sizes).tolist() == [10, 30, 90, 60, 40]


def test_what_is_given_back():
    assert releases(KERNELS, BUFFERS) == [[X], [B], [A]]


def test_an_input_that_nobody_reads_is_there_before_the_first_kernel_alone():
    lives = lifetimes([Kernel("k", (), (1,))], [Buffer(8, "input"), Buffer(8)])
    assert live_bytes(lives, [8, 16]).tolist() == [8, 16, 0]


def test_a_buffer_that_nobody_uses_is_never_needed():
    lives = lifetimes([Kernel("k", (0,), (1,))], [Buffer(8, "input"), Buffer(8), Buffer(64)])
    assert live_bytes(lives, [8, 8, 64]).tolist() == [8, 16, 0]


@given(st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_live_bytes_agree_with_counting(seed):
    kernels, buffers = at_random(25, seed)
    sizes = [buffer.nbytes for buffer in buffers]
    counted = []
    for at in range(-1, len(kernels) + 1):
        total = 0
        for number, buffer in enumerate(buffers):
            uses = [k for k, one in enumerate(kernels) if number in one.reads + one.writes]
            begin = -1 if buffer.kind == "input" else min(uses)
            end = len(kernels) if buffer.kind == "output" else max(uses, default=-1)
            total += buffer.nbytes if begin <= at <= end else 0
        counted.append(total)
    assert live_bytes(lifetimes(kernels, buffers), sizes).tolist() == counted


@pytest.mark.parametrize("number", [-1, 2])
def test_a_number_that_is_no_buffers_is_refused(number):
    with pytest.raises(ArgumentError, match=r"kernel 0 'k': expected numbers of buffers from 0"):
        lifetimes([Kernel("k", (0,), (number,))], [Buffer(8, "input"), Buffer(8)])


@pytest.mark.parametrize("kind", ["temporary", "output"])
def test_reading_what_nobody_wrote_is_refused(kind):
    kernels = [Kernel("ok", (0,), (1,)), Kernel("bad", (2, 1), (2,))]
    buffers = [Buffer(8, "input"), Buffer(8), Buffer(8, kind, "sum")]
    with pytest.raises(ArgumentError, match=rf"kernel 1 'bad'.*buffer 2 'sum'.*{kind}"):
        lifetimes(kernels, buffers)
