"""The values that Python sees while a step is recorded."""

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.layers import own
from singanet.program.trace.tape import Tape


@pytest.fixture
def tape():
    made = Tape()
    made.ops = recording_kernels(numpy_ops, made)
    with made:
        yield made


def test_they_are_those_of_the_calls_so_far(tape, rng):
    x = rng.standard_normal((3, 4))
    (place,) = own(tape, [x])
    y = np.exp(place) @ place.T
    shown = tape.shown({"y": [y], "part": y[1:]})
    np.testing.assert_array_equal(shown["y"][0], np.exp(x) @ x.T)
    np.testing.assert_array_equal(shown["part"], (np.exp(x) @ x.T)[1:])
    y += 1
    np.testing.assert_array_equal(tape.shown(y), np.exp(x) @ x.T + 1)
    # Copies, which may be changed.
    shown["y"][0][...] = 7
    np.testing.assert_array_equal(tape.shown(y), np.exp(x) @ x.T + 1)


def test_memory_from_outside_stays_as_it_is(tape):
    state = np.arange(3.0)
    place = tape.hold(state)
    place *= 2
    np.testing.assert_array_equal(tape.shown(place), [0, 2, 4])
    np.testing.assert_array_equal(state, [0, 1, 2])


def test_deleted_calls_are_not_made(tape):
    (place,) = own(tape, [np.ones(3)])
    y = place * 2
    mark = len(tape.calls)
    y += 5
    assert tape.shown(y).tolist() == [7, 7, 7]
    tape.delete_from(mark)
    np.multiply(place, 3, out=y)
    assert tape.shown(y).tolist() == [3, 3, 3]


def test_neither_updates_nor_what_only_looks_is_made(tape):
    (place,) = own(tape, [np.ones(3)])
    seen = []
    tape.add(seen.append, (place,), {}, (), "hidden", name="look").barrier = True
    tape.phase = "update"
    place += 1
    assert tape.shown(place).tolist() == [1, 1, 1]
    assert not seen


def test_memory_of_arrays_that_are_gone_is_freed(tape):
    (x,) = own(tape, [np.ones(1000)])
    for _ in range(20):
        x = x * 1.5 + 1
    tape.shown(x)
    assert sum(array.nbytes for array in tape.values._memory.values()) <= 2 * x.nbytes
