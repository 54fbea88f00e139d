"""Arithmetic of large arrays by the backend's kernels: fewer calls, to the bits of the layers."""

import ctypes
import threading
import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet.base.heap import address
from singanet.device import Device
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.models import build
from singanet.ops import numpy_ops
from singanet.ops import threads as counts
from singanet.ops.casts import has_compiler
from singanet.ops.compiled import sizes
from singanet.ops.llvm import LlvmOps, plans
from singanet.ops.numpy import NumpyOps, linear
from singanet.optimizer import SGD, Adam, Adamax, AdamW, AMSGrad, ElementWise, Lion, NAdam, RMSProp
from singanet.program import joint_sweeps, lower_sweeps, lowering
from singanet.program.ir import Call, Ref
from singanet.program.lower_sweeps import ready
from singanet.training import Callback
from tests.kit.threads import in_threads
from tests.program.program_case import Net, below, of
from tests.program.twins import Twins
from tests.program.user_parts import KeepsGradients

FUNCTIONS = (np.add, np.subtract, np.multiply, np.divide)


class Kernel:
    """A sweep by its definition, on memory at addresses."""

    threads, scratch = 2, 0

    def __init__(self, function, size, number, scaled):
        self.function, self.size, self.number, self.scaled = function, size, number, scaled

    def bound(self, addresses, scratch):
        sizes = [self.size] * (1 + self.function.nin) + [0] * sum(self.scaled)
        if self.number:
            sizes[self.function.nin] = 0
        out, *rest = map(at, addresses, sizes)
        operands, factors = rest[: self.function.nin], iter(rest[self.function.nin :])
        scales = [next(factors) if is_it else None for is_it in self.scaled]

        def run():
            pairs = zip(operands, scales, strict=True)
            self.function(*[a if scale is None else a * scale for a, scale in pairs], out=out)

        return run

    def run(self, addresses, scratch):
        self.bound(addresses, scratch)()


def at(address, size):
    """As many float32 as ``size`` there; one without axes for 0."""
    raw = (ctypes.c_float * max(size, 1)).from_address(address)
    array = np.frombuffer(raw, np.float32)
    return array if size else array.reshape(())


class Sweeping(NumpyOps):
    """NumPy's kernels, and sweeps of any size; ``asked`` and ``bound`` note them."""

    scales = True

    def __init__(self):
        super().__init__(np)
        self.asked, self.bound = set(), set()

    def has_sweep(self, function, size):
        return function in FUNCTIONS or function is np.sqrt

    def sweep(self, function, size, number, scaled, work):
        if size > 100:
            self.asked.add(function)
        if not self.has_sweep(function, size) or (any(scaled) and not self.scales):
            return None
        kernel = Kernel(function, size, number, scaled)
        kernel.bound = lambda *given: (
            self.bound.add((function, scaled)) or Kernel.bound(kernel, *given)
        )
        return kernel


class Plain(NumpyOps):
    def __init__(self):
        super().__init__(np)


class WithoutScales(Sweeping):
    scales = False


