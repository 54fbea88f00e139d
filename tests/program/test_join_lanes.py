"""Kernels in lanes: one call of a program, done side by side, to the bits of the layers."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest

from singanet.device import Device
from singanet.models import build
from singanet.ops import numpy_ops
from singanet.ops.numpy import linear
from singanet.optimizer import SGD
from tests.program.twins import Twins


@pytest.fixture
def several(monkeypatch):
    """Three lanes, however little work there is."""
    monkeypatch.setattr(linear, "LEAST", 1)
    monkeypatch.setattr(linear, "default_threads", lambda: 3)


def batch(shape, samples, rng):
    x = rng.standard_normal((samples, *shape)).astype(np.float32)
    return x, rng.integers(0, 10, samples)


def by_numpy(model, shape=(1, 28, 28)):
    """A net whose kernels are NumPy's: oneDNN has threads of its own."""
    net = build(model, shape, 10, seed=0)
    net.device = Device("cpu", numpy_ops)
    return net


def lanes_of(net):
    """The kernels in lanes of the program used last, and what it consists of."""
    report = net.programs.reports()[-1]
    return [kernel for kernel in report.kernels if kernel.name == "lanes"], report


@pytest.mark.parametrize("recompute", ["none", "cheap"])
@pytest.mark.parametrize(
    "model",
    ["lenet", *(pytest.param(m, marks=pytest.mark.slow) for m in ("resnet20", "mobilenet"))],
)
def test_replays_have_the_bits_of_the_layers(several, model, recompute, rng):
    shape = (1, 28, 28) if model == "lenet" else (3, 32, 32)
    twins = Twins(lambda: by_numpy(model, shape), lambda: SGD(lr=0.01, momentum=0.9))
    twins.nets[0].programs.recompute = recompute
    for samples in (5, 5, 5, 2, 2):
        twins.step(*batch(shape, samples, rng))
    for _ in range(3):
        twins.forward(False, batch(shape, 5, rng)[0])
    assert len(lanes_of(twins.nets[0])[0]) >= 2


def test_lanes_run_in_threads_of_their_own(several, monkeypatch, rng):
    from singanet.program import join_lanes as joined

    seen = []

    def watched(parts):
        seen.append(len(parts))
        meet = threading.Barrier(len(parts))
        # Each lane waits for the others: it passes only if they are under way together.
        side_by_side([[lambda: meet.wait(timeout=30), *part] for part in parts])

    side_by_side = joined.side_by_side
    monkeypatch.setattr(joined, "side_by_side", watched)
    net, rule = by_numpy("lenet"), SGD(lr=0.01)
    x, y = batch((1, 28, 28), 6, rng)
    for _ in range(3):
        net.step(x, y, rule)
    assert len(seen) >= 4
    assert set(seen) == {3}


@pytest.mark.parametrize("threads", [1, 2])
def test_two_threads_have_lanes_and_one_has_none(several, monkeypatch, threads, rng):
    monkeypatch.setattr(linear, "default_threads", lambda: threads)
    net = by_numpy("lenet")
    x, _ = batch((1, 28, 28), 6, rng)
    for _ in range(2):
        net.forward(False, x)
    assert bool(lanes_of(net)[0]) == (threads == 2)


@pytest.mark.parametrize("state", ["ignore", "raise"])
def test_the_callers_error_state_holds_in_every_lane(several, state, rng):
    net = by_numpy("lenet")
    x, _ = batch((1, 28, 28), 6, rng)
    net.forward(False, x)
    net.forward(False, x)
    assert lanes_of(net)[0]
    # Overflows in the last lane alone.
    x[4:] = np.finfo(np.float32).max
    with np.errstate(all=state):
        if state == "ignore":
            net.forward(False, x)
        else:
            with pytest.raises(FloatingPointError):
                net.forward(False, x)


def test_lanes_have_memory_of_their_own(several, rng):
    net, rule = by_numpy("lenet"), SGD(lr=0.01)
    for _ in range(2):
        net.step(*batch((1, 28, 28), 6, rng), rule)
    joined, report = lanes_of(net)
    assert joined
    for kernel in joined:
        places = sorted(
            (report.layout.offsets[buffer], report.buffers[buffer].nbytes)
            for buffer in kernel.writes
            if report.buffers[buffer].planned
        )
        for (first, size), (second, _) in pairwise(places):
            assert first + size <= second


def test_a_step_in_lanes_is_no_more_work(monkeypatch):
    """Each call of a lane goes over its own part of the memory alone."""
    sizes = []
    monkeypatch.setattr(linear, "LEAST", 1)
    for threads in (1, 3):
        monkeypatch.setattr(linear, "default_threads", lambda n=threads: n)
        plan = by_numpy("lenet").plan(64, SGD(lr=0.1), "1GB", allow=())
        sizes.append(plan.chosen.step.work)
    assert sizes[1] < 2 * sizes[0]
