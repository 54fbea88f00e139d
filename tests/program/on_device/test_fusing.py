"""Element-wise calls as one: on whatever views of whatever memory they leave what they left."""

from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.program.on_device.functions import Element, Fused, fused

SHAPE = (2, 3)
FUNCTIONS = [
    *(np.negative, np.square, np.tanh, np.positive, np.absolute, np.exp),
    *(np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.divide),
    *(np.greater, np.less_equal, np.equal, np.logical_and, np.logical_not, np.copyto),
]


def views(memory):
    """Arrays of the shape, and such as are repeated to it, that share memory in all ways."""
    flat = memory.view(np.float32)
    found = [flat[start : start + 6].reshape(SHAPE) for start in (0, 6, 9, 12)]
    found += [flat[0:6].reshape(3, 2).T, flat[6:9], flat[9:11].reshape(2, 1), flat[0:1].reshape(())]
    truths = memory[80:].view(bool)
    found += [truths[start : start + 6].reshape(SHAPE) for start in (0, 6)]
    return [*found, truths[3:6]]


@st.composite
def programs(draw):
    """Calls by the numbers of functions and views; numbers stand for themselves."""
    calls = []
    for _ in range(draw(st.integers(1, 12))):
        function = draw(st.sampled_from(FUNCTIONS))
        operands = [
            draw(st.one_of(st.integers(0, 10), st.sampled_from([0.5, -2.0])))
            for _ in range(1 if function is np.copyto else function.nin)
        ]
        where = draw(st.sampled_from([None, None, 8, 9])) if function is np.copyto else None
        calls.append((function, operands, draw(st.sampled_from([0, 1, 2, 3, 4, 8, 9])), where))
    return calls


def made(calls, memory):
    """The calls on that memory, those that NumPy takes: elements, and functions that do them."""
    there, pairs = views(memory), []
    for function, numbers, out, where in calls:
        given = [there[n] if type(n) is int else n for n in numbers]
        truth = there[out].dtype == bool
        floats = all(getattr(value, "dtype", np.float32) == np.float32 for value in given)
        kinds = (
            function in (np.greater, np.less_equal, np.equal),
            function.__name__[:7] == "logical",
        )
        if (kinds[0] and not (truth and floats)) or (kinds[1] and not truth):
            continue
        if not any(kinds) and truth and function is not np.copyto:
            continue
        if function is np.copyto:
            if truth and floats:
                continue
            named = {} if where is None else {"where": there[where]}
            run = partial(np.copyto, there[out], *given, casting="unsafe", **named)
            pairs.append((Element(function, tuple(given), there[out], named.get("where")), run))
        elif any(isinstance(value, np.ndarray) for value in given):
            if (
                not kinds[1]
                and not any(kinds)
                and all(getattr(value, "dtype", None) in (np.bool_,) for value in given)
            ):
                continue
            run = partial(function, *given, out=there[out], casting="unsafe")
            pairs.append((Element(function, tuple(given), there[out]), run))
    return pairs


@settings(max_examples=300)
@given(programs(), st.integers(0, 99))
def test_groups_leave_what_their_calls_leave(calls, seed):
    rng = np.random.default_rng(seed)
    start = np.zeros(96, np.uint8)
    start[:80].view(np.float32)[...] = rng.integers(-3, 4, 20)
    start[80:].view(bool)[...] = rng.integers(0, 2, 16)
    with np.errstate(all="ignore"):
        one, other = start.copy(), start.copy()
        for _, run in made(calls, one):
            run()
        for run in fused(made(calls, other), lambda group: group.by_functions(np)):
            run()
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def chain():
    """What an update by momentum is."""
    w, g, v, s = (np.arange(6, dtype=np.float32).reshape(SHAPE) + k for k in range(4))
    return [
        Element(np.multiply, (v, 0.9), v),
        Element(np.add, (v, g), v),
        Element(np.multiply, (v, 0.1), s),
        Element(np.subtract, (w, s), w),
    ]


def test_a_chain_is_one_and_reads_each_array_once():
    group = Fused(SHAPE)
    calls = chain()
    assert all(map(group.take, calls))
    given, filled, operation = group.source()
    assert given == "float32 a0, float32 a1, float32 a2, float32 a3, float32 a4"
    assert filled == "float32 b0, float32 b1, float32 b2"
    assert operation.splitlines()[-3:] == ["b0 = y1;", "b1 = y2;", "b2 = y3;"]
    assert [id(array) for array in group.outs] == [id(calls[k].out) for k in (0, 2, 3)]


def test_what_does_not_go_together_begins_anew():
    x, y = np.ones(SHAPE, np.float32), np.ones(SHAPE, np.float32)
    row = x[0]
    group = Fused(SHAPE)
    assert group.take(Element(np.add, (x, y), x))
    # A row of what was written, a shift of it, another shape, types that have no registers.
    assert not group.take(Element(np.add, (y, row), y))
    assert not group.take(Element(np.add, (y[0], 1.0), y[0]))
    assert not group.take(Element(np.add, (y, y.astype(np.float64)), y))
    assert not group.take(Element(np.add, (y, np.float64(1)), y))
    assert not group.take(Element(np.power, (y, y), y))
    assert group.take(Element(np.add, (y, x), y))
    assert len(group.steps) == 2


def test_a_group_has_so_many_calls_at_most():
    x = np.ones(SHAPE, np.float32)
    calls = [(Element(np.add, (x, 1.0), x), partial(np.add, x, 1.0, out=x)) for _ in range(60)]
    sizes = []
    for run in fused(calls, lambda group: sizes.append(len(group.steps)) or group.by_functions(np)):
        run()
    assert (x == 61).all()
    assert sum(sizes) == 60
    assert max(sizes) <= 24
