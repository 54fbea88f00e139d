"""Arithmetic of large arrays by the backend's kernels: fewer calls, to the bits of the layers."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet.device import Device
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops.numpy import NumpyOps
from singanet.optimizer import (
    SGD,
    Adam,
    Adamax,
    AdamW,
    AMSGrad,
    ElementWise,
    Lion,
    NAdam,
    RMSProp,
)
from singanet.program import lower_sweeps
from singanet.training import Callback
from tests.program.twins import Twins

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
    """NumPy's kernels, and sweeps of whatever size."""

    def has_sweep(self, function, size):
        return function in FUNCTIONS or function is np.sqrt

    def sweep(self, function, size, number, scaled, work):
        known = function in FUNCTIONS or function is np.sqrt
        return Kernel(function, size, number, scaled) if known else None


def net_of(ops):
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("fc1", 12, input_sample_shape=(7,)))
    net.add(Activation("relu"))
    net.add(Dense("fc2", 5))
    net.device = Device("cpu", ops)
    return net


def steps(optimizer, count=4, ops=None):
    """Steps by the layers and by a program, which are compared to the bit."""
    rng = np.random.default_rng(0)
    twins = Twins(lambda: net_of(ops or Sweeping(np)), optimizer)
    for _ in range(count):
        twins.step(rng.standard_normal((3, 7), np.float32), rng.integers(0, 5, 3))
    return twins


def kernels_of(twins):
    return twins.nets[0].programs.reports()[-1].kernels


def names_of(twins):
    return [kernel.name for kernel in kernels_of(twins)]


@pytest.fixture(params=[1 << 17, 16], ids=["whole", "in blocks"])
def block(request, monkeypatch):
    monkeypatch.setattr(lower_sweeps, "_BLOCK", request.param)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(SGD, lr=lambda step: 0.1 / (1 + step)),
        partial(SGD, lr=0.1, momentum=0.9),
        partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        partial(SGD, lr=0.1, momentum=0.9, dampening=0.5, constraint=0.1),
        partial(Adam, lr=0.01),
        partial(AdamW, lr=0.01, weight_decay=0.1),
        partial(RMSProp, lr=0.01),
        partial(Lion, lr=0.01),
        partial(NAdam, lr=0.01),
    ],
)
def test_updates_have_the_bits_of_the_layers(block, optimizer):
    names = names_of(steps(optimizer))
    assert names.count("sweeps") + names.count("subtract") >= 1