def in_lanes(base, count):
    class InLanes(base):
        def lanes(self, samples, multiplications):
            cuts = [samples * k // count for k in range(count + 1)]
            return [slice(a, b) for a, b in pairwise(cuts)]

    return InLanes


def net_of(ops):
    layers = [Dense("fc1", 12, input_sample_shape=(7,)), Activation("relu"), Dense("fc2", 5)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    net.device = Device("cpu", ops)
    return net


BATCHES = Net(None, of(7), below(5)).batches(4, 3)


def steps(optimizer, count=4, ops=None):
    """Steps by the layers and by a program, which are compared to the bit; its kernels."""
    ops = ops or Sweeping()
    twins = Twins(lambda: net_of(ops), optimizer)
    twins.train(BATCHES[:count])
    return twins, twins.recorded.programs.reports()[-1]


def names_of(report):
    return [kernel.name for kernel in report.kernels]


@pytest.fixture(params=[1 << 17, 16], ids=["whole", "in blocks"])
def block(request, monkeypatch):
    monkeypatch.setattr(lower_sweeps, "_BLOCK", request.param)


momentum = partial(SGD, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(SGD, lr=lambda step: 0.1 / (1 + step)),
        momentum,
        partial(momentum, nesterov=True, weight_decay=1e-3),
        partial(momentum, dampening=0.5, constraint=0.1),
        partial(Adam, lr=0.01),
        partial(AdamW, lr=0.01, weight_decay=0.1),
        partial(RMSProp, lr=0.01),
        partial(NAdam, lr=0.01),
    ],
)
def test_updates_have_the_bits_of_the_layers(block, optimizer):
    names = names_of(steps(optimizer)[1])
    assert names.count("sweeps") + names.count("subtract") >= 1


@pytest.mark.parametrize("rule", [Lion, Adamax, AMSGrad])
@pytest.mark.parametrize("ops", [Sweeping, in_lanes(Sweeping, 2)])
def test_functions_that_numpy_alone_has_go_between_kernels(block, rule, ops):
    """Signs, maxima and magnitudes ended a call, so these rules went over the arrays anew."""
    _, report = steps(partial(rule, lr=0.01), ops=ops())
    updates = [kernel.name for kernel in report.kernels if kernel.phase == "update"]
    assert set(updates) == {"sweeps"}
    assert len(updates) == 1 or ops is not Sweeping


@pytest.mark.parametrize("optimizer", [momentum, AdamW, Lion])
@pytest.mark.parametrize("lanes", [1, 2])
def test_numpys_own_functions_go_block_by_block_over_large_arrays(monkeypatch, optimizer, lanes):
    monkeypatch.setattr(lower_sweeps, "_BLOCK", 16)
    assert "sweeps" in names_of(steps(optimizer, ops=in_lanes(Plain, lanes)())[1])


@pytest.mark.parametrize("ops", [Sweeping, Plain])
def test_scratch_is_of_a_block(monkeypatch, ops):
    """The rule's scratch was as large as the parameter."""
    monkeypatch.setattr(lower_sweeps, "_BLOCK", 16)
    _, report = steps(AdamW, ops=ops())
    for kernel in report.kernels:
        if kernel.name == "sweeps":
            made = set(kernel.writes) - set(kernel.reads)
            planned = [report.buffers[b] for b in made if report.buffers[b].kind == "temporary"]
            assert planned
            assert all(buffer.nbytes <= 4 * 48 for buffer in planned)


def test_a_step_of_momentum_is_two_kernels_a_block(block):
    ops = Sweeping()
    steps(momentum, ops=ops)
    assert {(np.add, (True, True)), (np.subtract, (False, False))} <= ops.bound
    # The products are scales of the sums: to prepare kernels of their own would be for nothing.
    assert ops.asked == (set() if lower_sweeps._BLOCK == 16 else {np.add, np.subtract})
    names = names_of(steps(momentum, ops=WithoutScales())[1])
    assert "sweeps" not in names
    assert "multiply" in names


def test_users_optimizers_and_callbacks_see_gradients_as_they_are():
    twins, _ = steps(lambda: KeepsGradients(momentum()))
    twins.both(lambda _, optimizer: optimizer.finish())
    twins.expect_equal()

    class Doubling(Callback):
        def on_layer_gradients(self, names, values, grads):
            for grad in grads:
                grad *= 2

    x, y = map(np.concatenate, zip(*BATCHES, strict=True))
    twins = Twins(lambda: net_of(Sweeping()), momentum)
    twins.fit(x, y, 3, 2, callbacks=[Doubling()], shuffle=False)


def test_nets_in_several_threads_are_as_alone():
    made = {}

    def trained(k):
        layers = [Dense("fc1", 256, input_sample_shape=(7,)), Dense("fc2", 256), Dense("fc3", 5)]
        net, optimizer = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0), Adam(lr=0.01)
        for batch in (*BATCHES, *BATCHES[:2]):
            net.step(*batch, optimizer)
        made[k] = b"".join(param.value.tobytes() for param in net.params())

    in_threads(*[partial(trained, k) for k in range(4)])
    trained("alone")
    assert len(set(made.values())) == 1
    assert len(made) == 5


class Drawn(ElementWise):
    slots = ("one", "two")

    def __init__(self, program):
        super().__init__(lr=0.1)
        self.program = program

    def _scalars(self, state, rate):
        return rate, 0.5 + 0.1 * state.step

    def _rule(self, xp, w, g, arrays, s, *numbers):
        mine = [w, *arrays, s]
        xp.multiply(g, numbers[0], out=s)
        for function, out, a, b, swapped in self.program:
            operand = [*mine, g, *numbers, 0.25][b]
            given = (operand, mine[a]) if swapped else (mine[a], operand)
            function(*given[-function.nin :], out=mine[out])


