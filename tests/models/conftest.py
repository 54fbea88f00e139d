"""What the tests of the ready nets share."""

from math import prod

import pytest


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
