"""What the tests of the ready nets share."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from singanet.optimizer import SGD


@pytest.fixture
def count():
    """The number of trained and of other parameters, without making the arrays."""

    def counted(net):
        # net.params() would fill them: 240 MB for the largest.
        nodes = net._graph.nodes.values()
        params = {id(p): p for node in nodes for p in node.layer.params.values()}.values()
        sizes = [(p.trainable, prod(p.shape)) for p in params]
        return sum(n for t, n in sizes if t), sum(n for t, n in sizes if not t)

    return counted


@pytest.fixture
def learns(rng):
    """Takes a few steps on one batch of images and expects the loss to fall by half."""

    def check(net, shape, classes, lr=0.05, steps=12):
        x = rng.standard_normal((8, *shape)).astype(np.float32)
        y = np.arange(8) % classes
        optimizer = SGD(lr=lr, momentum=0.9)
        losses = [net.step(x, y, optimizer)[0] for _ in range(steps)]
        assert min(losses[-3:]) < 0.5 * losses[0]
        assert np.isfinite(losses).all()
        assert net.predict(x).shape == (8, classes)

    return check
