"""Functions that LLVM compiles: code, kept machine code, dense products and batch normalization."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

from singanet.ops import numpy_ops
from singanet.ops.compiled import engine, normalise, panels, pool
from singanet.ops.compiled.code import Code
from singanet.ops.compiled.engine import KeptCode, compiled
from singanet.ops.compiled.sizes import BACKWARD, FORWARD, GROUP, LANES, rows_of
from singanet.ops.narrow import PANEL
from singanet.ops.workers import shared

# -- Code -----------------------------------------------------------------------------------------


def test_every_float16_is_widened_exactly():
    code = Code("halves", pointers=2, numbers=1)
    source, target, count = code.arguments
    with code.each(0, count, LANES) as k:
        code.store(code.halves(source, code.times(k, 2)), target, code.times(k, 4))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    floats = np.empty(len(halves), np.float32)
    compiled(code).call(halves.ctypes.data, floats.ctypes.data, len(halves))
    np.testing.assert_array_equal(floats, halves.astype(np.float32))
    assert np.array_equal(np.signbit(floats[::31]), np.signbit(halves[::31]))
    assert PANEL % LANES == 0


def test_loops_keep_their_vectors_in_order_and_may_be_empty():
    """1 + 2 k for k = 0, 2, 4 from 10 on, by loops in loops, and an empty loop."""
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
    compiled(code).call(found.ctypes.data, 5, 0)
    np.testing.assert_array_equal(found, [13.0] * LANES + [0.5] * LANES)


@pytest.mark.parametrize(("limit", "feature"), [("AVX2", "avx512"), ("SSE41", "avx")])
def test_a_limit_of_the_processor_holds_for_compiled_code(limit, feature):
    check = (
        "from singanet.ops.compiled import engine;"
        f"print([n for n, on in engine._features().items() if on and n.startswith({feature!r})])"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run(
        [sys.executable, "-c", check], check=True, env=environment, capture_output=True
    )
    assert done.stdout.strip() == b"[]"


def compiled_with_signal_at(line):
    """Return whether that many lines of llvmlite ran before the signal, and the functions made."""
    import llvmlite.binding

    theirs, left, before = str(Path(llvmlite.__file__).parent), line, len(engine._engines)
    code, tracer = panels.words_product(False), sys.gettrace()

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename.startswith(theirs):
            left -= event == "line"
            if event == "line" and left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    try:
        sys.settrace(trace)
        engine.compiled(code)
    except KeyboardInterrupt:
        assert left <= 0
    else:
        assert left > 0
    finally:
        sys.settrace(tracer)
    return left <= 0, len(engine._engines) - before


@pytest.mark.parametrize("factor", [9, pytest.param(1.05, marks=pytest.mark.slow)])
def test_ctrl_c_acts_when_the_function_is_made(factor):
    """Otherwise llvmlite frees memory twice, and the process ends."""
    line, struck = 1, True
    while struck:
        struck, count = compiled_with_signal_at(line)
        assert count == 1
        line = int(line * factor) + 1
    assert line > 100


# -- Kept machine code ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(engine.VARIABLE, raising=False)
    return tmp_path / "singanet"


def kept(folder):
    """The only file in the folder, of the function "one"."""
    KeptCode("a").keep("one", b"some code")
    (path,) = folder.glob("code-*/*")
    return path


def test_kept_code_is_read_for_the_same_parts(folder):
    KeptCode("a", "b").keep("one", b"some code")
    assert KeptCode("a", "b").read("one") == b"some code"
    assert KeptCode("a", "b").read("two") is None
    assert KeptCode("a").read("one") is None


def to_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "change",
    [lambda path: path.write_bytes(path.read_bytes()[:-1]),
     lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
     lambda path: path.write_bytes(b""), lambda path: path.unlink(), to_folder,
     lambda path: path.chmod(0o777), lambda path: path.parent.chmod(0o777)],
    ids=["cut", "changed", "empty", "gone", "a folder", "writable", "in a writable folder"],
)  # fmt: skip
def test_damaged_code_or_code_that_others_may_write_is_not_used(folder, change):
    change(kept(folder))
    assert KeptCode("a").read("one") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_code_of_another_user_is_not_used(folder, monkeypatch):
    owner = kept(folder).stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert KeptCode("a").read("one") is None


def test_a_mask_that_leaves_all_to_a_group_changes_nothing(folder):
    before = os.umask(0o002)
    try:
        kept(folder)
    finally:
        os.umask(before)
    assert KeptCode("a").read("one") == b"some code"


def test_nothing_is_kept_if_switched_off_or_without_a_folder(folder, monkeypatch):
    monkeypatch.setenv(engine.VARIABLE, "off")
    KeptCode("a").keep("one", b"some code")
    assert KeptCode("a").read("one") is None
    assert not folder.exists()
    monkeypatch.delenv(engine.VARIABLE)
    folder.write_text("a file in its place")
    KeptCode("a").keep("one", b"some code")
    assert KeptCode("a").read("one") is None


def test_the_oldest_folders_are_deleted(folder):
    for k in range(engine._FOLDERS + 3):
        KeptCode(str(k)).keep("one", b"some code")
        os.utime(KeptCode(str(k))._folder, (k, k))
    left = sorted(folder.glob("code-*"))
    assert len(left) == engine._FOLDERS
    assert KeptCode(str(engine._FOLDERS + 2))._folder in left
    assert KeptCode("0")._folder not in left


def test_a_function_is_made_once_for_several_processes(folder):
    made = []

    def product(width, relu):
        made.append(width)
        return pool.product(width, relu)

    for _ in range(2):
        engine._kept.cache_clear()  # as in another process
        function = engine.known(product, 16, False)
        x, matrix = np.ones((1, 3), np.float32), np.full((3, 16), 2, np.float32)
        bias, y = np.zeros(16, np.float32), np.empty((1, 16), np.float32)
        given_ = [*(array.ctypes.data for array in (y, x, matrix, bias)), 3, 16, 0, 1, 0, 1]
        function.call(*given_)
        np.testing.assert_array_equal(y, 6)
        y[:] = 0
        record = (ctypes.c_int64 * len(given_))(*given_)
        function.briefly(ctypes.addressof(record))
        np.testing.assert_array_equal(y, 6)
    engine._kept.cache_clear()
    assert made == [16]


def test_panels_are_whole_vectors_of_at_most_four(monkeypatch):
    found = [pool.width_of(n, 3) for n in (1, 16, 17, 48, 49, 64, 65, 1000)]
    assert found == [LANES, LANES, 2 * LANES, 3 * LANES, *[4 * LANES] * 4]
    # Sums of four rows and of more columns have no registers without AVX-512.
    for wide, rows, columns in ((False, 4, 1), (True, 4, 4), (True, 16, 4), (True, 17, 1)):
        monkeypatch.setattr(pool, "is_wide", lambda wide=wide: wide)
        assert pool.width_of(1000, rows) == columns * LANES


# -- Batch normalization --------------------------------------------------------------------------

EPSILON = 1e-3
RELU = {False: np.nan, True: 0.0}


@cache
def function(kind):
    return compiled(getattr(normalise, kind)())


def bits(value):
    return int(np.float32(value).view(np.int32))


def called(kind, arrays, rows, room, numbers, counts, threads):
    """Make the calls on the arrays; the last call of a stage comes first."""
    scratch = np.full(rows.scratch(room) // 4, np.nan, np.float32)
    places = [array.ctypes.data for array in (*arrays, scratch)]
    for stage in shared((*rows, *numbers), counts, threads):
        for call in reversed(stage):
            record = (ctypes.c_int64 * (len(places) + len(call)))(*places, *call)
            function(kind).briefly(ctypes.addressof(record))


def among_nan(x):
    """A copy, with NaN before and after it."""
    room = np.full(x.size + 2 * GROUP, np.nan, np.float32)
    inside = room[GROUP:-GROUP].reshape(x.shape)
    inside[...] = x
    return inside


def untouched_ends(*arrays):
    """The arrays without their last element or row, which no call may write."""
    for made in arrays:
        assert np.all(made[-1] == 7.0)
    return tuple(made[:-1] for made in arrays)


def forward(x, gamma, beta, relu, parts=1, threads=1, statistics=None):
    """y, mean, variance and inverse for x (pixels, channels)."""
    pixels, channels = x.shape
    rows = rows_of(pixels, channels)._replace(parts=parts)
    y = np.full((pixels + 1, channels), 7.0, np.float32)
    mean, var, inverse = np.full((3, channels + 1), 7.0, np.float32)
    counts = parts, 1, 1, parts
    if statistics is not None:
        mean[:-1], var[:-1] = statistics
        counts = 0, 0, 1, parts
    arrays = y, among_nan(x), among_nan(gamma), among_nan(beta), mean, var, inverse
    called("forward", arrays, rows, FORWARD, (bits(EPSILON), bits(RELU[relu])), counts, threads)
    return untouched_ends(y, mean, var, inverse)


def backward(dy, x, gamma, beta, mean, inverse, fixed, relu, parts=1, threads=1):
    """dx, dgamma and dbeta."""
    pixels, channels = x.shape
    rows = rows_of(pixels, channels)._replace(parts=parts)
    dx = np.full((pixels + 1, channels), 7.0, np.float32)
    dgamma, dbeta = np.full((2, channels + 1), 7.0, np.float32)
    arrays = dx, dgamma, dbeta, *map(among_nan, (dy, x, gamma, beta, mean, inverse))
    counts, numbers = (1, parts, 1, parts), (int(fixed), bits(RELU[relu]))
    called("backward", arrays, rows, BACKWARD, numbers, counts, threads)
    return untouched_ends(dx, dgamma, dbeta)


def draw(channels, rows, tail, seed):
    """x and dy of some rows and a part of one, gamma and beta."""
    rng = np.random.default_rng(seed)
    width = rows_of(10**6, channels).width
    pixels = width // channels * rows + int(tail * width) // channels
    x, dy = rng.standard_normal((2, pixels, channels)).astype(np.float32)
    return x, dy, *rng.standard_normal((2, channels)).astype(np.float32)


def close(found, wanted, scale):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * (1 + np.max(np.abs(scale))))


DRAWN = st.builds(draw, st.integers(1, 70), st.integers(1, 70), st.floats(0, 0.99),
                  st.integers(0, 99))  # fmt: skip


@given(DRAWN, st.booleans(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_any_number_of_channels(drawn, relu, parts, threads, fixed):
    x, dy, gamma, beta = drawn
    parts = min(parts, len(x) * x.shape[1] // rows_of(10**6, x.shape[1]).width) or 1
    given_ = forward(x, gamma, beta, relu, parts, threads)
    if fixed:
        given_ = forward(x, gamma, beta, relu, parts, threads, given_[1:3])
    y, mean, _, inverse = given_
    wide = (a.astype(np.float64) for a in (x, gamma, beta))
    for one, other in zip(given_, numpy_ops.batch_norm_train(*wide, EPSILON, relu), strict=False):
        close(one, other, other)
    found = backward(dy, x, gamma, beta, mean, inverse, fixed, relu, parts, threads)
    # Near zero the two may differ in whether y is positive.
    mask = [(y > 0).astype(np.float64)] if relu else []
    wide = (a.astype(np.float64) for a in (dy, x, gamma, mean, inverse))
    wanted = numpy_ops.batch_norm_backward(*wide, fixed, *mask)
    close(found[0], wanted[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        close(one, other, np.abs(dy).sum(0))
    # Threads change no bit.
    again = forward(x, gamma, beta, relu, parts, 7, given_[1:3] if fixed else None)
    again += backward(dy, x, gamma, beta, mean, inverse, fixed, relu, parts, 7)
    for one, other in zip(again, (*given_, *found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("first", ["alike", "black"])
@pytest.mark.parametrize("channels", [5, 24, 64])
def test_statistics_far_from_zero(channels, first):
    x = (100 + 0.1 * np.random.default_rng(0).standard_normal((5000, channels))).astype(np.float32)
    if first == "black":
        x[:900] = 0
    one = np.ones(channels, np.float32)
    y, mean, var, _ = forward(x, one, one, False, parts=2)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=3e-7)
    np.testing.assert_allclose(var, exact.var(0), rtol=2e-6)
    scaled = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + EPSILON) + 1
    # As exact as the mean is in float32, with half a unit of 4e-6.
    np.testing.assert_allclose(y, scaled, atol=1e-4)


def test_constant_channels_have_no_variance():
    x = np.full((700, 3), 0.1, np.float32)
    y, mean, var, _ = forward(x, np.ones(3), np.full(3, 0.5), False)
    np.testing.assert_array_equal(mean, x[0])
    np.testing.assert_array_equal(var, 0)
    np.testing.assert_array_equal(y, 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pixel", [0, 40, 699])
@pytest.mark.parametrize("relu", [False, True])
def test_a_nan_shows_in_its_channel_alone(value, pixel, relu):
    x, dy, gamma, beta = draw(10, 2, 0.9, 0)
    x, dy = (np.resize(a, (700, 10)) for a in (x, dy))
    x[pixel, 3] = value
    y, mean, var, inverse = forward(x, gamma, beta, relu, parts=2)
    dx, dgamma, dbeta = backward(dy, x, gamma, beta, mean, inverse, False, relu, parts=2)
    assert np.isnan([y[pixel, 3], var[3], dgamma[3]]).all()
    assert np.isnan(dx[:, 3]).all()
    rows = np.concatenate([y, dx, np.stack([mean, var, inverse, dgamma, dbeta])])
    assert np.isfinite(np.delete(rows, 3, 1)).all()


@pytest.mark.parametrize("where", ["gamma", "beta", "mean", "var"])
def test_nan_of_a_vector_shows_after_the_relu(where):
    x, _, gamma, beta = draw(10, 2, 0.9, 0)
    vectors = {"gamma": gamma, "beta": beta, "mean": np.zeros(10), "var": np.ones(10)}
    vectors[where][7] = np.nan
    y = forward(x, gamma, beta, True, statistics=(vectors["mean"], vectors["var"]))[0]
    assert np.isnan(y[:, 7]).all()
    assert np.isfinite(np.delete(y, 7, 1)).all()


def test_fixed_statistics_keep_x_out_of_its_gradient():
    x, dy, gamma, beta = draw(10, 2, 0.9, 0)
    x[5, 3] = np.nan
    found = backward(dy, x, gamma, beta, beta, np.abs(gamma), True, False)
    np.testing.assert_allclose(found[0], dy * (gamma * np.abs(gamma)), rtol=1e-6)
    assert np.isnan(found[1][3])


@pytest.mark.parametrize("channels", [5, 24, 48])
def test_equals_pytorch(channels):
    torch = pytest.importorskip("torch")
    x, dy, gamma, beta = draw(channels, 40, 0.5, 0)
    given_ = [torch.from_numpy(a).requires_grad_() for a in (x, gamma, beta)]
    made = torch.nn.functional.batch_norm(given_[0], None, None, *given_[1:], True, 0, EPSILON)
    made = torch.relu(made)
    made.backward(torch.from_numpy(dy))
    y, mean, _, inverse = forward(x, gamma, beta, True)
    np.testing.assert_allclose(y, made.detach().numpy(), atol=1e-5)
    found = backward(dy, x, gamma, beta, mean, inverse, False, True)
    for one, tensor in zip(found, given_, strict=True):
        close(one, tensor.grad.numpy(), np.sqrt(len(x)) * 2)
