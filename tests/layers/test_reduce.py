"""Reductions, and samples spread out."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Expand, Reduce, RepeatVector
from singanet.testing import LayerCase


class TestSum(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Reduce("total", "sum", (1, -1))

    def expected(self, params, x):
        return np.einsum("nijk->nj", x)


class TestMeanOfAll(LayerCase):
    in_shapes = (2, 3)

    def make(self):
        return Reduce("mean", "mean")

    def expected(self, params, x):
        return np.einsum("nij->n", x) / 6


class TestMax(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Reduce("top", "max", [2], keepdims=True)

    def expected(self, params, x):
        return np.sort(x, axis=2)[:, :, -1:]


class TestMin(LayerCase):
    in_shapes = (5,)

    def make(self):
        return Reduce("least", "min", -1)

    def expected(self, params, x):
        return np.sort(x, axis=1)[:, 0]


class OfSteps(LayerCase):
    """Under a mask: some steps, all, none."""

    in_shapes = [(3, 2), (3,)]
    batch = 4
    mode = "mean"

    def make(self):
        return Reduce("steps", self.mode, axes=1)

    def draw(self, rng, batch):
        mask = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]])[:batch]
        return [rng.standard_normal((batch, 3, 2)), mask]

    def expected(self, params, x):
        function = getattr(np, self.mode)
        rows = [sample[mask > 0] for sample, mask in zip(*x, strict=True)]
        return np.array([function(row, axis=0) if len(row) else [0.0, 0.0] for row in rows])


class TestMeanOfSteps(OfSteps):
    pass


class TestMaxOfSteps(OfSteps):
    mode = "max"


class TestExpand(LayerCase):
    in_shapes = (1, 3, 1)

    def make(self):
        return Expand("wide", (2, -1, 4))

    def expected(self, params, x):
        return np.tile(x, (1, 2, 1, 4))


class TestRepeatVector(LayerCase):
    in_shapes = (3,)

    def make(self):
        return RepeatVector("steps", 4)

    def expected(self, params, x):
        return np.stack([x] * 4, axis=1)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_equal_extremes_share_the_gradient_as_in_pytorch(mode):
    torch = pytest.importorskip("torch")
    x, dy = np.array([[1.0, 3.0, 3.0, 1.0]], np.float32), np.array([2.0], np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    getattr(torch, f"a{mode}")(leaf, 1).backward(torch.tensor(dy))
    case, layer = TestMin(), Reduce("it", mode)
    layer.build((4,))
    ctx, _ = case.run(layer, x, train=True)
    np.testing.assert_array_equal(case.run_backward(layer, ctx, dy)[0], leaf.grad.numpy())


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Reduce("it", "prod"), UnknownNameError, "argument mode"),
        (lambda: Reduce("it", "sum", 0), ArgumentError, "argument axis"),
        (lambda: Reduce("it", "sum", "last"), ArgumentError, "argument axis"),
        (lambda: Reduce("it", "sum", ()), ArgumentError, "argument axis"),
        (lambda: Reduce("it", "sum", 3).build((4, 5)), ShapeError, "each of the axes"),
        (lambda: Reduce("it", "sum", (1, -2)).build((4, 5)), ShapeError, "each of the axes"),
        (lambda: Expand("it", (0, 2)), ArgumentError, "argument shape"),
        (lambda: Expand("it", (2, 2)).build((3, 1)), ShapeError, "samples of 2 axes"),
        (lambda: Expand("it", (2, 2)).build((1,)), ShapeError, "samples of 2 axes"),
        (lambda: RepeatVector("it", 0), ArgumentError, "argument n"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=f"layer 'it'.*{words}"):
        make()
