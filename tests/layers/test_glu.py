"""Gated linear units."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import GLU
from singanet.testing import LayerCase


class TestFeatures(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return GLU("gate")

    def expected(self, params, x):
        return x[..., :2] / (1.0 + np.exp(-x[..., 2:]))


class TestChannels(TestFeatures):
    in_shapes = (4, 3, 2)

    def make(self):
        return GLU("gate", axis=1)

    def expected(self, params, x):
        return x[:, :2] / (1.0 + np.exp(-x[:, 2:]))

    def test_agrees_with_pytorch(self):
        torch = pytest.importorskip("torch")
        layer, x = self.built(), self.inputs(np, np.float32)
        ctx, y = self.run(layer, x, train=True)
        dy = self.gradient_like(y)
        leaf = torch.tensor(x, requires_grad=True)
        theirs = torch.nn.functional.glu(leaf, 1)
        theirs.backward(torch.tensor(dy))
        np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-5)
        dx, _ = self.run_backward(layer, ctx, dy)
        np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (4, 3)), (0, (4,)), (2, (4,)), (-2, (4,))])
def test_refuses_what_has_no_halves(axis, shape):
    with pytest.raises(ShapeError, match="layer 'gate': expected one input with an even extent"):
        GLU("gate", axis).build(shape)


def test_refuses_an_axis_that_is_no_int():
    with pytest.raises(ArgumentError, match="layer 'gate', argument axis: expected an int"):
        GLU("gate", "last")
