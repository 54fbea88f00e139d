"""Plans: what they read and write, and calls of them that are bound to addresses."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from singanet.base.heap import private_bytes, trim
from singanet.base.kinds import PAGE
from singanet.ops import threads
from singanet.ops.casts import has_compiler
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.products import product
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes, Window
from tests.interrupts import struck_at

WINDOW = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
POOL = Window((2, 2), (2, 2), ((0, 0), (0, 0)))
GUARD = 64


# Kernels for which oneDNN has but its reference code, which is never taken, on other processors.
ONLY_BY_AVX512 = {"local_response._backward", "scores._backward"}


class Watched(OneDnnOps):
    """Keeps each plan with the arrays it ran on, as they were before and after.

    ``lacking`` names the kernels that oneDNN has not on this processor.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen, self.lacking = [], set()

    def runs(self, build, key, *arrays, passes=1):
        arrays = [array if array.flags.c_contiguous else array.T for array in arrays]
        before = [array.copy() for array in arrays]
        done = super().runs(build, key, *arrays, passes=passes)
        plan = self.runtime().plan(build, key, arrays[0].size * passes)
        after = [array.copy() for array in arrays]
        if plan is None:
            self.lacking.add(f"{build.__module__.rpartition('.')[2]}.{build.__name__}")
        else:
            self.seen.append((build.__name__, plan, before, after))
        return done


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def calls(ops):
    """Every kernel that the backend has."""
    x, w, dy = draw(4, 16, 12, 12), draw(32, 16, 3, 3), draw(4, 32, 12, 12, seed=1)
    c16, var = draw(16), abs(draw(16)) + 1
    ops.conv2d(x, w, draw(32), WINDOW)
    ops.conv2d_backward_data(dy, w, x.shape, WINDOW)
    ops.conv2d_backward_weights(x, dy, w.shape, WINDOW)
    deep, kernels = draw(12, 128, 16, 16), draw(128, 128, 3, 3)
    ops.conv2d(deep, kernels, None, WINDOW)
    ops.conv2d_backward_data(deep, kernels, deep.shape, WINDOW)
    ops.conv2d_backward_weights(deep, deep[::-1].copy(), kernels.shape, WINDOW)
    y, where = ops.max_pool(x, POOL, True)
    ops.max_pool(x, POOL, False)
    ops.max_pool_backward(y, where, x.shape, POOL)
    ops.avg_pool_backward(ops.avg_pool(x, POOL), x.shape, POOL)
    ops.batch_norm_train(x, c16, c16, 1e-3)
    ops.batch_norm(x, c16, c16, c16, var, 1e-3)
    ops.batch_norm_backward(x, x, c16, c16, var, False)
    _, mean, _, inverse, mask = ops.batch_norm_train(x, c16, c16, 1e-3, True)
    ops.batch_norm_backward(x, x, c16, mean, inverse, False, mask)
    large, c24 = draw(40, 24, 24, 24), draw(24) ** 2 + 1
    ops.max_pool(large, POOL, True)
    ops.max_pool(large, POOL, False)
    _, mean, _, inverse, mask = ops.batch_norm_train(large, c24, c24, 1e-3, True)
    ops.batch_norm(large, c24, c24, mean, c24, 1e-3)
    ops.batch_norm_backward(large, large, c24, mean, inverse, False, mask)
    rows = draw(64, 512)
    _, statistics = ops.layer_norm(rows, rows[0], rows[1], 1e-4)
    ops.layer_norm_backward(rows, rows, rows[0], statistics)
    ops.softmax_backward(rows, ops.softmax(rows))
    ops.lrn_backward(x, ops.lrn(x, 5, 0.1, 0.75, 1.0), 5, 0.1, 0.75, 1.0)
    long = draw(1 << 17)
    ops.activation_backward("tanh", long, ops.activation("tanh", long))
    ops.combine("add", [long, long[::-1].copy()], long.shape, True)
    ops.matmul(rows, rows.T)
    ops.affine(rows, draw(512, 32), draw(32))
    way, back = Direction(5), Direction(20, reverse=True)
    ends, biases = list(draw(2, 4, 8)), (rows[0, :24], rows[1, :24])
    case = RecurrentCase(draw(5, 4, 16), (draw(16, 32), draw(8, 32)), (rows[0, :32],), way)
    for keep in (False, True):
        made = ops.lstm_layer(case, ends, keep)
    ops.lstm_layer_backward(case, made, RecurrentSlopes(draw(5, 4, 8), ends, True))
    case = RecurrentCase(case.x, (draw(16, 24), draw(8, 24)), biases, way)
    for keep in (False, True):
        made = ops.gru_layer(case, ends[:1], keep)
    ops.gru_layer_backward(case, made, RecurrentSlopes(draw(5, 4, 8), ends[:1], True))
    case = RecurrentCase(draw(20, 4, 16), (draw(16, 8), draw(8, 8)), (rows[0, :8],), back)
    for keep in (False, True):
        made = ops.elman_layer(case, ends[:1], keep)
    ops.elman_layer_backward(case, made, RecurrentSlopes(draw(20, 4, 8), ends[:1], True))


@pytest.fixture
def watched(library_path):
    ops = Watched(library_path, required=True)
    calls(ops)
    return ops


@pytest.fixture
def seen(watched):
    return watched.seen


