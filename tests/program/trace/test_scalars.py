"""Numbers that change from step to step."""

import math
import operator

import numpy as np
import pytest

from singanet.program.ir import NotRecordableError
from singanet.program.trace.numbers import StepScalar
from singanet.program.trace.tape import Tape


class Source:
    """A number that is another one later."""

    def __init__(self, value):
        self.value = value

    def __call__(self):
        return self.value


EXPRESSIONS = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b,
    lambda a, b: a**b, lambda a, b: -a, lambda a, b: abs(a - 2 * b), lambda a, b: 1.0 - a,
    lambda a, b: 2.0 / a, lambda a, b: 0.9**a,
    lambda a, b: (1.0 - 0.9 ** (a + 1)) / (1.0 - b) - (-a) * 3,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_arithmetic_is_worked_out_anew(number):
    expression, first, second = EXPRESSIONS[number], Source(0.25), Source(3.0)
    made = expression(StepScalar(first), StepScalar(second))
    array = made.array(np.dtype(np.float64))
    assert array == made.value == expression(0.25, 3.0)
    first.value, second.value = 0.75, -2.5
    made.refresh()
    assert array == expression(0.75, -2.5)


@pytest.mark.parametrize(
    "look",
    [math.sqrt, bool, float, int, round, operator.not_, lambda a: a < 1, lambda a: a >= 1,
     lambda a: a % 2, lambda a: 7 // a, lambda a: f"{a:g}", lambda a: max(a, 0.0),
     operator.index],
)  # fmt: skip
def test_looking_at_the_value_is_refused(look):
    with pytest.raises(NotRecordableError, match="changes from step to step"):
        look(StepScalar(lambda: 2.0))


def test_it_is_no_number_for_a_shortcut():
    assert StepScalar(lambda: 1.0) != 1.0
    assert not StepScalar(lambda: 0.0) == 0.0  # noqa: SIM201


def test_one_without_an_array_of_floats_is_refused():
    with (
        Tape(),
        pytest.raises(NotRecordableError, match="without an array of floats"),
    ):
        np.multiply(StepScalar(lambda: 2.0), 3.0)