LINES = st.tuples(
    st.sampled_from(
        (np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.power, np.sign, np.absolute)
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 7),
    st.booleans(),
)


@given(program=st.lists(LINES, max_size=9), blocks=st.sampled_from([16, 1 << 17]))
@settings(max_examples=30, deadline=None)
def test_any_arithmetic_has_the_bits_of_the_layers(program, blocks):
    known = lower_sweeps._BLOCK
    lower_sweeps._BLOCK = blocks
    try:
        with np.errstate(all="ignore"):
            steps(lambda: Drawn(program), count=3)
    finally:
        lower_sweeps._BLOCK = known


# -- One compiled function for all steps of a rule -----------------------------------------------

compiles = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


@pytest.fixture
def jointly(monkeypatch):
    """Few elements are enough, and two threads share them."""
    monkeypatch.setattr(joint_sweeps, "_LEAST", 1)
    monkeypatch.setattr(plans, "SHARED", 1)
    monkeypatch.setattr(counts, "_setting", counts._Setting())
    counts.set_threads(2)


def updates_of(report):
    return [kernel for kernel in report.kernels if kernel.phase == "update"]


@compiles
@pytest.mark.parametrize(
    "rule", [momentum, partial(momentum, nesterov=True), AdamW, AMSGrad, Adamax, Lion, NAdam]
)
def test_a_compiled_rule_has_the_bits_of_the_layers_and_no_scratch(jointly, rule):
    _, report = steps(partial(rule, lr=0.01, weight_decay=0.1), ops=LlvmOps())
    updates = updates_of(report)
    assert {kernel.name for kernel in updates} == {"sweeps"}
    kinds = {report.buffers[b].kind for kernel in updates for b in kernel.writes}
    assert "temporary" not in kinds


@compiles
def test_rules_with_other_functions_are_not_compiled(jointly):
    program, ops = [(np.ceil, 3, 3, 5, False), (np.subtract, 0, 0, 2, False)], LlvmOps()
    steps(partial(Drawn, program), ops=ops)
    assert ops.joint_sweep(64, 2, 0, (("ceil", 1, (0,)),)) is None
    assert ops.joint_sweep(64, 2, 0, (("sqrt", 1, (0,)),)) is not None


SWEPT_LINES = st.tuples(
    st.sampled_from([getattr(np, name) for name in sorted(sizes.SWEPT)]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 7),
    st.booleans(),
)


@compiles
@pytest.mark.slow
@given(program=st.lists(SWEPT_LINES, min_size=1, max_size=9))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_compiled_arithmetic_has_the_bits_of_the_layers(jointly, program):
    with np.errstate(all="ignore"):
        steps(partial(Drawn, program), count=3, ops=LlvmOps())


@compiles
@pytest.mark.parametrize("size", [1, 16, 37])
@pytest.mark.parametrize("name", sorted(sizes.SWEPT))
def test_compiled_functions_are_numpys(jointly, name, size, rng):
    function, inf = getattr(np, name), np.inf
    special = np.array([0.0, -0.0, 1.0, -1.0, inf, -inf, np.nan, 1e-40, 3e38, -3e38], np.float32)
    a, b = (rng.choice([*special, *rng.standard_normal(9)], size).astype("f") for _ in range(2))
    number, out = np.float32(1 / 3) * np.ones((), np.float32), np.empty_like(a)
    with np.errstate(all="ignore"):
        for other in (b, number)[: function.nin]:
            operands = [a, other][: function.nin]
            wanted = function(*operands)
            given, scalars = ([a, b, out], []) if other is b else ([a, out], [number])
            places = {id(array): k for k, array in enumerate((*given, *scalars))}
            line = name, places[id(out)], tuple(places[id(array)] for array in operands)
            plan = LlvmOps().joint_sweep(size, len(given), len(scalars), (line,))
            plan.run([*map(address, (*given, *scalars))], 0)
            # A maximum of zeros may have either sign.
            np.testing.assert_array_equal(out, wanted)


# -- Kernels in lanes: one call of a program, done side by side, to the bits of the layers ----