@pytest.mark.parametrize("optimizer", [partial(SGD, lr=0.1, momentum=0.9), AdamW, Lion])
@pytest.mark.parametrize("lanes", [1, 2])
def test_numpys_own_functions_go_block_by_block_over_what_is_large(monkeypatch, optimizer, lanes):
    class InLanes(NumpyOps):
        def lanes(self, samples, multiplications):
            cuts = [samples * k // lanes for k in range(lanes + 1)]
            return [slice(a, b) for a, b in pairwise(cuts)]

    monkeypatch.setattr(lower_sweeps, "_BLOCK", 16)
    kernels = kernels_of(steps(optimizer, ops=InLanes(np)))
    assert "sweeps" in [kernel.name for kernel in kernels]


@pytest.mark.parametrize("ops", [Sweeping, NumpyOps])
def test_scratch_is_of_a_block(monkeypatch, ops):
    """The rule's scratch was as large as the parameter."""
    monkeypatch.setattr(lower_sweeps, "_BLOCK", 16)
    twins = steps(AdamW, ops=ops(np))
    report = twins.nets[0].programs.reports()[-1]
    for kernel in report.kernels:
        if kernel.name == "sweeps":
            made = set(kernel.writes) - set(kernel.reads)
            planned = [report.buffers[b] for b in made if report.buffers[b].kind == "temporary"]
            assert planned
            assert all(buffer.nbytes <= 4 * 48 for buffer in planned)


def test_a_step_of_momentum_is_two_kernels_a_block(block):
    bound = []

    class Counting(Sweeping):
        def sweep(self, function, size, number, scaled, work):
            kernel = super().sweep(function, size, number, scaled, work)
            if kernel is not None:
                kernel.bound = lambda *given: (
                    bound.append((function, scaled)) or (Kernel.bound(kernel, *given))
                )
            return kernel

    steps(partial(SGD, lr=0.1, momentum=0.9), ops=Counting(np))
    assert {(np.add, (True, True)), (np.subtract, (False, False))} <= {*bound}


def test_what_has_no_kernel_once_it_is_fused_stays_numpys(block):
    class WithoutScales(Sweeping):
        def sweep(self, function, size, number, scaled, work):
            return None if any(scaled) else super().sweep(function, size, number, scaled, work)

    names = names_of(steps(partial(SGD, lr=0.1, momentum=0.9), ops=WithoutScales(np)))
    assert "sweeps" not in names
    assert "multiply" in names


@pytest.mark.parametrize("rule", [Lion, Adamax, AMSGrad])
def test_what_numpy_alone_has_goes_between_kernels(block, rule):
    """Signs, maxima and magnitudes ended a call, so these rules went over the arrays anew."""
    kernels = kernels_of(steps(partial(rule, lr=0.01)))
    assert [kernel.name for kernel in kernels if kernel.phase == "update"] == ["sweeps"]


def test_what_numpy_alone_has_is_shared_by_lanes(block):
    class InLanes(Sweeping):
        def lanes(self, samples, multiplications):
            return [slice(0, samples // 2), slice(samples // 2, samples)]

    steps(partial(Lion, lr=0.01), ops=InLanes(np))


def test_kernels_are_asked_for_once_it_is_known_which():
    asked = set()

    class Counting(Sweeping):
        def sweep(self, function, size, number, scaled, work):
            asked.add((function, size))
            return super().sweep(function, size, number, scaled, work)

    steps(partial(SGD, lr=0.1, momentum=0.9), ops=Counting(np))
    # The products are scales of the sums: to prepare kernels of their own would be for nothing.
    assert {function for function, size in asked if size > 100} == {np.add, np.subtract}


class Drawn(ElementWise):
    """A rule of whatever arithmetic."""

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


class Keeping(SGD):
    """A user's, which keeps what it is given."""

    def __init__(self):
        super().__init__(lr=0.1, momentum=0.9)
        self.kept = []

    def update(self, names, values, grads, scale=1.0):
        self.kept += [(grad, grad.copy()) for grad in grads]
        super().update(names, values, grads, scale)


def test_gradients_that_a_users_optimizer_keeps_stay():
    twins = steps(Keeping)
    assert all(np.array_equal(*pair) for rule in twins.optimizers for pair in rule.kept)


class Doubling(Callback):
    """A user's, which looks at gradients and changes them before the update."""

    def on_layer_gradients(self, names, values, grads):
        for grad in grads:
            grad *= 2


def test_a_users_callback_changes_gradients_before():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 7), np.float32), rng.integers(0, 5, 12)
    values = []
    for ops in (Sweeping(np), NumpyOps(np)):
        net = net_of(ops)
        net.compile(SGD(lr=0.1, momentum=0.9), SoftmaxCrossEntropy())
        net.fit(x, y, batch_size=3, epochs=2, callbacks=[Doubling()], verbose=False, shuffle=False)
        values.append([param.value for param in net.params()])
    assert all(map(np.array_equal, *values))


def test_nets_in_several_threads_are_as_alone():
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((3, 7), np.float32), rng.integers(0, 5, 3)) for _ in range(6)]

    def trained(made, k):
        net = FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
        net.add(Dense("fc1", 256, input_sample_shape=(7,)))
        net.add(Dense("fc2", 256))
        net.add(Dense("fc3", 5))
        optimizer = Adam(lr=0.01)
        for batch in batches:
            net.step(*batch, optimizer)
        made[k] = b"".join(param.value.tobytes() for param in net.params())

    made = {}
    threads = [threading.Thread(target=trained, args=(made, k)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trained(made, "alone")
    assert len(set(made.values())) == 1
    assert len(made) == 5
