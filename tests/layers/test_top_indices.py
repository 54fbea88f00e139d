"""Where the largest elements are."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Dense, Gather, TopIndices
from singanet.testing import LayerCase, check_net_gradients


def ranked(row, k, largest):
    """Indices by a sort of pairs: of equal numbers the first index first."""
    return [j for _, j in sorted(((-v if largest else v), j) for j, v in enumerate(row))][:k]


class TestTopIndices(LayerCase):
    in_shapes = (3, 5)

    def make(self):
        return TopIndices("top", 3)

    def expected(self, params, x):
        return np.array([[ranked(row, 3, True) for row in sample] for sample in x])


class TestTheSmallestOfRounded(LayerCase):
    """Many are equal."""

    in_shapes = (6, 2)

    def make(self):
        return TopIndices("top", 2, axis=1, largest=False)

    def draw(self, rng, batch):
        return rng.integers(0, 3, (batch, 6, 2)).astype(float)

    def expected(self, params, x):
        found = [[ranked(column, 2, False) for column in sample.T] for sample in x]
        return np.array(found).transpose(0, 2, 1)


class TestTheFirstOfAll(LayerCase):
    def make(self):
        return TopIndices("top")

    def expected(self, params, x):
        return np.array([ranked(row, 1, True) for row in x])


@pytest.mark.parametrize("largest", [True, False])
def test_with_gather_it_is_what_pytorch_calls_topk(largest):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).permutation(24.0 * np.arange(24)).reshape(2, 4, 3)
    values, indices = torch.topk(torch.tensor(x), 2, dim=1, largest=largest)
    a = Input("x", (4, 3))
    at = TopIndices("top", 2, 1, largest)(a)
    net = FeedForwardNet(inputs=[a], outputs=[Gather("best", 1)([a, at]), at])
    found = net.forward(False, x)
    np.testing.assert_array_equal(found["best"], values)
    np.testing.assert_array_equal(found["top"], indices)


def test_gradients_go_to_what_was_chosen():
    a = Input("x", (4,))
    y = Dense("fc", 6)(a)
    net = FeedForwardNet(inputs=[a], outputs=Gather("best")([y, TopIndices("top", 2)(y)]), seed=0)
    check_net_gradients(net, np.random.default_rng(0).standard_normal((3, 4)))


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 1.5}, {"axis": 0}, {"axis": None}])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ArgumentError, match="layer 'top', argument"):
        TopIndices("top", **arguments)


@pytest.mark.parametrize(("k", "axis", "shape"), [(4, 1, (3, 5)), (2, 3, (3, 5)), (1, -4, (2, 2))])
def test_samples_without_so_many_are_refused(k, axis, shape):
    with pytest.raises(ShapeError, match=f"at least k={k} elements along axis {axis}"):
        TopIndices("top", k, axis).build(shape)