@pytest.fixture
def several(monkeypatch):
    """Three lanes, however little work there is."""
    monkeypatch.setattr(linear, "LEAST", 1)
    monkeypatch.setattr(linear, "default_threads", lambda: 3)


def batch(shape, samples, rng):
    x = rng.standard_normal((samples, *shape)).astype(np.float32)
    return x, rng.integers(0, 10, samples)


def by_numpy(model, shape=(1, 28, 28)):
    """A net whose kernels are NumPy's: oneDNN has threads of its own."""
    net = build(model, shape, 10, seed=0)
    net.device = Device("cpu", numpy_ops)
    return net


def lanes_of(net):
    """The kernels in lanes of the program used last, and what it consists of."""
    report = net.programs.reports()[-1]
    return [kernel for kernel in report.kernels if kernel.name == "lanes"], report


@pytest.mark.parametrize("recompute", ["none", "cheap"])
@pytest.mark.parametrize(
    "model",
    ["lenet", *(pytest.param(m, marks=pytest.mark.slow) for m in ("resnet20", "mobilenet"))],
)
def test_replays_have_the_bits_of_the_layers(several, model, recompute, rng):
    shape = (1, 28, 28) if model == "lenet" else (3, 32, 32)
    twins = Twins(lambda: by_numpy(model, shape), lambda: SGD(lr=0.01, momentum=0.9))
    twins.nets[0].programs.recompute = recompute
    for samples in (5, 5, 5, 2, 2):
        twins.step(*batch(shape, samples, rng))
    for _ in range(3):
        twins.forward(False, batch(shape, 5, rng)[0])
    assert len(lanes_of(twins.nets[0])[0]) >= 2


def test_lanes_run_in_threads_of_their_own(several, monkeypatch, rng):
    from singanet.program import join_lanes as joined

    seen = []

    def watched(parts):
        seen.append(len(parts))
        meet = threading.Barrier(len(parts))
        # Each lane waits for the others: it passes only if they are under way together.
        side_by_side([[lambda: meet.wait(timeout=30), *part] for part in parts])

    side_by_side = joined.side_by_side
    monkeypatch.setattr(joined, "side_by_side", watched)
    net, rule = by_numpy("lenet"), SGD(lr=0.01)
    x, y = batch((1, 28, 28), 6, rng)
    for _ in range(3):
        net.step(x, y, rule)
    assert len(seen) >= 4
    assert set(seen) == {3}


@pytest.mark.parametrize("threads", [1, 2])
def test_two_threads_have_lanes_and_one_has_none(several, monkeypatch, threads, rng):
    monkeypatch.setattr(linear, "default_threads", lambda: threads)
    net = by_numpy("lenet")
    x, _ = batch((1, 28, 28), 6, rng)
    for _ in range(2):
        net.forward(False, x)
    assert bool(lanes_of(net)[0]) == (threads == 2)


@pytest.mark.parametrize("state", ["ignore", "raise"])
def test_the_callers_error_state_holds_in_every_lane(several, state, rng):
    net = by_numpy("lenet")
    x, _ = batch((1, 28, 28), 6, rng)
    net.forward(False, x)
    net.forward(False, x)
    assert lanes_of(net)[0]
    # Overflows in the last lane alone.
    x[4:] = np.finfo(np.float32).max
    with np.errstate(all=state):
        if state == "ignore":
            net.forward(False, x)
        else:
            with pytest.raises(FloatingPointError):
                net.forward(False, x)


def test_lanes_have_memory_of_their_own(several, rng):
    net, rule = by_numpy("lenet"), SGD(lr=0.01)
    for _ in range(2):
        net.step(*batch((1, 28, 28), 6, rng), rule)
    joined, report = lanes_of(net)
    assert joined
    for kernel in joined:
        places = sorted(
            (report.layout.offsets[buffer], report.buffers[buffer].nbytes)
            for buffer in kernel.writes
            if report.buffers[buffer].planned
        )
        for (first, size), (second, _) in pairwise(places):
            assert first + size <= second


def test_a_step_in_lanes_is_no_more_work(monkeypatch):
    """Each call of a lane goes over its own part of the memory alone."""
    sizes = []
    monkeypatch.setattr(linear, "LEAST", 1)
    for threads in (1, 3):
        monkeypatch.setattr(linear, "default_threads", lambda n=threads: n)
        plan = by_numpy("lenet").plan(64, SGD(lr=0.1), "1GB", allow=())
        sizes.append(plan.chosen.step.work)
    assert sizes[1] < 2 * sizes[0]


