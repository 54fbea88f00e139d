"""What runs again finds what it found at first: random programs, and nets made up of kernels."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.engine.recompute.units import again_before, dropped_alone
from singanet.ops import numpy_ops
from singanet.program.compile import compile_tape
from singanet.program.cost import bytes_of, passes_of
from singanet.program.ir import map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.recompute import CannotRepeatError, Dataflow, traced_units, with_runs
from singanet.program.replay.replay import Bound
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.layers import own
from singanet.program.trace.tape import Tape


class Draws:
    def __init__(self):
        self.count = 0

    def fill(self, out):
        self.count += 1
        out[...] = self.count


def add(xp, a, b):
    return xp.add(a, b)


def product(xp, a, b):
    return xp.matmul(a, b)


def changed(xp, a, b):
    """In place, all of it, from what it was."""
    xp.subtract(a, b, out=a)
    return a


def overwritten(xp, a, b):
    """In place, all of it, whatever it was."""
    xp.negative(b, out=a)
    return a


def partly(xp, a, b):
    a[1:3] = b[:2]
    return a


def pieces(xp, a, b):
    y = xp.empty_like(a)
    y[:2] = a[2:]
    y[2:] = xp.multiply(b[:2], 0.5)
    return y


def by_blocks(xp, a, b):
    """A block that serves one row after the other."""
    y, block = xp.empty_like(a), xp.empty(a.shape[1:])
    for k in range(len(a)):
        xp.multiply(a[k], 0.25, out=block)
        xp.add(block, b[k], out=y[k])
    return y


def two(xp, a, b):
    whole, rest = xp.modf(a)
    return xp.add(rest, xp.multiply(whole, b))


def into_two(xp, a, b):
    """Two results, of which one is written over a part of what was there."""
    y = xp.zeros(a.shape)
    xp.modf(a[:2], out=(b[1:3], y[2:]))
    return y


STEPS = [add, product, changed, overwritten, partly, pieces, by_blocks, two, into_two, None]


def walked(ops, arrays, steps, draws, enter=lambda number: None):
    """The arrays after ``steps``; None among them draws an array. ``enter`` is told each step."""
    arrays = list(arrays)
    for number, (kind, one, two) in enumerate(steps):
        enter(number)
        if STEPS[kind] is None:
            arrays.append(draws(ops, arrays[0].shape))
            continue
        a, b = arrays[one % len(arrays)], arrays[two % len(arrays)]
        made = STEPS[kind](ops.xp, a, b)
        if not any(made is array for array in arrays):
            arrays.append(made)
    return arrays


class Walk:
    """Steps on a tape, a layer each, those from ``back`` on backward through some of the layers."""

    def __init__(self, steps, back):
        self.tape = Tape()
        self.tape.ops = ops = recording_kernels(numpy_ops, self.tape)
        self.source = Draws()
        layers = [*range(back), *sorted((s[1] % max(back, 1) for s in steps[back:]), reverse=True)]

        def enter(number):
            self.tape.layer = str(layers[number])
            self.tape.phase = "forward" if number < back else "backward"

        with np.errstate(all="ignore"), self.tape:
            arrays = own(self.tape, start())
            self._mark("feed", arrays, (), arrays)
            drawn = lambda ops, shape: ops.uniform(self.source, shape)  # noqa: E731
            arrays = walked(ops, arrays, steps, drawn, enter)
            self.tape.phase = "backward"
            self._mark("outputs", arrays, (arrays,), [])
        self.recording = compile_tape(self.tape)
        calls = self.recording.calls
        passes = [passes_of(call) for call in calls]
        touched = [bytes_of(call, self.tape.tokens) for call in calls]
        kernels, buffers = self.recording.kernels, self.recording.buffers
        (self.traced,) = traced_units(kernels, buffers, passes, touched, {})

    def _mark(self, name, payload, read, filled):
        call = self.tape.add(lambda: None, (read,), {}, filled, "hidden", name=name)
        call.function, call.barrier = None, True
        call.arguments = map_arrays(payload, self.tape.ref)

    def replayed(self, again):
        """What comes out where units run again before others go backward, and the recording."""
        calls = with_runs(Dataflow(self.recording.calls), [(self.traced, again)], self.tape.tokens)
        self.tape.calls = calls
        made = compile_tape(self.tape)
        arena = np.full(made.layout.nbytes + ALIGNMENT, 0xA5, np.uint8)
        bound = Bound(made, arena)
        for place, array in zip(bound.feed.arrays, start(), strict=True):
            place[...] = array
        self.source.count = 0
        with np.errstate(all="ignore"):
            for call in bound.feed.calls:
                call()
        return [array.copy() for array in bound.outputs.arrays], made


def start():
    rng = np.random.default_rng(3)
    return [rng.standard_normal((4, 4)) for _ in range(2)]


def expected(steps):
    source = Draws()

    def drawn(_, shape):
        out = np.empty(shape, np.float32)
        source.fill(out)
        return out

    with np.errstate(all="ignore"):
        return walked(numpy_ops, start(), steps, drawn)


numbers = st.integers(0, 99)
step = st.tuples(st.integers(0, len(STEPS) - 1), numbers, numbers)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(step, min_size=2, max_size=14),
    st.lists(step, max_size=10),
    st.dictionaries(numbers, st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=4),
)
def test_whatever_runs_again_comes_out_the_same(forward, backward, wish):
    steps = [*forward, *backward]
    walk = Walk(steps, len(forward))
    count = len(walk.traced.units)
    again = {}
    for before, units in wish.items():
        # In the order of their forwards, as often as is asked.
        again[before % count] = sorted({unit % count for unit in units})
    try:
        found, made = walk.replayed(again)
    except CannotRepeatError:
        return
    np.testing.assert_equal(found, expected(steps))
    recomputed = [kernel for kernel in made.kernels if kernel.phase == "recompute"]
    assert not any(kernel.barrier for kernel in recomputed)


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=2, max_size=14), st.lists(step, max_size=10), numbers)
def test_what_cannot_run_again_is_said_and_the_rest_can(forward, backward, wish):
    """Whatever set of layers is dropped: with those kept that are told, the others run again."""
    steps = [*forward, *backward]
    walk = Walk(steps, len(forward))
    for _ in range(len(walk.traced.units) + 1):
        units = walk.traced.units
        dropped = {k for k, u in enumerate(units.units) if u.again and (wish >> k % 7) & 1}
        try:
            found, _ = walk.replayed(again_before(dropped_alone(units, dropped)))
        except CannotRepeatError as error:
            walk.traced = walk.traced.keeping(error.kernel)
            continue
        np.testing.assert_equal(found, expected(steps))
        return
    raise AssertionError("no layer was left to keep")
