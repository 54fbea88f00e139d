"""The contract of every kernel of every backend; `kernel_rows.ROWS` is the table of kernels.

Values equal a formula in float64 and gradients its slope, in any memory order and in every float
type; arguments do not change, and the bits are the same each time.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet.ops import NumpyOps, numpy_ops
from singanet.ops.kernel import by_cost, in_order, kernels
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import kernels as kernels_of_llvm
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.numpy import linear, normalise, pointwise, pool, windows
from singanet.ops.numpy.conv import im2col
from singanet.ops.onednn import OneDnnOps, attending, eltwise, products
from singanet.ops.onednn import normalise as normalise_of_onednn
from singanet.ops.onednn import pool as pool_of_onednn
from singanet.ops.window import Window
from singanet.testing.layer_case import laid_out
from tests.ops.kernel_rows import ROWS, flat, mapped, recurrent_results

ELSEWHERE = {
    "test_draws": {"uniform", "normal", "keep_mask", "bernoulli"},
    "test_attention": {"attend", "attend_few", "attend_backward"},
    "test_held": {"multiply_held"},
    "test_numpy": {"gather_rows", "sum_rows", "add_rows", "add_to_rows", "of_rows", "map_rows",
                   "look_up", "check", "empty", "zeros", "sum", "mean", "first_equal", "select",
                   "host", "time_major", "batch_major", "side_by_side"},
}  # fmt: skip
"""Kernels that are not functions of arrays alone, by the file with their tests."""
NEAR = {"f8": 1e-10, "f4": 1e-5, "f2": 5e-3}
EVERY = pytest.mark.parametrize("row", ROWS, ids=[f"{row.name}{k}" for k, row in enumerate(ROWS)])


def arguments(row, size, kind="f8"):
    """The arguments rounded to ``kind``, and the same in float64."""
    rng = np.random.default_rng(0)
    given = row.given(lambda *shape: rng.standard_normal(shape), *size)
    given = mapped(lambda a: a.astype(kind) if a.dtype.kind == "f" else a, given)
    return given, mapped(lambda a: a.astype("f8") if a.dtype.kind == "f" else a, given)


def gradient_like(wanted, kind):
    return np.random.default_rng(1).standard_normal(wanted.shape).astype(kind)


def close(found, wanted, kind, near, note):
    assert found.shape == wanted.shape, note
    assert found.dtype == kind or wanted.dtype.kind != "f", note
    allowed = near * np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=allowed, err_msg=f"{note}")


def both(ops, row, args, dy=None):
    """The results, and pairs of an argument and its gradient."""
    made = getattr(ops, row.name)(*args)
    kind = row.name.removesuffix("_layer")
    results = flat(made) if kind == row.name else [recurrent_results(kind, args, made)]
    found = [each.copy() for each in results]
    return found, row.back(ops, args, made, dy) if row.back and dy is not None else []


def in_pieces(patch, scratch, threads):
    """Let NumPy's kernels compute in pieces of some bytes by several threads, or at once."""
    patch.setattr(linear, "LEAST", 1)
    patch.setattr(linear, "default_threads", lambda: threads)
    if scratch:
        patch.setattr(windows, "SCRATCH_BYTES", scratch)
        patch.setattr(linear, "_PRODUCT_BYTES", scratch)
        patch.setattr(im2col, "_SMALL", scratch)
        for module in (normalise, pointwise, pool):
            patch.setattr(module, "_BLOCK_BYTES", scratch)


PIECES = [(None, 1), (1, 3), (1000, 2)]


@pytest.fixture(params=PIECES, ids=["at once", "pieces", "some pieces"])
def pieces(request, monkeypatch):
    in_pieces(monkeypatch, *request.param)


@EVERY
def test_formula_and_slope(row, pieces):
    for size in row.sizes:
        expect_exact(row, size)


