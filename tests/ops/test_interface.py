"""The interface of kernels: backends are tables of it, and who writes with kernels loads none."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet.device import Device
from singanet.ops import NumpyOps, Ops, numpy_ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.kernel import kernel, kernels, kernels_by_cost
from singanet.ops.onednn import OneDnnOps

SURROUNDINGS = {
    "as_one",
    "lanes",
    "team",
    "settings",
    "remarks",
    "trim",
    "pass_on_nan",
    "prepared_held",
    "has_sweep",
    "sweep",
}
"""Methods of a backend that are no kernels."""

PACKAGE = Path(singanet.__file__).parent


def of_interface():
    return {
        name
        for name, member in vars(Ops).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


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


def test_helpers_are_no_kernels():
    """What is public is of the interface, but for how many lanes there are."""
    public = {name for name in dir(NumpyOps) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(NumpyOps, name))}
    assert methods == of_interface() | {"lane_count"}


def test_every_kernel_says_what_it_does():
    assert [name for name in of_interface() if not getattr(Ops, name).__doc__] == []


def test_nothing_is_chosen_by_the_order_of_base_classes():
    assert len(NumpyOps.__mro__) <= 5
    assert len(OneDnnOps.__mro__) <= 5


def test_the_shared_instance_works_on_numpy():
    assert numpy_ops.xp is np
    assert numpy_ops.name == "numpy"


def test_the_kernels_with_routes_to_measure_are_convolutions():
    kinds, ends = ("conv2d", "depthwise_conv2d"), ("", "_backward_data", "_backward_weights")
    wanted = {f"{kind}{end}" for kind in kinds for end in ends} | {"conv2d_constant"}
    assert set(kernels_by_cost(OneDnnOps)) == wanted
    assert kernels_by_cost(NumpyOps) == []


@pytest.mark.parametrize("mode", ACTIVATIONS)
def test_backward_is_given_what_activations_name(mode):
    x = np.linspace(-2.0, 2.0, 9)
    y = numpy_ops.activation(mode, x)
    kept = {"x": x, "y": y}[ACTIVATIONS[mode]]
    slopes = numpy_ops.activation_backward(mode, np.ones(9), kept)
    wanted = numpy_ops.activation(mode, x + 1e-6) - numpy_ops.activation(mode, x - 1e-6)
    away = np.abs(x) > 0.1
    np.testing.assert_allclose(slopes[away], wanted[away] / 2e-6, rtol=1e-6, atol=1e-8)


class Own(NumpyOps):
    """A user's kernels: one overridden by a method, one that is new."""

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
