"""Recorded steps and evaluations of recurrent nets on oneDNN's kernels: the layers' bits."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import GRU, RNN
from singanet.loss import SquaredError
from singanet.ops import cpu_ops
from singanet.ops.onednn import OneDnnOps, recurrent
from singanet.optimizer import SGD
from tests.program.twins import Twins


@pytest.fixture
def taken(library_path, monkeypatch):
    """Which kinds of kernel were asked for."""
    if not isinstance(cpu_ops(), OneDnnOps):
        pytest.skip("nets use other kernels here")
    kinds, forward = set(), recurrent.forward

    def watched(ops, sizes, *arguments):
        kinds.add(sizes.kind)
        return forward(ops, sizes, *arguments)

    monkeypatch.setattr(recurrent, "forward", watched)
    return kinds


def gru(**options):
    return lambda: singanet.FeedForwardNet(
        [GRU("r", 6, input_sample_shape=(21, 5), **options)], loss=SquaredError(), seed=2
    )


def elman(**options):
    return lambda: singanet.FeedForwardNet(
        [RNN("r", 6, "tanh", input_sample_shape=(21, 5), **options)], loss=SquaredError(), seed=2
    )


@pytest.mark.parametrize(("make", "kind"), [(gru, "gru"), (elman, "tanh")])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True}, {"num_stacks": 2, "dropout": 0.3}, {"return_sequences": False}],
)
def test_a_program_gives_the_same_bits(taken, make, kind, options):
    twins, rng = Twins(make(**options), lambda: SGD(lr=0.1, momentum=0.9)), np.random.default_rng(0)
    for _ in range(4):
        x = rng.standard_normal((3, 21, 5)).astype(np.float32)
        out = twins.recorded.forward(False, x)
        twins.step(x, rng.standard_normal(out.shape).astype(np.float32))
        twins.forward(False, x)
    assert twins.expect_recorded() == []
    assert taken == {kind}


@pytest.mark.parametrize("make", [gru, elman])
def test_walks_back_hand_out_the_same_bits(taken, make):
    twins, rng = Twins(make(num_stacks=2)), np.random.default_rng(0)
    for _ in range(4):
        twins.forward(True, rng.standard_normal((3, 21, 5)).astype(np.float32))
        twins.walk(rng.standard_normal((3, 21, 6)).astype(np.float32))
    assert twins.expect_recorded() == []
