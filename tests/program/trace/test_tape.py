"""The tape: memory by number, and what calls read and write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from singanet.base.heap import address
from singanet.engine.backward import root_of
from singanet.engine.timeline import AllocationLog
from singanet.program.ir import NotRecordableError, Ref, map_arrays
from singanet.program.trace.tape import Tape, current_tape


class Pair(NamedTuple):
    """As row-sparse gradients are."""

    first: object
    second: object


def planned(tape, *shape):
    return tape.new(shape, np.float32)


def test_the_root_owns_the_memory():
    array = np.zeros((4, 6))
    assert root_of(array) is array
    assert root_of(array.T[1:]) is array
    copied = array[1:, ::2].T.reshape(9)
    assert root_of(copied[::-1]) is root_of(copied) is not array


def test_a_place_gives_the_view_in_other_memory():
    tape, array = Tape(), np.zeros((4, 6), np.float32)
    for view in (array, array[1:, ::2], array.T, array[::-1, 2], array[2, 3:4, None], array[:0]):
        other = np.arange(24, dtype=np.float32)
        wanted = np.ndarray(
            view.shape,
            view.dtype,
            other,
            address(view) - address(array) if view.size else 0,
            view.strides,
        )
        np.testing.assert_array_equal(tape.ref(view).array(other), wanted)


def test_arrays_not_met_before_are_held_from_outside():
    tape, array = Tape(), np.arange(6.0)
    ref = tape.ref(array[2:])
    assert tape.tokens[ref.token].held is array
    assert root_of(tape.outside[ref]) is array
    np.testing.assert_array_equal(tape.outside[ref], array[2:])
    assert tape.ref(array[2:]) == ref


def test_bytes_are_live_as_long_as_an_array_lies_there():
    tape = Tape()
    tape.log = log = AllocationLog()
    tape.layer = "a"
    one = planned(tape, 1000)
    part, two = one[10:], planned(tape, 500)
    del one
    tape.layer = "b"
    del part
    with tape.in_blocks():
        tape.new((100,), np.float64)
    tape.note(500, "state")
    tape.lend(700)
    del two
    live = log.timeline("array").live(len(log.moments))
    assert live.tolist() == [4000, 6000, 6000, 2000, 2700, 2700, 2000]
    assert (log.peak("array"), log.peak("state")) == (
        (6000, ("a", "forward", 0)),
        (500, ("b", "forward", 0)),
    )
    assert log.peak("scratch")[0] == 0


def test_calls_say_what_they_read_and_write():
    tape = Tape()
    a, b, c = (planned(tape, 4, 6) for _ in range(3))
    call = tape.add(np.add, (a, b), {}, (c,), elementwise=True)
    numbers = [tape.ref(array).token for array in (a, b, c)]
    assert call.reads == tuple(numbers[:2])
    assert call.writes == (numbers[2],)
    assert call.partly == ()
    assert call.in_place == ((numbers[0], numbers[2]), (numbers[1], numbers[2]))
    assert isinstance(call.keywords["out"], Ref)


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        (lambda a: a[:, ::-1], lambda c: c),
        (lambda a: a[:2], lambda c: c[:2]),
        (lambda a: a[0], lambda c: c),
        (lambda a: a.astype(np.float64), lambda c: c),
    ],
)
def test_operands_that_lie_otherwise_keep_their_memory(reads, writes):
    tape = Tape()
    with tape:
        a, c = planned(tape, 4, 6), planned(tape, 4, 6)
        read = reads(a)
    assert tape.add(np.negative, (read,), {}, (writes(c),), elementwise=True).in_place == ()


def test_a_part_that_is_written_leaves_the_rest():
    tape = Tape()
    a, c = planned(tape, 2, 6), planned(tape, 4, 6)
    call = tape.add(np.copyto, (a,), {}, (c[1:3],), "first")
    assert call.partly == call.writes == (tape.ref(c).token,)


def test_what_a_call_changes_it_reads():
    tape = Tape()
    a, c = planned(tape, 4, 6), planned(tape, 4, 6)
    call = tape.add(np.add.at, (np.array([1]), a), {}, (c,), "first", changes=True)
    assert call.partly == (tape.ref(c).token,)


def test_arrays_inside_of_arguments_are_found():
    found = []
    one, two = np.zeros(1), np.zeros(2)
    value = [(one, 3), {"a": two, "b": Pair(one, "x")}, Pair(two, None)]
    made = map_arrays(value, lambda array: found.append(array) or len(array))
    assert made == [(1, 3), {"a": 2, "b": Pair(1, "x")}, Pair(2, None)]
    assert isinstance(made[2], Pair)
    assert [len(array) for array in found] == [1, 2, 1, 2]


def test_constants_are_not_written():
    tape, table = Tape(), np.arange(3.0)
    tape.hold(table, constant=True)
    with pytest.raises(NotRecordableError, match="constant"):
        tape.add(np.add, (table, 1.0), {}, (table,))


def test_poisoned_memory_is_not_read():
    tape, rows = Tape(), np.arange(3.0)
    tape.hold(rows, poison="others at each step")
    with pytest.raises(NotRecordableError, match="others at each step"):
        tape.ref(rows[1:])


def test_only_arrays_that_are_allowed_are_held():
    tape, mine, other = Tape(), np.arange(3.0), np.arange(3.0)
    tape.allowed = frozenset([id(mine)])
    tape.ref(mine[1:])
    with pytest.raises(NotRecordableError, match="no kernel"):
        tape.ref(other)


def test_one_tape_a_thread_at_a_time():
    assert current_tape() is None
    with Tape() as tape:
        assert current_tape() is tape
    assert current_tape() is None
    with pytest.raises(RuntimeError), Tape():
        raise RuntimeError
    assert current_tape() is None