# -- Calls in their quickest form: the same bits as the calls themselves ----------------------


SIZES = st.sampled_from([1, 2, 3, 7, 10, 16, 31, 64, 130])


def like(shape, kind, order, rng):
    made = rng.standard_normal(shape).astype(kind)
    if order == "gaps" and made.ndim == 2:
        return np.repeat(made, 2, axis=1)[:, ::2]
    return np.asarray(made, order="F" if order == "F" else "C")


@given(
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["f", "d"]),
    st.sampled_from(["C", "F", "gaps"]),
    st.sampled_from(["C", "F", "gaps"]),
    st.sampled_from(["matrices", "vector first", "vector last"]),
)
def test_products_are_those_of_matmul(m, k, n, kind, first, last, form):
    rng = np.random.default_rng(0)
    a = like((k,) if form == "vector first" else (m, k), kind, first, rng)
    b = like((k,) if form == "vector last" else (k, n), kind, last, rng)
    wanted = np.matmul(a, b)
    out = np.empty_like(wanted, order="C")
    ready(np.matmul, (a, b), {"out": out})()
    assert out.tobytes() == wanted.tobytes()


X, Y = np.random.default_rng(1).standard_normal((2, 4, 5))
NARROW, COUNTS = X.astype(np.float32), (10 * X).astype(np.int64)
CALLS = {
    # A function, its operands, and how an output is given to it: its shape and type.
    "product of halves": (np.matmul, (X.astype("e"), X.T.astype("e")), {}),
    "product of integers": (np.matmul, (COUNTS, COUNTS.T), {}),
    "two results": (np.modf, (X,), {}),
    "where": (np.add, (X, 1.0), {"where": Y > 0}),
    "part of a reduction": (np.multiply.reduce, (X,), {"axis": 0, "where": X > 0, "initial": 1.0}),
    "from a start": (np.multiply.reduce, (X,), {"axis": 0, "initial": 3.0}),
    "where the largest are": (np.argmax, (X,), {"axis": 1}),
    **{
        f"sum {axis} {kept}": (np.add.reduce, (NARROW,), {**axis, **kept})
        for axis in ({}, {"axis": 1}, {"axis": None}, {"axis": (0, 1)})
        for kept in ({}, {"keepdims": True}, {"keepdims": False, "dtype": "d"})
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_leave_what_numpy_does(name):
    function, operands, named = CALLS[name]
    # What is left out stays as it was.
    filled = {"out": np.zeros_like(X)} if function is np.add else {}
    wanted = function(*operands, **named, **filled)
    results = wanted if isinstance(wanted, tuple) else (np.asarray(wanted),)
    out = tuple(np.zeros_like(result) for result in results)
    ready(function, operands, {**named, "out": out if len(out) > 1 else out[0]})()
    for made, result in zip(out, results, strict=True):
        assert made.tobytes() == result.tobytes()


@pytest.mark.parametrize("number", [0, 0.1, -3, 1e-300, 1e30, 2**70])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
@pytest.mark.parametrize("function", [np.add, np.multiply, np.maximum, np.greater, np.power])
def test_numbers_among_the_operands(function, kind, number, rng):
    x = np.abs(10 * rng.standard_normal(9)).astype(kind)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for operands in ((x, number), (number, x)):
            try:
                result = function(*operands)
            except (OverflowError, ValueError):
                # What NumPy refuses is not recorded.
                return
            out = np.empty_like(result)
            ready(function, operands, {"out": out})()
            assert out.tobytes() == result.tobytes()


@pytest.mark.parametrize(
    ("kind", "source", "named", "wanted"),
    [
        ("f", np.arange(3.0), {}, [[0, 1, 2]] * 2),
        ("f", 5, {}, [[5] * 3] * 2),
        ("f", np.arange(3.0), {"where": np.arange(3) > 1}, [[7, 7, 2]] * 2),
        ("i8", np.arange(3.0), {"casting": "unsafe"}, [[0, 1, 2]] * 2),
        ("i8", np.arange(3.0), {}, None),
    ],
)
def test_copies(kind, source, named, wanted):
    target = np.full((2, 3), 7, kind)
    if wanted is None:
        with pytest.raises(TypeError, match="Cannot cast"):
            ready(np.copyto, (target, source), named)()
    else:
        ready(np.copyto, (target, source), named)()
        np.testing.assert_array_equal(target, wanted)


def test_anything_else_is_called_as_it_is():
    seen = []
    ready(lambda *given, **named: seen.append((given, named)), (1,), {"two": 2})()
    assert seen == [((1,), {"two": 2})]


# -- Element-wise calls that threads share --------------------------------------------------


@pytest.fixture
def shared(several, monkeypatch):
    monkeypatch.setattr(lowering, "cpu_ops", lambda: numpy_ops)


def ref_of(array, token):
    return Ref(token, 0, array.shape, array.strides, array.dtype)


def call_of(function, operands, out):
    """The call with each array as a token of its own, and the arrays by their places."""
    given = [ref_of(array, k) for k, array in enumerate(operands)]
    target = next((r for r, a in zip(given, operands, strict=True) if a is out), ref_of(out, 9))
    arrays = dict(zip(given, operands, strict=True)) | {target: out}
    if function is np.copyto:
        return Call(function, (target, *given), {}, (), ()), arrays
    return Call(function, tuple(given), {"out": target}, (), ()), arrays


@pytest.mark.parametrize("shape", [(7,), (5, 4), (1, 6), (3, 2, 4, 5), (2, 1, 1, 1)])
@pytest.mark.parametrize("order", ["C", "F", "channels last"])
@pytest.mark.parametrize("repeated", range(4))
@pytest.mark.parametrize("function", [np.add, np.maximum, np.greater, np.exp, np.copyto])
def test_parts_are_what_the_whole_is(shared, function, shape, order, repeated):
    rng = np.random.default_rng(0)

    def made(shape):
        x = rng.standard_normal(shape)
        if order == "channels last" and x.ndim == 4:
            return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        return np.asarray(x, order="F" if order == "F" else "C")

    narrow = [1 if repeated & 1 << k else size for k, size in enumerate(shape)]
    operands = [made(shape), made(narrow)][: getattr(function, "nin", 1)]
    out = np.empty_like(operands[0], bool if function is np.greater else None)
    if function is np.copyto:
        wanted = operands[0].copy()
    else:
        wanted = function(*operands)
    call, arrays = call_of(function, operands, out)
    lowering.ready_in_parts(call, arrays.__getitem__)()
    np.testing.assert_array_equal(out, wanted)


def test_in_place(shared):
    x, y = np.random.default_rng(0).standard_normal((2, 9, 4))
    wanted = x * y
    call, arrays = call_of(np.multiply, [x, y], x)
    lowering.ready_in_parts(call, arrays.__getitem__)()
    np.testing.assert_array_equal(x, wanted)


def names_of_threads(call, arrays, together=1):
    """The threads that ask for arrays when the call is made; so many of them at a time."""
    seen, all_there = [], threading.Barrier(together)
    original = lowering.ready_call

    def told(call, array_of):
        run = original(call, array_of)
        return lambda: (all_there.wait(60), seen.append(threading.current_thread().name), run())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "ready_call", told)
        lowering.ready_in_parts(call, arrays.__getitem__)()
    return seen


def test_each_part_in_a_thread(shared):
    x, out = np.ones((9, 4)), np.empty((9, 4))
    seen = names_of_threads(*call_of(np.exp, [x], out), together=3)
    assert len(seen) == 3
    assert sum(name.startswith("singanet") for name in seen) == 2


def test_what_moves_along_its_own_memory_is_left_alone(shared):
    memory = np.arange(12.0)
    refs = [Ref(0, 8 * first, (11,), (8,), memory.dtype) for first in (0, 1)]
    arrays = {refs[0]: memory[:-1], refs[1]: memory[1:]}
    wanted = memory[:-1] + memory[1:]
    call = Call(np.add, (refs[0], refs[1]), {"out": refs[1]}, (0,), (0,))
    assert len(names_of_threads(call, arrays)) == 1
    np.testing.assert_array_equal(memory[1:], wanted)


def test_products_are_left_alone(shared):
    x = np.ones((6, 6))
    assert len(names_of_threads(*call_of(np.matmul, [x, x], np.empty((6, 6))))) == 1
