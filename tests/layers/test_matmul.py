"""MatMul."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import MatMul
from singanet.testing import LayerCase


class TestMatMul(LayerCase):
    in_shapes = [(2, 3), (3, 4)]

    def make(self):
        return MatMul("product")

    def expected(self, params, x):
        return np.einsum("nmk,nkp->nmp", *x)


class TestMatMulTransposed(LayerCase):
    in_shapes = [(5, 3, 2), (5, 4, 3)]

    def make(self):
        return MatMul("product", transpose_a=True, transpose_b=True)

    def expected(self, params, x):
        return np.einsum("nhkm,nhpk->nhmp", *x)


class TestMatMulOfScores(LayerCase):
    in_shapes = [(4, 3), (6, 3)]

    def make(self):
        return MatMul("product", transpose_b=True)

    def expected(self, params, x):
        return np.einsum("nqd,nkd->nqk", *x)


@pytest.mark.parametrize(
    "shapes",
    [(2, 3), [(2, 3)], [(2, 3), (2, 3)], [(2, 3), (3,)], [(5, 2, 3), (4, 3, 2)], [(2, 2)] * 3],
)
def test_refuses_inputs_that_do_not_fit(shapes):
    with pytest.raises(
        ShapeError, match=r"layer 'product': expected two inputs .*transpose_a=False"
    ):
        MatMul("product").build(shapes)
