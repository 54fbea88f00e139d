"""Products that are compiled for the processor: of all kinds, beside float64, shared or not."""

import os
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from singanet import FeedForwardNet, load_model
from singanet.checkpoint.gguf_blocks import BLOCKS
from singanet.device import cpu
from singanet.layers import Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import casts
from singanet.ops import narrow_products as compiled
from singanet.ops.compiled.code import Code
from singanet.ops.compiled.engine import compiled as function_of
from singanet.ops.compiled.panels import blocks_product as product_of_blocks
from singanet.ops.compiled.panels import panel_product as product_of_panels
from singanet.ops.compiled.panels import words_product as product_of_words
from singanet.ops.compiled.sizes import LANES
from singanet.ops.narrow import PANEL, Bfloat16Matrix, BlockMatrix, HalvesMatrix
from singanet.ops.numpy import numpy_ops
from singanet.optimizer import SGD
from singanet.program.ir import multiplied_halves
from singanet.program.trace import kernels

HEADS = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4}
KINDS = ["bfloat16", *HEADS]
FLOATS = {"bfloat16": 1, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32}


def matrix(kind, inputs, outputs, seed=0):
    """Random numbers that such a matrix holds, and what they are by the format's own reader."""
    rng = np.random.default_rng(seed)
    if kind == "bfloat16":
        floats = rng.standard_normal((inputs, outputs), np.float32)
        words = (floats.view(np.uint32) >> 16).astype(np.uint16)
        held = Bfloat16Matrix(inputs, outputs)
        held.put(0, words)
        return held, (words.astype(np.uint32) << 16).view(np.float32)
    if kind == "halves":
        halves = rng.standard_normal((inputs, outputs)).astype(np.float16)
        return HalvesMatrix(halves), halves.astype(np.float32)
    head, size = HEADS[kind], HEADS[kind] + (32 if kind == "Q8_0" else 16)
    raw = rng.integers(0, 256, (outputs * inputs // 32, size), np.uint8)
    halves = rng.standard_normal((len(raw), head // 2)).astype("<f2")
    raw[:, :head] = halves.view(np.uint8)
    held, columns = BlockMatrix(inputs, outputs, kind), raw.reshape(outputs, -1, size)
    for slab, part in held.slabs:
        held.put(slab, columns[part])
    return held, BLOCKS[kind].decode(raw).reshape(outputs, inputs).T


def assert_is_product(y, x, floats):
    exact = x.astype(np.float64) @ floats
    scale = np.abs(x.astype(np.float64)) @ np.abs(floats)
    assert y.dtype == np.float32
    assert np.all(np.abs(y - exact) <= 1e-6 * scale + 1e-30)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 7),
    st.integers(1, 200),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_any_size_is_the_product_of_the_numbers(kind, blocks, outputs, rows, seed):
    inputs = blocks * FLOATS[kind]
    held, floats = matrix(kind, inputs, outputs, seed)
    x = np.random.default_rng(seed).standard_normal((rows, inputs), np.float32)
    assert compiled.few_rows.fits(numpy_ops, x, held)
    y = compiled.few_rows.run(numpy_ops, x, held)
    assert y.shape == (rows, outputs)
    assert y.flags.c_contiguous
    assert_is_product(y, x, floats)
    for shape in ((rows, outputs), (rows, 2 * outputs)):
        place = np.full(shape, np.nan, np.float32)
        out = place[:, :: shape[1] // outputs]
        assert compiled.few_rows.run(numpy_ops, x, held, out=out) is out
        np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_of_several_slabs_and_rows_that_lie_apart_or_are_not_to_be_written(kind):
    held, floats = matrix(kind, 96, 4200)
    wide = np.random.default_rng(1).standard_normal((3, 192), np.float32)
    x = wide[:, ::2]
    assert_is_product(compiled.few_rows.run(numpy_ops, x, held), x, floats)
    x = np.ascontiguousarray(x)
    x.setflags(write=False)
    for array in held.arrays:
        array.setflags(write=False)
    assert_is_product(compiled.few_rows.run(numpy_ops, x, held), x, floats)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_the_panels_make_the_same_bits(kind, monkeypatch):
    held, _ = matrix(kind, 64, 700)
    x = np.random.default_rng(2).standard_normal((2, 64), np.float32)
    alone = compiled.few_rows.run(numpy_ops, x, held)
    monkeypatch.setattr(compiled, "_SHARED", held.arrays[0].nbytes)
    for threads in (1, 2, 3, 30):
        shares = []

        def do(parts, shares=shares):
            # The last one first: none needs what another has done.
            for part in reversed(parts):
                for work in part:
                    shares.append(work.args[-2:])
                    work()

        ops = type("Shared", (), {"team": lambda self, n=threads, do=do: (n, do)})()
        np.testing.assert_array_equal(compiled.few_rows.run(ops, x, held), alone)
        covered = sorted(shares)
        assert covered[0][0] == 0
        assert all(one[1] == two[0] for one, two in pairwise(covered))
        assert len(covered) == min(threads, 11)
    monkeypatch.setattr(compiled, "_SHARED", held.arrays[0].nbytes + 1)
    compiled.few_rows.run(None, x, held)  # asks nobody for threads


def test_what_it_does_not_take():
    held, _ = matrix("bfloat16", 32, 64)
    fits = partial(compiled.few_rows.fits, numpy_ops)
    x = np.ones((4, 32), np.float32)
    assert fits(x, held)
    assert not fits(np.ones((5, 32), np.float32), held)
    assert not fits(x[:0], held)
    assert not fits(x.astype(np.float64), held)
    assert not fits(np.ones((4, 64), np.float32), held.T)


@pytest.mark.parametrize("found", ["", "0.44.0", "0.45.0", "0.46.0rc1", "1.0", "git"])
def test_without_a_release_that_it_knows_numpy_does_it(found, monkeypatch):
    def version(name):
        assert name == "llvmlite"
        if not found:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(casts, "version", version)
    casts.has_compiler.cache_clear()
    try:
        held, floats = matrix("Q4_1", 64, 100)
        x = np.ones((1, 64), np.float32)
        assert compiled.few_rows.fits(numpy_ops, x, held) == found.startswith(("0.45", "0.46", "1"))
        assert_is_product(numpy_ops.matmul(x, held), x, floats)
    finally:
        casts.has_compiler.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_the_plainest_processor_of_its_kind_computes_it_too(kind, monkeypatch):
    """Without vectors of 512 bits, products that are added at once, or float16."""
    plain = partial(function_of, processor="generic")
    monkeypatch.setattr(compiled, "_words", lambda rows: plain(product_of_words(rows)).call)
    monkeypatch.setattr(compiled, "_blocks", lambda *case: plain(product_of_blocks(*case)).call)
    held, floats = matrix(kind, 128, 300)
    x = np.random.default_rng(3).standard_normal((2, 128), np.float32)
    assert_is_product(compiled.few_rows.run(numpy_ops, x, held), x, floats)


def test_every_half_is_the_float_that_it_is():
    code = Code("halves", pointers=2, numbers=1)
    source, target, count = code.arguments
    with code.each(0, count, LANES) as k:
        code.store(code.halves(source, code.times(k, 2)), target, code.times(k, 4))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    floats = np.empty(len(halves), np.float32)
    function_of(code).call(halves.ctypes.data, floats.ctypes.data, len(halves))
    np.testing.assert_array_equal(floats, halves.astype(np.float32))
    assert np.array_equal(np.signbit(floats[::31]), np.signbit(halves[::31]))


def test_loops_keep_their_vectors_in_order_and_may_run_never():
    """1 + 2 k for k = 0, 2, 4 from 10 on, by loops in loops, and twice nothing."""
    code = Code("loops", pointers=1, numbers=2)
    target, count, none = code.arguments
    sums = {"a": code.number(10.0), "b": code.number(0.5)}
    with code.each(0, count, 2, sums), code.each(0, 2, kept=sums):
        sums["a"] = code.add(sums["a"], sums["b"])
    with code.each(0, none, kept=sums):
        sums["a"] = code.number(-1.0)
    code.store(sums["a"], target, 0)
    code.store(sums["b"], target, 4 * LANES)
    found = np.empty(2 * LANES, np.float32)
    function_of(code).call(found.ctypes.data, 5, 0)
    np.testing.assert_array_equal(found, [13.0] * LANES + [0.5] * LANES)


def test_a_process_that_multiplies_nothing_held_does_not_load_it():
    check = (
        "import sys, singanet.ops.numpy, singanet.ops.onednn; assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, env=dict(os.environ))


def test_a_panel_is_a_whole_number_of_vectors():
    assert PANEL % LANES == 0


SHARED = type(
    "Shared",
    (),
    {
        "xp": np,
        "team": lambda self: (3, lambda parts: [do() for part in parts[::-1] for do in part]),
    },
)()
"""Three threads, of which the last one comes first."""


ANY = [*KINDS, "halves"]


def assert_any_rows(rng, kind):
    """Some rows, as they may lie, times a matrix or its transpose, put where they may be asked."""
    inputs = int(rng.integers(1, 7)) * FLOATS.get(kind, 64)
    if kind == "bfloat16":
        inputs = int(rng.integers(1, 200))
    outputs = int(rng.choice([1, 63, 64, 65, 4200, rng.integers(1, 200)]))
    if kind == "halves":
        outputs = 64 * int(rng.integers(1, 5))
    held, floats = matrix(kind, inputs, outputs, int(rng.integers(99)))
    if rng.integers(2):
        held, floats = held.T, floats.T
    (wide, high), rows = floats.shape, int(rng.integers(1, 20))
    x = rng.standard_normal((2 * rows, 2 * wide), np.float32)
    whole = x[:rows, :wide]
    x = (np.ascontiguousarray(whole), whole, x[::2, ::2], np.asfortranarray(whole)[::-1])[
        rng.integers(4)
    ]
    room = np.full((rows, 2 * high), np.nan, np.float32)
    out = (None, room[:, :high], room[:, ::2])[rng.integers(3)]
    ops = (numpy_ops, SHARED)[rng.integers(2)]
    assert compiled.any_rows.fits(ops, x, held)
    y = compiled.any_rows.run(ops, x, held, out=out)
    assert out is None or y is out
    assert y.shape == (rows, high)
    assert_is_product(y, x, floats)
    assert np.isnan(room).sum() >= room.size // 2


@settings(max_examples=20)
@pytest.mark.parametrize("kind", ANY)
@given(st.integers(0, 1 << 30))
def test_any_rows_are_the_product_of_the_numbers(kind, seed):
    assert_any_rows(np.random.default_rng(seed), kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANY)
def test_thousands_of_any_rows(kind, monkeypatch):
    monkeypatch.setattr(compiled, "_SHARED", 1 << 12)
    rng = np.random.default_rng(11)
    for _ in range(3000):
        assert_any_rows(rng, kind)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ANY)
def test_threads_that_share_any_rows_make_the_same_bits(kind, transposed, monkeypatch):
    held, floats = matrix(kind, 192, 4224 if kind == "halves" else 4200)
    held, floats = (held.T, floats.T) if transposed else (held, floats)
    x = np.random.default_rng(5).standard_normal((7, len(floats)), np.float32)
    alone = compiled.any_rows.run(numpy_ops, x, held)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    np.testing.assert_array_equal(compiled.any_rows.run(SHARED, x, held), alone)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("size", [(1024, 64), (1, 70000), (70000, 1), (257, 258), (64, 1088)])
def test_float16_is_multiplied_in_float32_however_it_lies(rows, size):
    """A weight that is not small is widened by and by, at any extents."""
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal(size).astype(np.float16)
    x = (rng.standard_normal((rows, size[0])) / size[0] ** 0.5).astype(np.float16)
    want = (x.astype(np.float64) @ weight).astype(np.float16)
    bias = np.ones(size[1], np.float16)
    for ops in (numpy_ops, cpu().ops):
        for lying in (weight, np.asfortranarray(weight), np.repeat(weight, 2, 1)[:, ::2]):
            y = ops.matmul(x, lying)
            assert y.dtype == np.float16
            np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(ops.affine(x, lying, bias), want + 1, rtol=2e-3, atol=4e-3)
            out = np.empty_like(y)
            assert ops.matmul(x, lying, out=out) is out
            np.testing.assert_array_equal(out, y)
            stack = ops.matmul(np.stack([x, x]), lying)
            np.testing.assert_allclose(stack, [want, want], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ANY)
def test_the_plainest_processor_multiplies_any_rows(kind, transposed, monkeypatch):
    def plain(kind, transposed):
        return function_of(product_of_panels(kind, transposed, 1), processor="generic").call

    monkeypatch.setattr(compiled, "_panels", plain)
    held, floats = matrix(kind, *((64, 128) if kind == "halves" else (96, 100)))
    held, floats = (held.T, floats.T) if transposed else (held, floats)
    x = np.random.default_rng(3).standard_normal((8, len(floats)), np.float32)
    assert_is_product(compiled.any_rows.run(numpy_ops, x, held), x, floats)


def test_a_limit_of_the_processor_holds_for_what_is_compiled():
    """A vector of 512 bits is compiled for those that the processor may use."""
    for name, told in (("AVX2", "avx512"), ("SSE41", "avx")):
        check = (
            "from singanet.ops.compiled import engine;"
            f"print([n for n, on in engine._features().items() if on and n.startswith({told!r})])"
        )
        environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": name}
        done = subprocess.run(
            [sys.executable, "-c", check], check=True, env=environment, capture_output=True
        )
        assert done.stdout.strip() == b"[]"


def test_floats_are_cast_with_numpys_bits():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_003, np.uint32)
    floats = bits.view(np.float32)
    transposed = np.asfortranarray(floats[:9000].reshape(90, 100))
    with np.errstate(over="ignore"):
        for x, kind in ((every, np.float32), (floats, np.float16), (transposed, np.float16)):
            made = casts.cast(x, kind)
            np.testing.assert_array_equal(made, x.astype(kind))
            assert made.dtype == kind
            assert made.strides == x.astype(kind).strides


@pytest.mark.parametrize("units", [256, 250])
def test_a_training_by_float16_weights_goes_on_to_the_bit(units, tmp_path, monkeypatch):
    """The loaded net's first step goes by the layers where the other's is recorded."""
    calls = []

    def counted(*given):
        calls.append(given)
        multiplied_halves(*given)

    monkeypatch.setattr(kernels, "multiplied_halves", counted)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 1600)).astype(np.float32)
    y = rng.integers(0, units, 64)
    net = FeedForwardNet(
        [Dense("a", 320, input_sample_shape=(1600,)), Dense("b", 320), Dense("c", units)],
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )
    net.compile(SGD(lr=1.0), mixed_precision="float16")
    for _ in range(3):
        net.train_on_batch(x, y)
    assert calls, "recorded steps multiply float16 as the layers do"
    net.save_model(tmp_path / "m.singanet")
    again = load_model(tmp_path / "m.singanet")
    for _ in range(3):
        assert net.train_on_batch(x, y) == again.train_on_batch(x, y)
        for one, other in zip(net.params(), again.params(), strict=True):
            assert one.value.dtype == np.float16
            np.testing.assert_array_equal(one.value, other.value)
