"""The interface of kernels: backends, routes, and the modules that a user of kernels loads."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet.device import Device
from singanet.ops import NumpyOps, Ops, numpy_ops
from singanet.ops.kernel import (
    NEVER,
    Route,
    by_cost,
    cheapest,
    in_order,
    kernel,
    kernels,
    kernels_by_cost,
)
from singanet.ops.onednn import OneDnnOps

SURROUNDINGS = {
    "as_one", "lanes", "jobs", "team", "settings", "remarks", "trim", "pass_on_nan",
    "prepared_held", "has_attention", "has_sweep", "multiplier", "sweep",
    "further_attention", "arithmetic", "joint_sweep", "rounds_rows",
}  # fmt: skip
"""Methods of a backend that are not kernels."""

PACKAGE = Path(singanet.__file__).parent


def of_interface():
    public = {name: member for name, member in vars(Ops).items() if name[0] != "_"}
    return {name for name, member in public.items() if inspect.isfunction(member)}


@pytest.mark.parametrize("backend", [NumpyOps, OneDnnOps])
def test_a_backend_has_every_kernel_and_declares_what_half_precision_means(backend):
    assert set(kernels(backend)) == of_interface() - SURROUNDINGS
    assert set(kernels(backend).values()) == {"lift", "product", "native"}
    for name in kernels(backend):
        wanted = inspect.signature(getattr(Ops, name)).parameters
        given = inspect.signature(getattr(backend, name)).parameters
        assert list(given)[1:] == list(wanted)[1:], name
        ours, theirs = ([each.default for each in of.values()] for of in (given, wanted))
        assert ours == theirs, name


def test_public_methods_are_of_the_interface():
    public = {name for name in dir(NumpyOps) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(NumpyOps, name))}
    assert methods == of_interface() | {"lane_count"}


def test_kernels_have_docstrings_and_backends_few_base_classes():
    assert [name for name in of_interface() if not getattr(Ops, name).__doc__] == []
    assert max(len(NumpyOps.__mro__), len(OneDnnOps.__mro__)) <= 5
    assert (numpy_ops.xp, numpy_ops.name) == (np, "numpy")


def test_the_kernels_with_routes_to_measure_are_convolutions():
    kinds, ends = ("conv2d", "depthwise_conv2d"), ("", "_backward_data", "_backward_weights")
    wanted = {f"{kind}{end}" for kind in kinds for end in ends} | {"conv2d_constant"}
    assert set(kernels_by_cost(OneDnnOps)) == wanted
    assert kernels_by_cost(NumpyOps) == []


class Own(NumpyOps):
    """A user's kernels: an overridden and a new one."""

    name = "own"

    def __init__(self):
        super().__init__(np)
        self.dtypes = set()

    def matmul(self, a, b, *, out=None):
        self.dtypes |= {a.dtype.name, b.dtype.name}
        return super().matmul(a, b, out=out)

    @kernel(half="lift")
    def doubled(self, x):
        self.dtypes.add(x.dtype.name)
        return self.add(x, x)


def test_a_users_class_overrides_a_kernel_by_a_method():
    net = singanet.FeedForwardNet(singanet.loss.SquaredError(), seed=0)
    net.add(singanet.layers.Dense("out", 3, input_sample_shape=(4,)))
    ops = Own()
    net.device = Device("own", ops)
    net.forward(True, np.ones((2, 4), np.float32))
    for _ in net.backward(np.ones((2, 3), np.float32)):
        pass
    assert ops.dtypes == {"float32"}


def test_a_users_kernels_are_lifted_as_they_say_or_as_what_they_override():
    ops = Own()
    assert (kernels(Own)["matmul"], kernels(Own)["doubled"]) == ("product", "lift")
    x = np.ones((3, 3), np.float16)
    assert ops.matmul(x, x).dtype == ops.doubled(x).dtype == np.float16
    assert ops.dtypes == {"float32"}


def modules():
    """The files of the package by module."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("singanet", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path):
    """What the statements of a module import when it is loaded."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def closure(start):
    """The modules that are named on the way from ``start``."""
    files, seen, ahead = modules(), set(), [start]
    while ahead:
        name = ahead.pop()
        if name in files and name not in seen:
            seen.add(name)
            ahead += imported(files[name])
    return seen


def test_a_layer_file_needs_few_modules():
    """Two are of products; names of other libraries, byte orders, whose code it is: one each."""
    needed = closure("singanet.layers.dense") - {"singanet.layers.dense"}
    assert len(needed) <= 25, sorted(needed)
    assert "singanet.ops.interface" in needed
    backends = ("singanet.ops.numpy", "singanet.ops.onednn")
    assert not any(name.startswith(backends) for name in needed)


@kernel(half="native")
def last(ops, x, *, twice=False):
    """What every route does."""
    return f"last {x}{x if twice else ''}"


def says(name, fits, cost=1.0):
    """A route that tells its name."""
    return Route(name, lambda ops, x: f"{name} {x}", lambda ops, x: fits(x), lambda ops, x: cost)


def too_late(name, fits, cost=1.0):
    """A route that finds out only when it runs that it cannot."""
    return Route(name, lambda ops, x: None, lambda ops, x: fits(x), lambda ops, x: cost)


even = says("even", lambda x: x % 2 == 0)


def test_the_first_route_that_fits_is_taken():
    late, low = too_late("late", lambda x: x > 10), says("low", lambda x: x < 3)
    made = in_order(late, even, low, last=last)
    found = [made(None, x) for x in (1, 2, 5, 11, 12)]
    assert found == ["low 1", "even 2", "last 5", "last 11", "even 12"]
    assert [in_order(even, last=last)(None, x) for x in (4, 5)] == ["even 4", "last 5"]
    assert in_order(too_late("late", lambda x: True), last=last)(None, 4) == "last 4"


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_is_what_its_last_route_is(count):
    routes = [says("no", lambda x: False)] * count
    made = in_order(*routes, last=last)
    assert made.half == "native"
    assert made.__doc__ == "What every route does."
    assert inspect.signature(made) == inspect.signature(last)
    assert made.routes == tuple(routes)
    options = Route("no", last, lambda ops, x, twice=False: False)
    assert in_order(*[options] * count, last=last)(None, 2, twice=True) == "last 22"


def table(*routes, limit=9):
    """A kernel for numbers up to a limit, and what its chooser is asked."""
    asked = []

    def choose(ops, case, estimates):
        asked.append((case, dict(estimates)))
        return cheapest(estimates)

    made = by_cost(*routes, case=lambda ops, x: x if x <= limit else None, last=last)
    ops = SimpleNamespace(chooser=SimpleNamespace(version=0, choose=choose))
    return lambda x: made(ops, x), asked


def test_of_routes_that_fit_the_chooser_takes_one():
    call, asked = table(says("dear", lambda x: True, 2.0), says("cheap", lambda x: x > 1, 0.5))
    assert [call(x) for x in (5, 1, 10)] == ["cheap 5", "dear 1", "last 10"]
    # With one route there is nothing to choose, and none serves above the limit.
    assert asked == [(5, {"dear": 2.0, "cheap": 0.5})]


def test_the_next_cheapest_stands_in_but_none_that_only_measuring_could_choose():
    late = too_late("late", lambda x: True, 0.5)
    never = says("never", lambda x: True, NEVER)
    call, asked = table(late, says("dear", lambda x: x > 1, 2.0), never)
    assert [call(5), call(1)] == ["dear 5", "last 1"]
    assert asked[0] == (5, {"late": 0.5, "dear": 2.0, "never": NEVER})
    assert np.isinf(NEVER)
