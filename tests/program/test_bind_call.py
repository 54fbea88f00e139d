"""Calls in their quickest form: the same bits as the calls themselves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.program.lower_sweeps import ready

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


@pytest.mark.parametrize("kind", [np.float16, np.int64])
def test_products_without_blas(kind, rng):
    a = (10 * rng.standard_normal((4, 5))).astype(kind)
    out = np.empty((4, 4), kind)
    ready(np.matmul, (a, a.T), {"out": out})()
    np.testing.assert_array_equal(out, np.matmul(a, a.T))


@pytest.mark.parametrize("number", [0, 0.1, -3, 1e-300, 1e30, 2**70])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
@pytest.mark.parametrize("function", [np.add, np.multiply, np.maximum, np.greater, np.power])
def test_numbers_among_the_operands(function, kind, number, rng):
    x = np.abs(10 * rng.standard_normal(9)).astype(kind)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            wanted = function(x, number), function(number, x)
        except (OverflowError, ValueError):
            # What NumPy refuses is not recorded.
            return
        for operands, result in zip([(x, number), (number, x)], wanted, strict=True):
            out = np.empty_like(result)
            ready(function, operands, {"out": out})()
            assert out.tobytes() == result.tobytes()


def test_several_results_and_other_keywords(rng):
    x, chosen = rng.standard_normal((2, 9))
    whole, rest = np.empty(9), np.empty(9)
    ready(np.modf, (x,), {"out": (rest, whole)})()
    np.testing.assert_array_equal([rest, whole], np.modf(x))
    out = np.zeros(9)
    ready(np.add, (x, 1.0), {"out": out, "where": chosen > 0})()
    np.testing.assert_array_equal(out, np.where(chosen > 0, x + 1.0, 0))


@pytest.mark.parametrize("given_axis", [{}, {"axis": 1}, {"axis": None}, {"axis": (0, 1)}])
@pytest.mark.parametrize("kept", [{}, {"keepdims": True}, {"keepdims": False, "dtype": "d"}])
def test_reductions(given_axis, kept, rng):
    x = rng.standard_normal((4, 5)).astype(np.float32)
    keywords = {**given_axis, **kept}
    wanted = np.asarray(np.add.reduce(x, **keywords))
    out = np.empty_like(wanted)
    ready(np.add.reduce, (x,), {**keywords, "out": out})()
    assert out.tobytes() == wanted.tobytes()


def test_reductions_of_a_part_and_from_a_start(rng):
    x = rng.standard_normal((4, 5))
    out = np.empty(5)
    for keywords in ({"initial": 3.0}, {"where": x > 0, "initial": 1.0}):
        ready(np.multiply.reduce, (x,), {"axis": 0, "out": out, **keywords})()
        np.testing.assert_array_equal(out, np.multiply.reduce(x, axis=0, **keywords))


def test_where_the_largest_are(rng):
    x = rng.standard_normal((4, 5))
    out = np.empty(4, np.int64)
    ready(np.argmax, (x,), {"axis": 1, "out": out})()
    np.testing.assert_array_equal(out, np.argmax(x, axis=1))


def test_copies():
    target, source = np.zeros((2, 3), np.float32), np.arange(3.0)
    ready(np.copyto, (target, source), {})()
    np.testing.assert_array_equal(target, [[0, 1, 2]] * 2)
    ready(np.copyto, (target, 5), {})()
    assert (target == 5).all()
    ready(np.copyto, (target, source), {"where": source > 1})()
    np.testing.assert_array_equal(target, [[5, 5, 2]] * 2)
    counts = np.zeros(3, np.int64)
    ready(np.copyto, (counts, source), {"casting": "unsafe"})()
    np.testing.assert_array_equal(counts, [0, 1, 2])
    with pytest.raises(TypeError, match="Cannot cast"):
        ready(np.copyto, (counts, source), {})()


def test_anything_else_is_called_as_it_is():
    seen = []
    ready(lambda *given, **named: seen.append((given, named)), (1,), {"two": 2})()
    assert seen == [((1,), {"two": 2})]
