"""Element-wise arithmetic by oneDNN: NumPy's bits, whatever lies where."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from singanet.ops import threads
from singanet.ops.llvm.plans import SHARED
from singanet.ops.onednn import set_threads
from singanet.ops.onednn.eltwise import sweep

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
    for number, scaled, place in product(
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
