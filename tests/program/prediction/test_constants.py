"""What a program makes of constants alone, made once."""

from weakref import ref

import numpy as np
import pytest

from singanet.base.heap import address
from singanet.program.ir import Ref
from singanet.program.prediction.constant import Constants, array_of, constant, make_constants
from singanet.program.trace.tape import Tape


class Recorded:
    """A tape with a constant, an array that may change, and what is fed."""

    def __init__(self):
        self.tape = Tape()
        self.constant = constant("weight", (4,), np.arange(4.0))
        self.weight, self.live = self.constant.value, np.arange(4.0)
        self.tape.hold(self.weight)
        self.tape.hold(self.live)
        self.fed = self.planned()
        mark = self.tape.add(lambda: None, (), {}, (self.fed,), "hidden", name="feed")
        mark.function = None

    def planned(self):
        return self.tape.new((4,), float)

    def call(self, name, function, reads, out):
        return self.tape.add(function, reads, {}, (out,), name=name)

    def left(self):
        make_constants(self.tape, Constants([self.constant]))
        return [call.name for call in self.tape.calls]

    def operand(self, name):
        (ref,) = (call.arguments[0] for call in self.tape.calls if call.name == name)
        assert isinstance(ref, Ref)
        return self.tape.outside[ref]


def test_what_follows_from_constants_is_made_and_kept():
    r = Recorded()
    a, b, y = r.planned(), r.planned(), r.planned()
    r.call("double", np.add, (r.weight, r.weight), a)
    r.call("square", np.square, (a,), b)
    r.call("last", np.multiply, (b, r.fed), y)
    assert r.left() == ["feed", "last"]
    kept = r.operand("last")
    np.testing.assert_array_equal(kept, [0.0, 4.0, 16.0, 36.0])
    assert address(kept) % 64 == 0


def test_what_is_filled_in_parts_by_constants_is_one():
    r = Recorded()
    a, y = r.planned(), r.planned()
    r.tape.add(np.copyto, (5.0,), {}, (a,), "first", name="fill")
    r.tape.add(np.copyto, (r.weight[:2],), {}, (a[2:],), "first", name="part")
    r.call("last", np.multiply, (a, r.fed), y)
    assert r.left() == ["feed", "last"]
    np.testing.assert_array_equal(r.operand("last"), [5.0, 5.0, 0.0, 1.0])


def change_later(r, a):
    r.tape.add(np.copyto, (r.fed,), {}, (a,), "first", name="change")


def read_live(r, a):
    r.tape.add(np.add, (r.live, r.weight), {}, (a,), name="change")


def change_weight(r, a):
    r.tape.add(np.copyto, (r.fed,), {}, (r.weight,), "first", name="change")


def draw(r, a):
    r.tape.add(np.copyto, (1.0,), {}, (a,), "first", name="change").barrier = True


@pytest.mark.parametrize("spoil", [change_later, read_live, change_weight, draw])
def test_what_may_change_stays_in_the_program(spoil):
    r = Recorded()
    a, b, y = r.planned(), r.planned(), r.planned()
    r.call("double", np.add, (r.weight, r.weight), a)
    spoil(r, a)
    r.call("square", np.square, (a,), b)
    r.call("last", np.multiply, (b, r.fed), y)
    assert r.left() == ["feed", "double", "change", "square", "last"]


def test_writes_outside_stay():
    r = Recorded()
    r.call("store", np.negative, (r.weight,), r.live)
    before = r.live.copy()
    assert r.left() == ["feed", "store"]
    np.testing.assert_array_equal(r.live, before)


def test_a_constant_goes_when_it_is_laid_out_and_comes_back():
    numbers = np.arange(24, dtype=np.float32).reshape(6, 4)
    tape, weight = Tape(), constant("weight", (6, 4), numbers.copy())
    made, y, gone = tape.new((4, 6), np.float32), tape.new((4, 6), float), ref(weight.value)
    tape.add(np.copyto, (weight.value.T,), {}, (made,), "first", name="turn")
    fed = tape.new((4, 6), float)
    tape.add(lambda: None, (), {}, (fed,), "hidden", name="feed").function = None
    tape.add(np.multiply, (made, fed), {}, (y,), name="last")
    make_constants(tape, Constants([weight]))
    assert [call.name for call in tape.calls] == ["feed", "last"]
    assert gone() is None
    storage = array_of(weight)
    assert storage.array is None
    # A layer's Python that reads it turns up later.
    storage.pinned = True
    storage.let_go()
    assert not storage.is_laid_out
    np.testing.assert_array_equal(storage.lend(), numbers)
