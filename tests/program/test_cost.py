"""What calls take: bytes gone over, and products by their shapes."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.program.cost import bytes_of, passes_of
from singanet.program.trace.evaluator import ConcreteEvaluator
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.layers import own
from singanet.program.trace.tape import Tape


def call_of(function, *shapes, dtype=np.float32):
    """The last call that ``function`` makes on arrays of these shapes, and its tape."""
    tape = Tape(ConcreteEvaluator())
    tape.ops = recording_kernels(numpy_ops, tape)
    with tape:
        function(tape.ops.xp, *own(tape, [np.ones(shape, dtype) for shape in shapes]))
    return tape.calls[-1], tape.tokens


def product(xp, a, b):
    return xp.matmul(a, b)


@pytest.mark.parametrize(
    ("a", "b", "passes"),
    [
        ((1, 500), (500, 20), 1),  # column sums
        ((400, 8), (8, 8), 1),
        ((256, 256), (256, 256), 1 + 256**3 // (3 * 256**2) // 8),
        ((5, 64, 64), (5, 64, 64), 1 + 64 // 3 // 8),
        ((512, 512), (512,), 1),
    ],
)
def test_products_by_their_shapes(a, b, passes):
    call, _ = call_of(product, a, b)
    assert passes_of(call) == passes


def test_everything_else_is_a_pass_but_products_without_shapes():
    assert passes_of(call_of(lambda xp, a: xp.exp(a), (8, 8))[0]) == 1
    assert passes_of(call_of(lambda xp, a: np.add.reduce(a, 0), (8, 8))[0]) == 1
    assert passes_of(call_of(lambda xp, a: np.einsum("ij,jk", a, a), (8, 8))[0]) > 8


def test_bytes_are_those_that_are_touched():
    call, tokens = call_of(lambda xp, a, b: xp.add(a[:2], b, out=a[4:6]), (8, 16), (16,))
    assert bytes_of(call, tokens) == 4 * (2 * 16 + 16 + 2 * 16)
