"""Memory that is lent: somebody has it for as long as anything made of the array lives."""

import weakref

import numpy as np
import pytest

from singanet.base.heap import LentMemory
from tests.keeping import WAYS

FLOAT = np.dtype(np.float32)


def expect_lent_while_kept(memory, keep):
    """Whoever keeps what ``keep`` makes has it, and nobody once that is gone."""
    assert not memory.is_lent
    kept = keep(memory.lend((60, 7), FLOAT))
    assert memory.is_lent
    del kept
    assert not memory.is_lent


OF_HOST = [keep for keep, _ in WAYS.values()] + [memoryview, np.broadcast_arrays, iter]
EVERYWHERE = [
    lambda array: array,
    lambda array: array.T[1:],
    lambda array: array.reshape(-1)[3:].view(np.int32),
    lambda array: (each for each in [array]),
    lambda array: {"deep": [(array[:, 2],)]},
]


@pytest.mark.parametrize("keep", OF_HOST)
def test_every_way_of_keeping_counts(keep):
    memory = LentMemory(np.empty(60 * 7 * 4, np.uint8))
    for _ in range(2):
        expect_lent_while_kept(memory, keep)


@pytest.mark.parametrize("keep", EVERYWHERE)
def test_on_a_device_as_well(keep, xp):
    expect_lent_while_kept(LentMemory(xp.empty(60 * 7 * 4, np.uint8)), keep)


def test_it_is_one_array_of_the_same_memory_for_as_long_as_somebody_has_it(xp):
    memory = LentMemory(xp.zeros((60, 7), np.float32))
    lent = memory.lend((60, 7), FLOAT)
    assert memory.lend((60, 7), FLOAT) is lent
    lent[3, 4] = 5
    gone, view = weakref.ref(lent), lent.T
    del lent
    assert gone() is None
    assert memory.lend((60, 7), FLOAT).T is not view
    assert memory.lend((60, 7), FLOAT)[3, 4] == view[4, 3] == 5
    del view
    assert not memory.is_lent
    assert memory.lend((420,), FLOAT)[3 * 7 + 4] == 5


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_nothing_can_be_lent(shape, xp):
    memory = LentMemory(xp.empty(shape, np.float32))
    assert memory.lend(shape, FLOAT).shape == shape
    assert memory.nbytes == 0