def expect_exact(row, size):
    args, _ = arguments(row, size)
    wanted = flat(row.formula(*args))
    dy = gradient_like(wanted[0], "f8")
    found, _ = both(numpy_ops, row, mapped(np.copy, args))
    for one, other in zip(found, wanted, strict=False):
        close(one, other, "f8", NEAR["f8"], size)
    args, _ = arguments(row, size)
    places = {id(array): place for place, array in enumerate(flat(args))}
    _, pairs = both(numpy_ops, row, args, dy)
    for at, (array, grad) in enumerate(pairs):
        assert grad.shape == array.shape, size
        way = np.random.default_rng(at + 2).standard_normal(array.shape)
        step = 0.5 if row.multilinear else 1e-5
        ends = []
        for sign in (step, -step):
            moved = iter(range(len(places)))
            there = mapped(lambda a: a + sign * way if next(moved) == places[id(array)] else a,  # noqa: B023
                           args)  # fmt: skip
            ends.append(flat(row.formula(*there))[0])
        with np.errstate(invalid="ignore"):
            slope = (ends[0] - ends[1]) / (2 * step)
        terms = slope * dy
        # The error of the sum, of a difference quotient beside its terms.
        near = (1e-12 if row.multilinear else 1e-7) * (1 + np.abs(terms[np.isfinite(terms)]).sum())
        assert abs((grad * way).sum() - np.nansum(terms)) <= near, (size, at)


def expect_near(ops, row, size, kind, laid):
    """Check results and gradients of a backend for arguments in several memory layouts."""
    args, wide = arguments(row, size, kind)
    wanted = flat(row.formula(*wide))
    near = NEAR[kind]
    exact = getattr(getattr(NumpyOps, row.name), "exact", ())
    kinds = ["f4" if kind == "f2" and k in exact else kind for k in range(len(wanted))]
    dy = gradient_like(wanted[0], kind)
    _, grads = both(numpy_ops, row, mapped(np.copy, wide), dy.astype("f8"))
    first = None
    for layout in laid:
        note = size, layout
        lying = mapped(lambda a: laid_out(a.copy())[layout] if a.ndim else a, args)  # noqa: B023
        before = [array.copy() for array in flat(lying)]
        found, pairs = both(ops, row, lying, laid_out(dy)[layout])
        for one, other, type_ in zip(found, wanted, kinds, strict=False):
            close(one, other, type_, near, note)
        for (_, one), (_, other) in zip(pairs, grads, strict=True):
            close(one, other, kind, 3 * near, note)
        first = first or (found, pairs)
        if row.name != "add_matmul":
            for array, same in zip(flat(lying), before, strict=True):
                np.testing.assert_array_equal(array, same, err_msg=f"{note}")
    again = both(ops, row, mapped(np.copy, args), dy)
    for one, other in zip(flat(list(first)), flat(list(again)), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=f"{size}")


@pytest.mark.few(24)
@pytest.mark.parametrize("kind", ["f4", "f2"])
@EVERY
def test_numpy(row, kind):
    for k, size in enumerate(row.sizes):
        expect_near(numpy_ops, row, size, kind, laid=(0, 1 + k % 3))


def routed(backend):
    return {name for name in kernels(NumpyOps) if hasattr(getattr(backend, name), "routes")}


def compiled_rows(rows):
    """A mark of the backends with the rows for which they have kernels."""
    pairs = [(kind, row) for kind in (LlvmOps, OneDnnOps) for row in rows
             if any(name.startswith(row.name) for name in routed(kind))]  # fmt: skip
    ids = [f"{kind.__name__}-{row.name}" for kind, row in pairs]
    names = [({LlvmOps: "llvm", OneDnnOps: "onednn"}[kind], row) for kind, row in pairs]
    return pytest.mark.parametrize(("backend", "row"), names, ids=ids)


@pytest.fixture
def eager(monkeypatch):
    """Compiled backends take every size: the least sizes of their own kernels are 1."""
    for module in (
        attending,
        eltwise,
        kernels_of_llvm,
        normalise_of_onednn,
        pool_of_onednn,
        products,
    ):
        for name, least in [*vars(module).items()]:
            if "LEAST" in name and "FACTOR" not in name:
                ones = dict.fromkeys(least, 1) if isinstance(least, dict) else 1
                monkeypatch.setattr(module, name, ones)
    monkeypatch.setattr(products, "_FEW", 1)
    monkeypatch.setattr(PlannedOps, "few", True)


