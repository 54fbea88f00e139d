"""Kernels that write down what they do: a user's among them."""

import numpy as np

from singanet.ops import NumpyOps
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.tape import Tape


def test_two_classes_of_one_name_stay_apart():
    """A user's kernels ran those of another class that happened to be called the same."""

    def kernels_of(number):
        class Mine(NumpyOps):
            def told(self):
                return number

        return Mine(np)

    ones, twos = (kernels_of(number) for number in (1, 2))
    assert [recording_kernels(ops, Tape()).told() for ops in (ones, twos, ones)] == [1, 2, 1]
