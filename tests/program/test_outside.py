"""What lies outside of the arena is what net and optimizer hold, and little else."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.models import build
from singanet.optimizer import SGD
from singanet.program.compile import compiled
from singanet.program.trace.evaluator import AbstractEvaluator
from singanet.program.trace.recorder import Recorder


def recorded(name, momentum, batch=2):
    net = build(name, seed=0)
    first = net.nodes()[0]
    x = np.zeros((batch, *first.layer.in_shapes), np.float32)
    y, optimizer = np.zeros(batch, np.int64), SGD(lr=0.1, momentum=momentum)
    net.step(x, y, optimizer)
    recorder = Recorder(net, AbstractEvaluator())
    recorder.step({first.name: x}, y, None, optimizer)
    return net, compiled(recorder)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_momentum_and_small_constants_are_all_there_is(name, momentum):
    net, recording = recorded(name, momentum)
    written = {n for kernel in recording.kernels for n in kernel.writes}
    kept = [n for n, buffer in enumerate(recording.buffers) if not buffer.planned]
    changed = sum(recording.buffers[n].nbytes for n in kept if n in written)
    trained = sum(param.value.nbytes for param in net.params() if param.trainable)
    state = sum(param.value.nbytes for param in net.params() if param.is_state)
    assert changed == trained * (2 if momentum else 1) + state
    constants = [recording.buffers[n].nbytes for n in kept if n not in written]
    # Filled once, when recorded: larger ones are filled at each replay, in the arena.
    assert max(constants, default=0) <= 1 << 16


def test_constants_lie_as_the_kernels_met_them():
    _, recording = recorded("lenet", 0.0)
    assert any(ref.strides != np.empty(ref.shape, ref.dtype).strides for ref in recording.outside)
    for ref, array in recording.outside.items():
        assert (array.shape, array.strides, array.dtype) == (ref.shape, ref.strides, ref.dtype)
