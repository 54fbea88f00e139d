"""A layer in two nets, one of which records, to compare what both give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singanet.base.edits import Counted
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer
from singanet.testing.parts import map_parts, parts_of
from singanet.types import Array


class RecordedPair:
    """Two equal ``layers`` that are set up: the first by recorded programs, the other by itself.

    Each call compares outputs, gradients and running state to the bit.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.nets = [_net_of(layer) for layer in layers]
        self.nets[1].programs.enabled = False

    def train(self, x: Any, gradient: Callable[[Any], Any]) -> None:
        """A training forward on ``x`` and the walk back from ``gradient(output)``."""
        ys = [net.forward(True, x) for net in self.nets]
        _expect_same(*ys)
        name = self.nets[0].nodes()[-1].name
        walks = [net.backward({name: gradient(y)}) for net, y in zip(self.nets, ys, strict=True)]
        for one, two in zip(*walks, strict=True):
            assert one.names == two.names
            _expect_same(one.grads, two.grads)
        self._expect_same_params()

    def step(self, x: Any, optimizers: Sequence[Optimizer]) -> None:
        """A training step on ``x``, each net by its own of the ``optimizers``."""
        found = []
        net: Any
        for net, optimizer in zip(self.nets, optimizers, strict=True):
            net.loss = net.loss or _HalfSquares()
            found.append(net.step(x, np.zeros(2), optimizer))
        one, two = found
        assert one == two
        self._expect_same_params()

    def evaluate(self, x: Any) -> None:
        """An evaluation of ``x``."""
        _expect_same(*(net.forward(False, x) for net in self.nets))
        self._expect_same_params()

    def programs(self) -> int:
        """How many programs the first net recorded."""
        assert self.in_python() or not self.nets[0].programs.refusals
        return len(self.nets[0].programs.reports())

    def notes(self) -> list[str]:
        """What the first net runs as Python steps, and why."""
        return list(self.nets[0].programs.notes)

    def in_python(self) -> bool:
        """Whether loops over the layer are refused, as those over a Python step are.

        Not so where its class says that it is pure, and so can be recorded.
        """
        refusals, layer = self.nets[0].programs.refusals, self.nets[0].layers[0]
        of_loops = [why for why in refusals if why.startswith("a caller's loop over")]
        return bool(refusals) and of_loops == refusals and not getattr(layer, "pure", False)

    def _expect_same_params(self) -> None:
        _expect_same(*(net.param_values() for net in self.nets))


class _HalfSquares(Counted):
    """½ Σ y² of the outputs y, an array or several, whose gradient is y."""

    def forward(self, flag: Any, x: Any, y: Any) -> Array:
        """One loss a sample."""
        self._outputs = x
        parts = [part.reshape(len(part), -1) * 1.0 for part in parts_of(x)]
        losses: Array = 0.5 * sum((part * part).sum(axis=1).sum() for part in parts[1:])
        return losses + 0.5 * (parts[0] * parts[0]).sum(axis=1)

    def backward(self) -> Any:
        """The outputs, as arrays that may be changed."""
        outputs, self._outputs = self._outputs, None
        return map_parts(lambda part: part * 1.0, outputs)


def _net_of(layer: Layer) -> FeedForwardNet:
    net = FeedForwardNet(seed=3)
    layer.input_sample_shape = layer.in_shapes
    net.add(layer)
    return net


def _expect_same(one: Any, two: Any) -> None:
    for a, b in zip(parts_of(one), parts_of(two), strict=True):
        if isinstance(a, (list, tuple)):
            _expect_same(a, b)
        else:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
