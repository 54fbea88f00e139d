"""Bytes are those of buffers, each once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.layers import Context
from singanet.ops import ops_for
from singanet.summary.buffers import HeldBuffers, buffers


def total(value):
    return sum(owner.nbytes for owner in buffers(value).values())


def test_views_are_the_buffer_they_show():
    a = np.zeros((4, 6), np.float32)
    assert total(a[1:].T.reshape(-1, 2, 3)[0]) in (96, 72)  # a copy of reshape's owns 72
    assert total([a[:1], a.T, {"x": a}]) == 96
    assert total([a, a.copy()]) == 192


def test_containers_contexts_and_data_classes_are_looked_into():
    @dataclass
    class Kept:
        left: np.ndarray
        rest: tuple

    ctx = Context(ops_for(np.zeros(1)), np.random.default_rng(0), {}, True)
    ctx.save(kept=Kept(np.zeros(2), (np.zeros(3), None, 5)), shape=(9, 9), scalar=np.float64(1))
    assert total(ctx) == 16 + 24


def test_what_several_hold_counts_once_until_the_last_lets_go():
    a, b = np.zeros(10), np.zeros(5)
    held = HeldBuffers()
    assert held.add(buffers([a, b])) == 120
    assert held.add(buffers(a[2:])) == 0
    held.drop(buffers([a, b]))
    assert held.total == 80
    held.drop(buffers(a))
    assert held.total == 0