def test_every_kind_of_plan_is_there(watched):
    kinds = {type(plan).__name__ for _, plan, _, _ in watched.seen}
    compiled = {"CompiledPlan"} if has_compiler() else set()
    assert kinds == {"KernelPlan", "StagedPlan", *compiled}
    assert watched.lacking <= ONLY_BY_AVX512


def test_what_a_plan_writes_and_reads(seen):
    assert len({plan for _, plan, _, _ in seen}) >= 20
    for name, plan, before, after in seen:
        operands = [aligned(array) for array in before]
        for k in set(plan.writes) - set(plan.reads):
            operands[k].view(np.uint8)[...] = 0xFF
        given = [operand.tobytes() for operand in operands]
        run_bound(plan, operands)
        changed = {k for k, operand in enumerate(operands) if operand.tobytes() != given[k]}
        # What it reads too may be as it was: working memory in which a run before left the same.
        assert set(plan.writes) - set(plan.reads) <= changed <= set(plan.writes), name
        # Between them they cover every operand but a shift that no backward kernel looks at.
        assert set(plan.reads) | set(plan.writes) == set(range(len(after))), name


def test_what_is_not_read_does_not_matter(seen):
    """Operands that are written only may hold anything before."""
    for name, plan, before, after in seen:
        operands = [aligned(array) for array in before]
        for k in set(plan.writes) - set(plan.reads):
            operands[k].view(np.uint8)[...] = 0xFF
        run_bound(plan, operands)
        for k in plan.writes:
            # Notes have gaps that nothing fills.
            filled = operands[k] != 0xFF if operands[k].dtype == np.uint8 else ...
            np.testing.assert_array_equal(operands[k][filled], after[k][filled], err_msg=name)


def test_bound_calls_keep_to_their_memory(seen):
    """Each has its own addresses, and writes neither beside its operands nor beside its scratch."""
    for _, plan, before, after in seen:
        sets = [[aligned(array) for array in before] for _ in range(2)]
        scratch = [aligned(np.zeros(plan.scratch + GUARD, np.uint8)) for _ in sets]
        bound = [
            plan.bound([a.ctypes.data for a in operands], area.ctypes.data)
            for operands, area in zip(sets, scratch, strict=True)
        ]
        bound[1]()
        for k, array in enumerate(sets[0]):
            np.testing.assert_array_equal(array, before[k])
        bound[0]()
        for operands, area in zip(sets, scratch, strict=True):
            assert not area[plan.scratch :].any()
            for k, array in enumerate(operands):
                np.testing.assert_array_equal(array, after[k])


def test_a_bound_call_outlives_its_plan(library_path):
    ops = Watched(library_path, required=True)
    x = draw(64, 512)
    y = ops.softmax(x).copy()
    _, plan, before, _ = ops.seen.pop()
    operands = [aligned(array) for array in before]
    bound = plan.bound([array.ctypes.data for array in operands], 0)
    del plan, ops
    gc.collect()
    for _ in range(3):
        operands[1][...] = 0
        bound()
        np.testing.assert_array_equal(operands[1], y)


def test_a_bound_call_uses_the_threads_of_its_plan(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    runtime, x = ops.runtime(), draw(64, 512)
    ops.softmax(x)
    plan = next(iter(runtime._plans.values()))
    y = np.empty_like(x)
    bound = plan.bound([x.ctypes.data, y.ctypes.data], 0)
    runtime.team.use(plan.threads + 1)
    bound()
    assert runtime.team.size == plan.threads


def aligned(array):
    """A copy at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + GUARD, np.uint8)
    start = -raw.ctypes.data % GUARD
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_bound(plan, operands):
    scratch = aligned(np.zeros(plan.scratch, np.uint8))
    plan.bound([array.ctypes.data for array in operands], scratch.ctypes.data)()


def test_scratch_memory_is_its_own_wherever_an_interrupt_strikes(ops):
    """As it grows, and as a plan is pointed at it: the old one is given back."""
    runtime, rng = ops.runtime(), np.random.default_rng(0)

    def convolved(channels):
        x, w = (
            rng.standard_normal(s, np.float32) for s in ((2, channels, 9, 9), (8, channels, 3, 3))
        )
        return ops.conv2d(x, w, None, WINDOW)

    # Plans that are made already, and one of them with more scratch than the other.
    for channels in (3, 40):
        convolved(channels)
    line, struck = 0, True
    while struck:
        line += 1
        runtime.trim()
        convolved(3)
        struck = struck_at(line, lambda: convolved(40))
        buffer = runtime._buffer
        first = buffer.ctypes.data
        assert not len(buffer) or first <= runtime._base <= first + PAGE, line
    assert line > 20


@pytest.mark.skipif(private_bytes() is None, reason="the system does not say")
def test_kernels_of_shapes_that_have_gone_can_be_let_go(ops):
    before = private_bytes()
    for k in range(80):
        a, b = np.ones((40 + k, 64 + k), np.float32), np.ones((64 + k, 96 + k), np.float32)
        assert ops.runs(product, (40 + k, 64 + k, 96 + k, False, False, False), a @ b, a, b)
    grown = private_bytes() - before
    ops.trim(prepared=True)
    trim()
    # Where no kernel has code of its own there is nothing to let go.
    assert grown < 2e6 or private_bytes() - before < 0.4 * grown