@pytest.mark.few(24)
@compiled_rows(ROWS)
def test_compiled_of_any_size(backend, row, request, eager):
    for k, size in enumerate(row.sizes):
        expect_near(request.getfixturevalue(backend), row, size, "f4", laid=(0, 1 + k % 3))


@pytest.fixture
def counted(monkeypatch):
    """Makes a backend with routes count its calls, and the ones left to NumPy."""
    monkeypatch.setattr(PlannedOps, "few", True)
    monkeypatch.setattr(OneDnnOps, "shares_products", lambda self: True)

    def count(ops):
        calls, left = Counter(), Counter()
        for name in routed(type(ops)):
            route = getattr(type(ops), name)

            def last(self, *given, name=name, **named):
                left[name] += 1
                return getattr(NumpyOps, name)(self, *given, **named)

            if case := getattr(route, "case", None):
                made = by_cost(*route.routes, case=case, last=last)
            else:
                made = in_order(*route.routes, last=last)

            def call(self, *given, name=name, made=made, **named):
                calls[name] += 1
                return made(self, *given, **named)

            monkeypatch.setattr(type(ops), name, call)
        return calls, left

    return count


LARGE = [row for row in ROWS if row.large]


@compiled_rows(LARGE)
def test_compiled_of_their_sizes(backend, row, request, counted):
    ops = request.getfixturevalue(backend)
    calls, left = counted(ops)
    for k, size in enumerate(row.large):
        expect_near(ops, row, size, "f4", laid=(0, 1 + k % 3))
    never = {name for name in calls if name.startswith(row.name) and left[name] == calls[name]}
    # Without AVX-512 oneDNN does not offer some kernels.
    assert not never or None in ops.runtime()._plans.values()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("backend", ["numpy", "llvm", "onednn"])
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * 2),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    per_group=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    groups=st.sampled_from([1, 2, 3, 4, 6, 8]),
    part=st.sampled_from(PIECES),
)
def test_any_convolution(backend, request, kernel, stride, pads, dilation, per_group, groups, part):
    window = Window(kernel, stride, pads, dilation)
    sides = tuple(max(extent, 5) for extent in window.extent)
    row = next(row for row in ROWS if row.name == "conv2d")
    size = 2, sides, per_group[0] * groups, per_group[1] * groups, window, groups
    if backend == "numpy":
        with pytest.MonkeyPatch.context() as patch:
            in_pieces(patch, *part)
            expect_exact(row, size)
    else:
        expect_near(request.getfixturevalue(backend), row, size, "f4", laid=(0, 3))


def noted(rows, sizes):
    """The names of the kernels called by rows, with the sizes that ``sizes`` selects."""
    seen = set()

    class Noted:
        def __getattr__(self, name):
            seen.add(name)
            return getattr(numpy_ops, name)

    for row in rows:
        for size in sizes(row):
            args, _ = arguments(row, size)
            wanted = flat(row.formula(*args))[0]
            both(Noted(), row, args, gradient_like(wanted, "f8"))
    return seen


def test_no_kernel_is_left_out():
    seen, elsewhere = noted(ROWS, lambda row: row.sizes[:5]), set().union(*ELSEWHERE.values())
    assert not seen & elsewhere
    assert seen | elsewhere == set(kernels(NumpyOps))
    assert routed(LlvmOps) | routed(OneDnnOps) <= elsewhere | noted(
        LARGE, lambda row: row.large[:1]
    )


@pytest.mark.parametrize("backend", ["numpy", "llvm", "onednn"])
@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize("shape", [(4, 5, 3), (0, 5, 3), (5, 1, 7), (1, 1, 0), (64, 300, 80)])
def test_a_product_in_memory_of_the_caller(backend, kind, shape, request):
    ops = numpy_ops if backend == "numpy" else request.getfixturevalue(backend)
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
    wanted = ops.matmul(a, b)
    transposed = np.empty((n, m), kind).T
    for out in (np.full((m, n), np.nan, kind), np.empty((m, 2 * n), kind)[:, ::2], transposed):
        assert ops.matmul(a, b, out=out) is out
        close(out, wanted.astype("f8"), kind, NEAR[kind], shape)
    with pytest.raises(ValueError, match="mismatch"):
        ops.matmul(a, np.ones((k + 1, n), kind))
