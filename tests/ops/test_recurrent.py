"""Recurrent kernels of oneDNN: options, choices, factors in bfloat16, programs and written memory.

The values are checked in test_kernels.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet.base.kinds import PAGE
from singanet.layers import GRU, LSTM, RNN
from singanet.loss import SquaredError
from singanet.ops import cpu_ops, numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.interface import Prepared
from singanet.ops.onednn import OneDnnOps, recurrent, set_threads
from singanet.ops.onednn.recurrent import SEVERAL, Sizes, backward, infer, train, written
from singanet.ops.window import Direction, RecurrentCase, RecurrentSlopes
from singanet.optimizer import SGD
from singanet.program.cost import PRODUCTS_BYTES
from tests.ops.kernel_rows import GATES, STATES, mapped
from tests.program.twins import Twins

ROUTED = [kind for kind in GATES if kind != "gru_before"]
"""The kernels that oneDNN has too."""


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def case_of(kind, steps, n, size, width, mode="tanh", **direction):
    gates = GATES[kind]
    weights = draw(size, gates * width, seed=1), draw(width, gates * width, seed=2) / width**0.5
    biases = tuple(draw(gates * width, seed=3 + k) for k in range(1 + (kind == "gru")))
    way = Direction(steps, **direction)
    return RecurrentCase(draw(steps, n, size), weights, biases, way, mode)


def zeros(kind, n, width):
    return [np.zeros((n, width), np.float32) for _ in range(STATES[kind])]


def forward(ops, kind, case, starts=None, keep=True):
    starts = (None,) * STATES[kind] if starts is None else starts
    return getattr(ops, f"{kind}_layer")(case, starts, keep)


def back(ops, kind, case, made, dy, ends, wants_dx=True):
    """All gradients as a list, of the first states too."""
    slopes = RecurrentSlopes(dy, ends, wants_dx)
    grads = getattr(ops, f"{kind}_layer_backward")(case, made, slopes)
    return [*grads[:-1], *grads.starts]


def wide(value):
    return mapped(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, value)


@pytest.mark.parametrize("kind", ROUTED)
@pytest.mark.parametrize("reverse", [False, True])
def test_options(onednn, only_onednn, kind, reverse):
    """Without notes for backward, without a gradient of x or of the outputs."""
    only_onednn(f"{kind}_layer", f"{kind}_layer_backward")
    case = case_of(kind, 24, 3, 7, 8, reverse=reverse)
    made, brief = forward(onednn, kind, case), forward(onednn, kind, case, keep=False)
    assert made.notes
    assert not brief.notes
    np.testing.assert_allclose(brief.states[0], made.states[0], rtol=0, atol=1e-6)
    ends = [draw(3, 8, seed=7 + k) for k in range(STATES[kind])]
    dy = np.zeros_like(draw(24, 3, 8))
    found = back(onednn, kind, case, made, None, ends, wants_dx=False)
    wanted = back(onednn, kind, case, made, dy, ends)
    assert found[0] is None
    for one, other in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * abs(other).max())


@pytest.mark.parametrize(
    ("kind", "sizes", "dtype", "odd"),
    [
        *[(kind, (20, 3, 5, 6), "f4", odd) for kind in ROUTED
          for odd in ({"skips": np.arange(60).reshape(20, 3, 1) > 57},
                      {"drop": np.ones((3, 6), np.float32)})],
        *[(kind, (20, 3, 5, 6), "f8", {}) for kind in ROUTED],
        ("gru", (3, 1, 4, 192), "f4", {}),
        ("elman", (19, 1, 2, 8), "f4", {}),
        ("elman", (20, 2, 2, 129), "f4", {}),
        ("elman", (20, 33, 2, 8), "f4", {}),
        ("elman", (20, 3, 2, 4), "f4", {"mode": "relu"}),
    ],
)  # fmt: skip
def test_other_cases_are_numpys(onednn, plans, kind, sizes, dtype, odd):
    case = case_of(kind, *sizes, **odd)
    case = wide(case) if dtype == "f8" else case
    steps, n, size, width = sizes
    made = forward(onednn, kind, case)
    assert plans()[0] == 0
    wanted = forward(numpy_ops, kind, wide(case)).states[0]
    np.testing.assert_allclose(made.states[0], wanted, rtol=0, atol=1e-5 * abs(wanted).max())
    ends = [end.astype(dtype) for end in zeros(kind, n, width)]
    found = back(onednn, kind, case, made, made.states[0][1:].copy(), ends)
    gates = GATES[kind] * width
    shapes = [(steps, n, size), (size, gates), (width, gates), (gates,), (gates,)]
    assert [a.shape for a in found] == shapes + [(n, width)] * STATES[kind]
    assert {a.dtype for a in (*found, made.states[0])} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("kind", "mode"), [(kind, "tanh") for kind in ROUTED] + [("elman", "relu")]
)
def test_nan_shows_in_its_sample_from_its_step_on(onednn, kind, mode):
    case = case_of(kind, 20, 2, 5, 4, mode)
    case.x[10, 0, 2] = np.nan
    h = forward(onednn, kind, case, keep=False).states[0]
    assert np.isnan(h[11:, 0]).all()
    assert np.isfinite(h[:, 1]).all()
    assert np.isfinite(h[:11]).all()


def test_steps_of_a_million_multiply_adds_are_shared(onednn, monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    set_threads(threads.cores())
    for width, team in ((256, 1), (512, threads.cores())):
        forward(onednn, "lstm", case_of("lstm", 3, 1, 8, width))
        assert onednn.runtime().team.size == team


@pytest.mark.parametrize("reverse", [False, True])
def test_prepared_weights_give_the_same_bits(onednn, reverse):
    case = case_of("lstm", 5, 3, 7, 20, reverse=reverse)
    wanted = forward(onednn, "lstm", case, keep=False)
    onednn.prepared = Prepared()
    got = forward(onednn, "lstm", case, keep=False)
    for one, two in zip(got.states, wanted.states, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 5])
def test_predictors_compile_the_steps_of_a_sequence(onednn, n, reverse):
    from singanet.ops.compiled.engine import is_wide

    case, starts = case_of("lstm", 40, n, 7, 96, reverse=reverse), [None, None]
    fits = recurrent.lstm_layer.routes[0].fits
    assert not fits(onednn, case, starts, False)
    wanted = forward(onednn, "lstm", case, keep=False)
    onednn.prepared = Prepared()
    assert fits(onednn, case, starts, False) == (n == 1 or not is_wide())
    assert not fits(onednn, case, starts, True)
    got = forward(onednn, "lstm", case, keep=False)
    end = case.direction.end
    np.testing.assert_allclose(got.states[0], wanted.states[0], rtol=0, atol=3e-6)
    np.testing.assert_allclose(got.states[1][end], wanted.states[1][end], rtol=0, atol=3e-6)


# -- Factors in bfloat16 --------------------------------------------------------------------------

STEPS, SIZE, WIDTH = 7, 24, 40


def both_ways(ops, kind, n, reverse=False, change=lambda case: case):
    """The states h, and all gradients."""
    case = change(case_of(kind, STEPS, n, SIZE, WIDTH, reverse=reverse))
    dy, *states = (draw(*shape, seed=k) / 4 for k, shape in
                   enumerate([(STEPS, n, WIDTH), *[(n, WIDTH)] * 2 * STATES[kind]]))  # fmt: skip
    if case.x.dtype == np.float64:
        dy, states = wide(dy), wide(states)
    starts, ends = states[: STATES[kind]], states[STATES[kind] :]
    made = forward(ops, kind, case, starts)
    return [made.states[0], *back(ops, kind, case, made, dy, ends)]


@pytest.mark.parametrize("kind", ["lstm", "elman"])
@pytest.mark.parametrize("reverse", [False, True])
def test_factors_and_states_are_rounded_and_sums_are_not(narrow, kind, reverse):
    got = both_ways(narrow, kind, SEVERAL, reverse)
    wanted = both_ways(numpy_ops, kind, SEVERAL, reverse, wide)
    for made, exact in zip(got, wanted, strict=True):
        assert made.dtype == np.float32
        assert 0 < np.abs(made - exact).max() < 0.02 * np.abs(exact).max()
    assert not np.any(got[0][1:-1].view(np.uint32) & 0xFFFF)
    assert np.any(got[2].view(np.uint32) & 0xFFFF)


@pytest.mark.parametrize(("kind", "n"), [("lstm", SEVERAL - 1), ("gru", SEVERAL)])
def test_if_rounding_does_not_pay_training_is_as_in_float32(onednn, narrow, kind, n):
    for a, b in zip(*(both_ways(o, kind, n) for o in (onednn, narrow)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["lstm", "elman"])
def test_nan_shows_among_rounded_factors(narrow, kind):
    def change(case):
        case.x[2, 3, 5] = np.nan
        return case

    h, dx, *_ = both_ways(narrow, kind, SEVERAL, change=change)
    assert np.isnan(h[3:, 3]).all()
    assert np.isfinite(h[:3]).all()
    assert np.isfinite(np.delete(h, 3, axis=1)).all()
    assert np.isnan(dx[2, 3]).any()


# -- Programs -------------------------------------------------------------------------------------


@pytest.fixture
def taken(library_path, monkeypatch):
    """The kinds of kernels of oneDNN that ran."""
    if not isinstance(cpu_ops(), OneDnnOps):
        pytest.skip("nets use other kernels here")
    kinds, run = set(), recurrent.forward

    def watched(ops, sizes, *arguments):
        kinds.add(sizes.kind)
        return run(ops, sizes, *arguments)

    monkeypatch.setattr(recurrent, "forward", watched)
    return kinds


def maker(kind, width=6, shape=(21, 5), as_type=None, **options):
    def make():
        layer = (GRU("r", width, input_sample_shape=shape, **options) if kind == "gru" else
                 RNN("r", width, kind, input_sample_shape=shape, **options))  # fmt: skip
        net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=2)
        if as_type:
            net.as_type(as_type)
        return net

    return make


@pytest.mark.parametrize("kind", ["gru", "tanh"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True}, {"num_stacks": 2, "dropout": 0.3}, {"return_sequences": False}],
)
def test_a_program_gives_the_same_bits(taken, kind, options):
    expect_same_bits(maker(kind, **options), 3)
    assert taken == {kind}


@pytest.mark.parametrize("mode", ["lstm", "tanh"])
def test_a_program_of_rounded_factors_gives_the_same_bits(mode):
    ops = cpu_ops()
    if not isinstance(ops, OneDnnOps) or not ops.library().bfloat16:
        pytest.skip("no products of bfloat16 here")
    expect_same_bits(maker(mode, WIDTH, (21, SIZE), "float32_fast", bidirectional=True), SEVERAL)


def expect_same_bits(make, n):
    twins, rng = Twins(make, lambda: SGD(lr=0.1, momentum=0.9)), np.random.default_rng(0)
    shape = make().layers[0].input_sample_shape
    for _ in range(4):
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        out = twins.recorded.forward(False, x)
        twins.step(x, rng.standard_normal(out.shape).astype(np.float32))
        twins.forward(False, x)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("kind", ["gru", "tanh"])
def test_walks_back_hand_out_the_same_bits(taken, kind):
    twins, rng = Twins(maker(kind, num_stacks=2)), np.random.default_rng(0)
    for _ in range(4):
        twins.forward(True, rng.standard_normal((3, 21, 5)).astype(np.float32))
        twins.walk(rng.standard_normal((3, 21, 6)).astype(np.float32))
    assert twins.expect_recorded() == []


# -- The written part of the memory ---------------------------------------------------------------


def resident():
    lines = Path("/proc/self/status").read_bytes().split(b"\n")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"RssAnon"))


def untouched(size):
    """Memory without any page, and its address."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def bytes_in(ranges):
    return sum(end - start for start, end in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the pages")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "steps", "n", "size", "width"),
    [
        ("lstm", 50, 16, 40, 64),
        ("lstm", 45, 24, 72, 144),
        ("tanh", 50, 16, 40, 64),
        ("gru", 50, 16, 40, 64),
        # Each step leaves rows at a place of its own, with gaps between them.
        ("gru", 64, 16, 64, 256),
        ("gru", 120, 8, 64, 200),
    ],
)
def test_the_pages_written_are_the_predicted_ones(onednn, kind, steps, n, size, width, reverse):
    sizes, runtime = Sizes(kind, steps, n, size, width, reverse), onednn.runtime()
    predicted = [written(onednn, build, sizes) for build in (train, backward)]
    assert written(onednn, infer, sizes) == {}
    plans = [runtime.plan(build, sizes, 1) for build in (train, backward)]
    for plan, ranges in zip(plans, predicted, strict=True):
        of_notes, of_scratch = sorted(ranges)
        assert of_scratch == len(plan.sizes)
        assert total(ranges) < 0.5 * (plan.sizes[of_notes] + plan.scratch)
    # The system may take pages back meanwhile, so one of three measurements has to agree.
    assert any(all(map(is_near, took(plans, predicted), predicted)) for _ in range(3))


