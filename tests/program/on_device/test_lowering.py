"""Calls on a device's arrays: their order, and the numbers that change from step to step."""

import contextlib
import ctypes
from functools import partial
from operator import length_hint

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import DataError
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam
from singanet.program.ir import NotRecordableError, gather, scatter, store, take_rows
from singanet.program.on_device.device_lowering import Launch
from singanet.program.on_device.device_products import Graphs, product
from singanet.program.on_device.functions import Element, Fused, fused, on_device
from singanet.testing import strict_device, watch_device
from singanet.testing.device_like import device_like


def net_there(drops=True):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", 7, input_sample_shape=(5,)))
    net.add(Activation("relu"))
    for name in ("one", "two") if drops else ():
        net.add(Dropout(name, 0.3))
    net.add(Dense("scores", 3))
    net.to_device(strict_device())
    return net


def batch(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((6, 5)).astype(np.float32), rng.integers(0, 3, 6)


def test_numbers_may_stand_still_and_go_on():
    seen = []
    for recorded in (True, False):
        net = net_there()
        net.programs.enabled = recorded
        rate = iter([0.1, 0.1, 0.1, 0.5, 0.5, 0.1, 0.2])
        # Asked once for each of four arrays.
        held = [rate_ for rate_ in rate for _ in range(4)]
        rule = SGD(lr=lambda step, held=held: held[4 * step])
        seen.append([net.step(*batch(0), rule)[0] for _ in range(7)])
    assert seen[0] == seen[1]


def calls_of(net, rule):
    for k in range(3):
        net.step(*batch(k), rule)
    ((_, program),) = net.programs._every()
    return program, program.bound(program._bound.arena).feed.calls


def test_launches_are_together_but_for_looks_of_the_host():
    program, calls = calls_of(net_there(), SGD(lr=0.1))
    count = sum(1 for call in program.recording.calls if call.function is not None)
    assert length_hint(iter(calls)) == count
    groups = [group.calls for group in calls._groups if group.calls]
    together = [len(group) for group in groups if isinstance(group[0], Launch)]
    # Labels are looked at, and the loss is read: three runs, and not one for each draw.
    assert len(together) == 3
    assert sum(together) > count - 8
    named = [call.name for call in program.recording.calls if call.function is not None]
    assert named[:2] == ["uniform", "uniform"]


def test_an_iterator_tells_how_many_recorded_calls_are_left():
    _, calls = calls_of(net_there(), SGD(lr=0.1))
    each = iter(calls)
    left = length_hint(each)
    for group in calls._groups:
        next(each)
        left -= len(group.calls)
        assert length_hint(each) == left
    assert left == 0
    assert sum(1 for _ in calls.singly()) == length_hint(iter(calls))


def test_a_batch_of_the_host_and_one_of_the_device_are_the_same():
    first, second = net_there(False), net_there(False)
    rules = SGD(lr=0.1), SGD(lr=0.1)
    for k in range(4):
        x, y = batch(k)
        there = first.device.put(x), first.device.put(y)
        assert first.step(*there, rules[0]) == second.step(x, y, rules[1])


def test_labels_that_are_none_leave_net_and_draws_as_they_were():
    net, rule = net_there(False), Adam(lr=0.1)
    for k in range(3):
        net.step(*batch(k), rule)
    before = [param.value.get() for param in net.params()]
    x, y = batch(3)
    with pytest.raises(DataError, match="labels from 0 to 2"):
        net.step(x, y + 3, rule)
    for param, value in zip(net.params(), before, strict=True):
        np.testing.assert_array_equal(param.value.get(), value)
    assert {state.step for state in rule.states()} == {3}
    net.step(x, y, rule)


# -- Functions of a device's module in the place of NumPy's, with the same numbers ------------


def lowered(function, *given, **named):
    found, rest = on_device(device_like, function, named)
    return found(*given, **rest)


def there(*shape):
    return device_like.asarray(np.random.default_rng(3).standard_normal(shape))


@pytest.mark.parametrize(
    "named",
    [
        {}, {"axis": None, "dtype": None, "keepdims": False, "where": True}, {"axis": 1},
        {"axis": (0, 1)}, {"axis": 0, "keepdims": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "kind", [np.add, np.multiply, np.maximum, np.minimum, np.logical_or, np.logical_and]
)
def test_reductions_are_of_the_first_axis_unless_they_are_told(kind, named):
    truths = kind in (np.logical_or, np.logical_and)
    x = there(3, 4) > 0 if truths else there(3, 4)
    wanted = np.asarray(kind.reduce(x.get(), **named))
    out = device_like.empty(wanted.shape, wanted.dtype)
    lowered(kind.reduce, x, **({"dtype": bool} if truths and not named else {}), **named, out=out)
    np.testing.assert_array_equal(out.get(), wanted)


def test_functions_that_fill_nothing_are_stored():
    x, out = there(3, 4), device_like.empty((4, 3))
    lowered(np.einsum, "ij->ji", x, out=out)
    np.testing.assert_array_equal(out.get(), x.get().T)
    transposed = device_like.empty((3, 4))
    lowered(store, transposed, np.flip, (x, 1), {})
    np.testing.assert_array_equal(transposed.get(), np.flip(x.get(), 1))


def test_brackets_and_rows():
    x, indices = there(5, 2), device_like.asarray(np.array([4, 0, 4]))
    out = device_like.empty((3, 2))
    for function, index in ((gather, (indices,)), (take_rows, indices)):
        lowered(function, x, index, out)
        np.testing.assert_array_equal(out.get(), x.get()[[4, 0, 4]])
    lowered(scatter, x, (indices,), 0.0)
    assert not x.get()[[0, 4]].any()
    added = device_like.zeros(5)
    lowered(np.add.at, added, indices, 1.0)
    np.testing.assert_array_equal(added.get(), [1, 0, 0, 0, 2])


def test_what_the_module_has_not_is_refused_and_what_is_none_of_numpys_left():
    for function, named in (
        (np.add.accumulate, {}),
        (np.subtract.reduce, {"axis": 0}),
        (np.add.reduce, {"initial": 3.0}),
        (np.add, {"where": np.array([True])}),
        (np.maximum.reduce, {"dtype": np.float32}),
    ):
        with pytest.raises(NotRecordableError, match="on a device"):
            on_device(device_like, function, named)
    assert on_device(device_like, print, {}) is None
    assert on_device(device_like, lambda: None, {}) is None


# -- Products by addresses, with a BLAS of the test's own that works as cuBLAS is told to -----


class ByAddresses:
    """Products as a BLAS by columns makes them: c' = op(b) op(a), read from memory itself."""

    def ready(self, kind, shape, a, b, c):
        m, k, n = shape
        letter = {4: ctypes.c_float, 8: ctypes.c_double}[kind.itemsize]

        def lines(address, count, length, leading):
            span = (count - 1) * leading + length
            flat = np.ctypeslib.as_array((letter * span).from_address(address))
            strides = (leading * kind.itemsize, kind.itemsize)
            return np.lib.stride_tricks.as_strided(flat, (count, length), strides)

        def matrix(one, which, rows, columns):
            if one.by_columns:
                return lines(one.at[which], columns, rows, one.leading).T
            return lines(one.at[which], rows, columns, one.leading)

        def run():
            assert len(a.at) == len(b.at) == len(c.at)
            assert not c.by_columns
            for which in range(len(c.at)):
                made = matrix(a, which, m, k) @ matrix(b, which, k, n)
                matrix(c, which, m, n)[...] = made

        return run


@st.composite
def arrays(draw, shape):
    """An array of ``shape`` that lies in a larger one, its axes in any order."""
    kind = draw(st.shared(st.sampled_from([np.float32, np.float64]), key="kind"))
    order = draw(st.permutations(range(len(shape))))
    room = [shape[axis] + draw(st.integers(0, 2)) for axis in order]
    numbers = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(room).astype(kind)
    part = numbers[tuple(slice(0, shape[axis]) for axis in order)]
    return part.transpose(np.argsort(order)) if shape else part


sizes = st.integers(1, 4)


@given(st.data())
def test_it_is_the_product_of_numpy_however_the_arrays_lie(data):
    m, k, n = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    ahead = tuple(data.draw(st.lists(sizes, max_size=2)))
    repeated = tuple(1 if data.draw(st.booleans()) else count for count in ahead)
    a, b = data.draw(arrays((*ahead, m, k))), data.draw(arrays((*repeated, k, n)))
    out = data.draw(arrays((*ahead, m, n)))
    want = np.matmul(a, b)
    run = product(ByAddresses(), a, b, out)
    if run is not None:
        run()
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    lie_plainly = all(array.flags.c_contiguous for array in (a, b, out))
    assert run is not None or not lie_plainly


@given(st.data())
def test_vectors_are_rows_and_columns(data):
    k, n = data.draw(sizes), data.draw(sizes)
    row, square = data.draw(arrays((k,))), data.draw(arrays((k, n)))
    for a, b, shape in ((row, square, (n,)), (square.T, row, (n,))):
        out = np.empty(shape, a.dtype)
        run = product(ByAddresses(), a, b, out)
        if run is not None:
            run()
            np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


def test_other_types_and_gaps_along_both_axes_are_left_to_others():
    a, b, out = np.ones((2, 3)), np.ones((3, 2)), np.zeros((2, 2))
    narrow = [array.astype(np.float16) for array in (a, b, out)]
    assert product(ByAddresses(), *narrow) is None
    assert product(ByAddresses(), a.astype(np.float32), b, out) is None
    assert product(ByAddresses(), np.ones((4, 6))[::2, ::2], b, out) is None
    assert product(ByAddresses(), np.ones((2, 0)), np.ones((0, 2)), out) is None


# -- Graphs of launches, on a device that captures what it is told ----------------------------


NAMES = "abcdef"


class Calls:
    """A call for each name, which notes it behind those before; some are not to be captured."""

    def __init__(self, refused="", breaking=""):
        self.noted = device_like.zeros(len(NAMES) + 1, np.int64)
        self.refused, self.breaking = refused, breaking
        self.graphs = Graphs(device_like, [lambda name=name: self.call(name) for name in NAMES])

    def call(self, name):
        captured = device_like.cuda.get_current_stream().capture is not None
        if captured and name in self.refused:
            raise NotImplementedError(f"{name} cannot be captured")
        if captured and name in self.breaking:
            with contextlib.suppress(device_like.cuda.runtime.CUDARuntimeError):
                float(self.noted[0])
        # How many there are so far, as a new array that a pool has to hold.
        count = self.noted[:1] + 1
        self.noted[NAMES.index(name) + 1 :][:1] = count
        self.noted[:1] = count

    def run(self):
        self.noted.fill(0)
        with watch_device() as watch:
            self.graphs()
        count, *places = self.noted.tolist()
        assert count == len(NAMES)
        return "".join(sorted(NAMES, key=lambda name: places[NAMES.index(name)])), watch


def test_the_first_time_is_by_calls_and_then_one_graph():
    calls = Calls()
    for time in range(3):
        order, watch = calls.run()
        assert order == NAMES
        assert (watch.graphs, bool(watch.launches)) == ((1, False) if time else (0, True))
    assert calls.graphs.refused == {}
    assert (calls.graphs.graphs, calls.graphs.captured) == (1, len(NAMES))


@pytest.mark.parametrize(
    ("refused", "graphs"),
    [
        ("c", ["ab", "def"]), ("a", ["bcdef"]), ("f", ["abcde"]), ("bd", ["a", "c", "ef"]),
        ("cd", ["ab", "ef"]), ("abcdef", []),
    ],
)  # fmt: skip
def test_what_is_refused_is_called_between_graphs(refused, graphs):
    calls = Calls(refused)
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    made = calls.graphs
    assert watch.graphs == made.graphs
    # One call alone is as well launched by itself.
    assert made.graphs == sum(len(graph) > 1 for graph in graphs)
    assert made.captured == sum(len(graph) for graph in graphs if len(graph) > 1)
    assert sorted(made.refused) == [NAMES.index(name) for name in refused]
    assert all("cannot be captured" in why for why in made.refused.values())


def test_a_capture_that_breaks_leaves_all_to_calls():
    calls = Calls(breaking="d")
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    assert (watch.graphs, calls.graphs.graphs) == (0, 0)
    assert "invalidated by float" in calls.graphs.refused[0]


def test_a_call_that_waits_is_made_between_graphs():
    calls = Calls()
    calls.graphs = Graphs(
        device_like, [*calls.graphs._calls[:3], calls.noted.tolist, *calls.graphs._calls[3:]]
    )
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    assert (watch.graphs, watch.reads) == (2, 1)
    assert "tolist" in calls.graphs.refused[3]


# -- Element-wise calls as one --------------------------------------------------------------


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


@settings(max_examples=15 * settings().max_examples)
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
