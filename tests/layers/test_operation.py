from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.errors import ShapeError, UnknownNameError
from singanet.layers import Operation
from singanet.layers.elementwise import OPERATIONS
from singanet.testing import LayerCase, check_gradients

# Where each is defined and smooth; elsewhere from -2 to 2.
DOMAINS = {
    "acos": (-0.9, 0.9), "acosh": (1.1, 3.0), "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9),
    "log": (0.1, 3.0), "reciprocal": (0.5, 2.0), "sqrt": (0.1, 3.0), "tan": (-1.2, 1.2),
    "power": (0.5, 2.0), "modulo": (0.5, 0.9), "remainder": (0.5, 0.9), "abs": (0.2, 2.0),
}  # fmt: skip
MATH = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "reciprocal": lambda v: 1 / v,
        "round": round, "sign": lambda v: math.copysign(1, v), "truncate": math.trunc}  # fmt: skip


class TestErf(LayerCase):
    def make(self):
        return Operation("erf", "erf")

    def expected(self, params, x):
        return np.vectorize(math.erf)(x)


class TestPower(LayerCase):
    in_shapes = [(3, 2), (3, 1)]

    def draw(self, rng, batch):
        return [0.5 + rng.random((batch, *shape)) for shape in self.in_shapes]

    def make(self):
        return Operation("power", "power")

    def expected(self, params, x):
        return np.exp(x[1] * np.log(x[0]))


@pytest.mark.parametrize("mode", [m for m, row in OPERATIONS.items() if row.inputs == 1])
def test_functions_are_those_of_python_and_gradients_those_of_differences(mode):
    low, high = DOMAINS.get(mode, (-2.0, 2.0))
    x = np.random.default_rng(0).uniform(low, high, (4, 3))
    layer = Operation("it", mode)
    check_gradients(layer, x, tolerance=1e-5)
    y = OPERATIONS[mode].forward(np, x)
    function = MATH.get(mode) or getattr(math, mode)
    np.testing.assert_allclose(y, np.vectorize(function, [float])(x), rtol=1e-10)


@pytest.mark.parametrize(("mode", "function"), [("modulo", lambda a, b: a % b),
                                                ("remainder", math.fmod)])  # fmt: skip
def test_remainders_have_the_sign_of_either(mode, function):
    a, b = np.array([[5.5, -5.5, 5.5]]), np.array([[3.0, 3.0, -3.0]])
    found = OPERATIONS[mode].forward(np, a, b)
    np.testing.assert_allclose(found[0], [function(*pair) for pair in zip(a[0], b[0], strict=True)])
    check_gradients(Operation("it", mode), [a, b])


def test_unknown_modes_and_other_numbers_of_inputs_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean"):
        Operation("it", "sqr")
    with pytest.raises(ShapeError, match="1 input"):
        Operation("it", "exp").build([(2,), (2,)])
