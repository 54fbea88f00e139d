"""Costs choices decide the route; without one the estimate does, and all routes agree."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import NumpyOps, numpy_ops
from singanet.ops import costs as route_file
from singanet.ops import costs as speeds
from singanet.ops.casts import has_compiler
from singanet.ops.costs import BUILT_IN, ROUTES, Case
from singanet.ops.kernel import by_cost, cheapest
from singanet.ops.llvm import LlvmOps
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.conv import product
from singanet.ops.window import Window

USUAL = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
X, WEIGHT = (2, 5, 9, 10), (6, 5, 3, 3)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def path(tmp_path, monkeypatch):
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    return named


def choose(ops, path, kernel, route, threads=None):
    """Write a choice for the sizes above."""
    runtime = ops.runtime()
    case = Case(kernel, X, WEIGHT, USUAL)
    route_file.keep(runtime.library.version, threads or runtime.threads, {case: route})


def run(ops, kernel, dtype=np.float32):
    x, weight, bias = (draw(*s, seed=k).astype(dtype) for k, s in enumerate((X, WEIGHT, (6,))))
    dy = draw(2, 6, 9, 10, seed=3).astype(dtype)
    if kernel == "forward":
        return ops.conv2d(x, weight, bias, USUAL)
    if kernel == "data":
        return ops.conv2d_backward_data(dy, weight, X, USUAL)
    return ops.conv2d_backward_weights(x, dy, WEIGHT, USUAL)


@pytest.fixture
def taken(ops, monkeypatch):
    """Which routes ran, of the kernels that were called by the test."""
    found = []

    def watched(route):
        def run(self, *operands):
            found.append(route.name)
            return route.run(self, *operands)

        return route._replace(run=run)

    for name in ("conv2d", "conv2d_backward_data", "conv2d_backward_weights"):
        kernel = getattr(OneDnnOps, name)
        routes = map(watched, kernel.routes)
        made = by_cost(*routes, case=kernel.case, last=getattr(NumpyOps, name))
        monkeypatch.setattr(OneDnnOps, name, made)
    return found


@pytest.mark.parametrize("kernel", ["forward", "data", "weights"])
@pytest.mark.parametrize("route", ROUTES)
def test_the_measured_route_is_taken_and_right(ops, path, taken, kernel, route):
    if route == "compiled" and not has_compiler():
        pytest.skip("llvmlite is not installed")
    choose(ops, path, kernel, route)
    got = run(ops, kernel)
    wanted = run(numpy_ops, kernel, np.float64)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())
    if route == "blocked":
        assert taken == ["direct"]  # the weight is in the cache
    elif (kernel, route) == ("data", "product"):
        assert taken == ["direct"]  # its windows would have to be added up
    elif (kernel, route) == ("data", "numpy"):
        assert taken == ["numpy", "direct"]  # NumPy gathers, and convolves what it has gathered
    else:
        assert taken == [route]


def test_without_a_choice_for_these_threads_the_estimate_decides(ops, path, taken):
    choose(ops, path, "forward", "numpy", threads=ops.runtime().threads + 1)
    run(ops, "forward")
    assert taken == ["direct"]


def test_switched_off_the_estimate_decides(ops, path, taken, monkeypatch):
    choose(ops, path, "forward", "numpy")
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    run(ops, "forward")
    assert taken == ["direct"]


LARGE = ((2, 64, 16, 16), (64, 64, 3, 3))


def large(library_path):
    """Kernels as a new process has them, and what they make of a convolution with many channels."""
    ops = OneDnnOps(library_path, required=True)
    x, weight = draw(*LARGE[0]), draw(*LARGE[1], seed=1)
    made = [
        ops.conv2d(x, weight, None, USUAL),
        ops.conv2d_backward_data(x, weight, x.shape, USUAL),
        ops.conv2d_backward_weights(x, x, weight.shape, USUAL),
    ]
    return b"".join(array.tobytes() for array in made)


@pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")
def test_the_same_file_gives_the_same_bits(library_path, path, monkeypatch):
    """Whatever a processor would be measured to be by another process."""
    slow_tiles = BUILT_IN._replace(tile_value=15 * BUILT_IN.tile_value)
    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(lambda library: slow_tiles))
    first = large(library_path)
    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(lambda library: BUILT_IN))
    assert large(library_path) == first
    path.unlink()
    assert large(library_path) != first


def test_switched_off_no_processor_counts(library_path, no_compiler, monkeypatch):
    """Neither what was measured nor the size of a cache: choices are the same on all."""
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    monkeypatch.setattr(OneDnnOps, "calibrate", None)
    cases = [
        Case(kernel, (n, channels, size, size), (channels, channels, 3, 3), USUAL)
        for kernel in ("forward", "data", "weights")
        for n in (1, 8, 32)
        for channels, size in ((64, 28), (256, 8), (512, 4), (512, 2))
    ]

    def chosen():
        ops = OneDnnOps(library_path, required=True)
        routes = {
            "forward": OneDnnOps.conv2d.routes,
            "data": OneDnnOps.conv2d_backward_data.routes,
            "weights": OneDnnOps.conv2d_backward_weights.routes,
        }
        open_to = [[route for route in routes[c.kernel] if route.fits(ops, c)] for c in cases]
        costs = [
            {route.name: route.estimate(ops, case) for route in fitting}
            for case, fitting in zip(cases, open_to, strict=True)
        ]
        return [cheapest(each) for each in costs]

    found = []
    for cache in (1 << 18, 1 << 24):
        monkeypatch.setattr(speeds, "cache_size", lambda cache=cache: cache)
        found.append(chosen())
    assert found[0] == found[1]
    assert {"direct", "numpy"} <= {*found[0]}


def test_the_file_is_read_once_at_the_first_convolution(ops, path, taken):
    settings = ops.settings()
    run(ops, "weights")
    assert ops.settings() == settings
    choose(ops, path, "forward", "numpy")
    run(ops, "forward")
    assert taken == ["direct", "direct"]


def test_adopted_choices_count_at_once_and_are_seen_by_programs(ops, path, taken):
    run(ops, "forward")
    before = ops.settings()
    case = Case("forward", X, WEIGHT, USUAL)
    ops.chooser.adopt({case: "product"}, ops.runtime())
    assert ops.settings() != before
    run(ops, "forward")
    assert taken == ["direct", "product"]
    ops.chooser.adopt({case: "numpy"}, ops.runtime())
    run(ops, "forward")
    assert taken == ["direct", "product", "numpy"]


def test_an_impossible_choice_leaves_oneDNNs_convolution(ops, path, taken):
    """As from a file of a later version; nothing is taken that cannot compute it."""
    window = Window((3, 3), (2, 2), ((1, 1), (1, 1)))
    case = Case("forward", X, WEIGHT, window)
    version = ops.runtime().library.version
    route_file.keep(version, ops.runtime().threads, {case: "compiled"})
    ops.conv2d(draw(*X), draw(*WEIGHT), None, window)
    assert taken == ["direct"]


def test_products_of_copied_windows_are_open_while_they_fit_the_cache(ops, chosen, monkeypatch):
    ops.conv2d(draw(*X), draw(*WEIGHT), None, USUAL)
    monkeypatch.setattr(product, "_MOST_COPIED", 180 * 45 - 1)
    ops.conv2d(draw(*X), draw(*WEIGHT), None, USUAL)
    tiles = ["compiled"] * has_compiler()
    assert chosen.offered == [[*tiles, "product", "direct", "numpy"], [*tiles, "direct", "numpy"]]


def test_what_the_table_of_devices_tells(ops, path, monkeypatch):
    known = BUILT_IN._replace(direct=0.02, narrow=0.01)
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: known)
    assert list(ops.remarks()) == [*numpy_ops.remarks(), "onednn"]
    none = ops.remarks()["onednn"]
    assert "none measured: singanet tune" in none[0]
    beside = ["multiplies bfloat16 2.0 times as fast as float32"] * ops.library().bfloat16
    assert none[1:] == beside
    known = known._replace(narrow=0.02)
    if ops.library().bfloat16:
        told = 'multiplies bfloat16 1.0 times as fast as float32, too little for "auto"'
        assert ops.remarks()["onednn"][1] == told
    choose(ops, path, "forward", "numpy")
    fresh = OneDnnOps(ops.path, required=True)
    threads = ops.runtime().threads
    told = f"1 convolutions as measured with {threads} threads, {path}"
    assert fresh.remarks()["onednn"][0] == told
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    off, *_ = OneDnnOps(ops.path, required=True).remarks()["onednn"]
    assert "SINGANET_ROUTES=off" in off


def test_llvms_routes_come_first():
    for name, kernel in vars(LlvmOps).items():
        if hasattr(kernel, "routes"):
            assert getattr(OneDnnOps, name).routes[0].name == "compiled", name
