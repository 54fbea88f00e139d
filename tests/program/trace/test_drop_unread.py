"""Calls whose results nobody reads."""

import numpy as np

from singanet.program.ir import without_unread
from singanet.program.trace.tape import Tape


def planned(tape):
    return tape.new((4,), float)


def wanted(tape, array):
    """As the place where a program hands an array out."""
    call = tape.add(lambda: None, (array,), {}, (), "hidden", name="yield")
    call.function = None


def names(tape):
    return [call.name for call in without_unread(tape.calls, tape.tokens)]


def test_what_leads_to_nothing_goes_with_all_that_leads_to_it():
    tape = Tape()
    a, b, c, d = (planned(tape) for _ in range(4))
    tape.add(np.copyto, (1.0,), {}, (a,), "first", name="a")
    tape.add(np.negative, (a,), {}, (b,), name="b")
    tape.add(np.negative, (b,), {}, (c,), name="c")
    tape.add(np.negative, (a,), {}, (d,), name="d")
    wanted(tape, d)
    assert names(tape) == ["a", "d", "yield"]


def test_every_write_of_what_is_read_stays():
    tape = Tape()
    a, b = planned(tape), planned(tape)
    tape.add(np.copyto, (1.0,), {}, (a,), "first", name="all")
    tape.add(np.copyto, (2.0,), {}, (a[1:],), "first", name="part")
    tape.add(np.negative, (a,), {}, (b,), name="read")
    wanted(tape, b)
    tape.add(np.copyto, (3.0,), {}, (a,), "first", name="too late")
    assert names(tape) == ["all", "part", "read", "yield"]


def test_effects_outside_and_barriers_stay():
    tape, outside = Tape(), np.zeros(4)
    a, b = planned(tape), planned(tape)
    tape.hold(outside)
    tape.add(np.copyto, (1.0,), {}, (a,), "first", name="a")
    tape.add(np.negative, (a,), {}, (outside,), name="state")
    tape.add(np.negative, (a,), {}, (b,), name="draw").barrier = True
    assert names(tape) == ["a", "state", "draw"]
