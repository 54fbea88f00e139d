"""EndPadding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.layers import EndPadding, MaxPooling2D
from singanet.testing import LayerCase


class TestEndPadding(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return EndPadding("end")

    def expected(self, params, x):
        y = np.zeros((len(x), 2, 4, 5))
        y[:, :, :3, :4] = x
        return y


@pytest.mark.parametrize("size", [3, 4, 7, 8, 14, 28, 56, 112])
def test_pooling_behind_it_rounds_its_size_up_as_caffe(size, rng):
    end = EndPadding("end", value=-math.inf)
    pool = MaxPooling2D("pool", 3, 2, pad=0)
    pool.build(end.build((1, size, size)))
    x = rng.standard_normal((1, 1, size, size))
    y = x
    for layer in (end, pool):
        _, y = LayerCase().run(layer, y, train=False)
    out = math.ceil((size - 3) / 2) + 1
    expected = [[x[0, 0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(out)]
                for i in range(out)]  # fmt: skip
    np.testing.assert_array_equal(y[0, 0], expected)


@pytest.mark.parametrize("pad", [-1, 1.5, (1, 1)])
def test_refuses_a_bad_pad(pad):
    with pytest.raises(ArgumentError, match=r"'end', argument pad: expected an int"):
        EndPadding("end", pad)
