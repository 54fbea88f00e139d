"""Plans of kernels: what they read and write, calls bound to addresses, and their memory."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from itertools import product as every

import numpy as np
import pytest

from singanet.base import heap
from singanet.base.heap import private_bytes, trim
from singanet.base.kinds import PAGE
from singanet.ops import threads
from singanet.ops.casts import has_compiler
from singanet.ops.llvm.plans import SHARED
from singanet.ops.onednn import OneDnnOps, set_threads
from singanet.ops.onednn.builder import Calls, KernelStage
from singanet.ops.onednn.eltwise import sweep
from singanet.ops.onednn.products import product
from singanet.ops.workers import do
from tests.interrupts import struck_at
from tests.ops.kernel_rows import PLAIN, ROWS, flat
from tests.ops.test_kernels import arguments, both, gradient_like, routed

GUARD = 64


# Without AVX-512 oneDNN has only reference code for these, which is not used.
ONLY_BY_AVX512 = {
    "attending._backward", "normalise._forward", "normalise._local_response",
    "normalise._local_response_backward",
}  # fmt: skip


class Watched(OneDnnOps):
    """Keeps each plan with copies of its arrays before and after, and the kernels not offered."""

    def shares_products(self):
        return True

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen, self.lacking = [], set()

    def runs(self, build, key, *arrays, passes=1):
        arrays = [array if array.flags.c_contiguous else array.T for array in arrays]
        before = [array.copy() for array in arrays]
        done = super().runs(build, key, *arrays, passes=passes)
        plan = self.runtime().plan(build, key, arrays[0].size * passes)
        if plan is None:
            self.lacking.add(f"{build.__module__.rpartition('.')[2]}.{build.__name__}")
        else:
            self.seen.append((build.__name__, plan, before, [array.copy() for array in arrays]))
        return done


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def watched(library_path):
    """The backend after calls of every kernel with routes, of sizes for which it has kernels."""
    ops = Watched(library_path, required=True)
    for row in ROWS:
        if any(name.startswith(row.name) for name in routed(OneDnnOps)):
            for size in row.large[-2:]:
                args, exact = arguments(row, size, "f4")
                both(ops, row, args, gradient_like(flat(row.formula(*exact))[0], "f4"))
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
        # Working memory that is read too may keep its values.
        assert set(plan.writes) - set(plan.reads) <= changed <= set(plan.writes), name
        assert set(plan.reads) | set(plan.writes) == set(range(len(after))), name


def test_what_is_not_read_does_not_matter(seen):
    for name, plan, before, after in seen:
        operands = [aligned(array) for array in before]
        for k in set(plan.writes) - set(plan.reads):
            operands[k].view(np.uint8)[...] = 0xFF
        run_bound(plan, operands)
        for k in plan.writes:
            # Notes have gaps.
            filled = operands[k] != 0xFF if operands[k].dtype == np.uint8 else ...
            np.testing.assert_array_equal(operands[k][filled], after[k][filled], err_msg=name)


def test_bound_calls_keep_to_their_memory(seen):
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
    y = ops.matmul(draw(64, 512), draw(512, 64)).copy()
    _, plan, before, _ = ops.seen.pop()
    operands, scratch = [aligned(array) for array in before], aligned(room_of(plan))
    bound = plan.bound([array.ctypes.data for array in operands], scratch.ctypes.data)
    del plan, ops
    gc.collect()
    for _ in range(3):
        operands[0][...] = 0
        bound()
        np.testing.assert_array_equal(operands[0], y)


def test_a_bound_call_uses_the_threads_of_its_plan(ops, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    monkeypatch.setattr(OneDnnOps, "shares_products", lambda self: True)
    runtime, factors = ops.runtime(), (draw(64, 512), draw(512, 64))
    y = ops.matmul(*factors)
    plan = next(iter(runtime._plans.values()))
    scratch = aligned(room_of(plan))
    bound = plan.bound([array.ctypes.data for array in (y, *factors)], scratch.ctypes.data)
    runtime.team.use(plan.threads + 1)
    bound()
    assert runtime.team.size == plan.threads


def room_of(plan):
    return np.zeros(plan.scratch, np.uint8)


def aligned(array):
    """A copy at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + GUARD, np.uint8)
    start = -raw.ctypes.data % GUARD
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_bound(plan, operands):
    scratch = aligned(room_of(plan))
    plan.bound([array.ctypes.data for array in operands], scratch.ctypes.data)()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_scratch_memory_is_whole_after_an_interrupt_at_any_line(ops):
    # Python drops what strikes while arrays of earlier tests are forgotten.
    runtime, rng = ops.runtime(), np.random.default_rng(0)

    def convolved(channels):
        x, w = (
            rng.standard_normal(s, np.float32) for s in ((2, channels, 9, 9), (8, channels, 3, 3))
        )
        return ops.conv2d(x, w, None, PLAIN)

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
def test_trim_frees_prepared_kernels(ops):
    before = private_bytes()
    for k in range(80):
        a, b = np.ones((40 + k, 64 + k), np.float32), np.ones((64 + k, 96 + k), np.float32)
        assert ops.runs(product, (40 + k, 64 + k, 96 + k, False, False, False), a @ b, a, b)
    grown = private_bytes() - before
    ops.trim(prepared=True)
    trim()
    # Kernels without code of their own have nothing to free.
    assert grown < 2e6 or private_bytes() - before < 0.4 * grown