def took(plans, predicted):
    """The resident bytes that the run of each plan adds."""
    found, notes = [], None
    for plan, ranges in zip(plans, predicted, strict=True):
        of_notes = min(ranges)
        once, scratch = untouched(plan.scratch), untouched(plan.scratch)
        given = [np.zeros(size, np.uint8) for size in plan.sizes]
        addresses = [array.ctypes.data for array in given]
        notes = notes or untouched(plan.sizes[of_notes])
        for array in given:
            array[...] = 0
        # The first run may make code, of kernels and of products.
        plan.run(addresses, once[1])
        addresses[of_notes] = notes[1]
        before = resident()
        plan.run(addresses, scratch[1])
        found.append(resident() - before)
    return found


def is_near(found, ranges):
    # A range takes the whole of its first and last page.
    edges = PAGE * sum(map(len, ranges.values()))
    return 0.97 * found - 40_000 - edges <= total(ranges) <= 1.02 * found + 40_000


def total(ranges):
    return sum(map(bytes_in, ranges.values()))


def test_nothing_is_predicted_of_short_sequences(onednn):
    assert written(onednn, train, Sizes("lstm", 11, 2, 3, 4, False)) == {}


def test_the_memory_of_a_net_counts_the_pages_written(library_path):
    if not isinstance(cpu_ops(), OneDnnOps):
        pytest.skip("nets use other kernels here")
    net = singanet.FeedForwardNet(SquaredError(), seed=0)
    net.add(LSTM("lstm", 64, input_sample_shape=(60, 40)))
    parts = net.memory(4, SGD(lr=0.1)).parts
    net.programs.at_once = True
    x = np.zeros((4, 60, 40), np.float32)
    net.step(x, np.zeros((4, 60, 64), np.float32), SGD(lr=0.1))
    asked = net.programs.reports()[-1].layout.nbytes
    assert 0.2 * asked < parts["arena"] < 0.7 * asked
    # Products have compiled code.
    assert parts["kernels"] > min(PRODUCTS_BYTES.values())