RUN = """
import json, resource, sys
import numpy as np
from singanet.base.heap import small_pages, trim
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.products import product
from singanet.ops.workers import do
ops = OneDnnOps(sys.argv[1], required=True)
runtime, by_avx512 = ops.runtime(), bool(ops.library().c.dnnl_get_effective_cpu_isa() & 0x20)
rng, found = np.random.default_rng(0), []
for _ in range(10):
    m, k, n = (int(2 ** rng.uniform(*ends)) for ends in ((8, 10.5), (5, 9), (9, 11.5)))
    turned = rng.integers(0, 2, 2).astype(bool).tolist()
    with small_pages():
        arrays = [np.ones(shape, np.float32) for shape in ((m, n), (m, k), (k, n))]
    plan = runtime.built(product, (m, k, n, *turned, False), 1 << 30)
    runtime.run(plan, arrays)
    # Pages that were freed are fetched again.
    trim()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    runtime.run(plan, arrays)
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    found.append((plan.recipe.packing, pages * resource.getpagesize(), plan.recipe.wide))
print(json.dumps([found, by_avx512]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the pages")
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_products_allocate_the_predicted_bytes(library_path, limit, threads):
    limits = {"ONEDNN_MAX_CPU_ISA": limit, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library_path)],
        env={**os.environ, **limits},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found, by_avx512 = json.loads(done.stdout)
    assert not (by_avx512 and limit == "AVX2")
    assert all(0.9 * took - 50_000 <= packing <= 1.1 * took + 50_000 for packing, took, _ in found)
    assert any(packing for packing, *_ in found) != by_avx512
    assert by_avx512 or not any(wide for *_, wide in found)


@pytest.mark.parametrize("flat", [False, True])
def test_after_an_interrupt_large_arrays_come_from_the_heap_again(ops, flat):
    def struck(*_):
        raise KeyboardInterrupt

    plan = ops.runtime().built(product, (8, 8, 8, False, False, False), 0)
    plan.place, plan.brief = plan.place._replace(execute=struck), False
    stages = [KernelStage(stage.primitive, {}) for stage in plan.recipe.stages]
    plan.recipe = plan.recipe._replace(stages=stages, packing=heap.LARGE)
    calls = Calls(plan, {})
    before = len(heap._inside)
    with pytest.raises(KeyboardInterrupt):
        do(calls.after(1) if flat else [calls])
    assert len(heap._inside) == before


SIZES = (16_399, 280_001)
ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38, 1e-38)


def drawn(rng, size):
    array = rng.standard_normal(size, np.float32)
    array[: len(ODD)], array[-len(ODD) :] = ODD, ODD[::-1]
    return array


def addresses(*arrays):
    return [array.ctypes.data for array in arrays]


@pytest.fixture(params=sorted({1, threads.cores()}))
def count(request, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(request.param)
    return request.param


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", [np.add, np.subtract, np.multiply, np.divide])
def test_two_arrays_or_one_and_a_number(ops, count, function, size, rng):
    for number, scaled, place in every(
        (False, True), ((False, False), (True, False), (False, True), (True, True)), range(3)
    ):
        if number and (scaled[1] or place == 2):
            continue
        a, b = drawn(rng, size), np.array(0.3, np.float32) if number else drawn(rng, size)
        factors = [np.array(value, np.float32) for value in (0.9, -0.013)]
        with np.errstate(all="ignore"):
            given = [
                v * f if is_it else v for v, f, is_it in zip((a, b), factors, scaled, strict=True)
            ]
            expected = function(*given)
        kernel = sweep(ops, function, size, number, scaled, 2 * size)
        out = (np.empty_like(a), a, b)[place]
        used = [f for f, is_it in zip(factors, scaled, strict=True) if is_it]
        kernel.bound(addresses(out, a, b, *used), 0)()
        known = ~np.isnan(expected)
        assert out[known].tobytes() == expected[known].tobytes()
        assert np.isnan(out[~known]).all()
        assert kernel.threads == (count if 2 * size >= SHARED else 1)


@pytest.mark.parametrize("size", SIZES)
def test_roots(ops, count, size, rng):
    a = drawn(rng, size)
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(a)
    sweep(ops, np.sqrt, size, False, (False,), size).bound(addresses(a, a), 0)()
    assert np.array_equal(a, expected, equal_nan=True)


def test_what_is_numpys(ops):
    assert sweep(ops, np.maximum, 1 << 20, False, (False, False), 1 << 20) is None
    assert sweep(ops, np.add, 100, False, (False, False), 1 << 20) is None
