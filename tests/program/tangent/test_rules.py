"""The derivatives of NumPy's functions, against differences."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.on_device.device_lowering import OnDevice
from singanet.program.on_device.device_products import DeviceArrays
from singanet.program.tangent import _PARTIALS, is_constant, rule_of

STEP = 1e-6


def rng():
    return np.random.default_rng(0)


def floats(*shape):
    """From 0.4 to 1.6, where all of the functions are smooth."""
    return 1.0 + 0.6 * rng().uniform(-1, 1, shape)


A, B = floats(2, 3, 4), floats(3, 4)[::-1] + 0.01
WHERE = np.array([2, 0, 1])
CALLS = {
    **{f.__name__: (f, (A, B)[: f.nin], {}) for f in _PARTIALS},
    "numbers": (np.multiply, (A, 3.0), {}),
    "a mask": (np.multiply, (A, A > 1), {}),
    "power": (np.power, (A, 3), {}),
    "matmul": (np.matmul, (A, B.T), {}),
    "itself": (np.matmul, (A, A.transpose(0, 2, 1)), {}),
    "einsum": (np.einsum, ("nij,ij->ni", A, B), {}),
    "dot": (np.dot, (A, B.T), {}),
    "concatenate": (np.concatenate, ([A, A + B],), {"axis": 1}),
    "stack": (np.stack, ([A, A * B],), {"axis": -1}),
    "add.reduce": (np.add.reduce, (A, (0, 2)), {"keepdims": True}),
    "mean": (np.mean, (A,), {"axis": 1}),
    "repeat": (np.repeat, (A, 2), {"axis": 2}),
    "take": (np.take, (A, WHERE), {"axis": 1}),
    "cumsum": (np.cumsum, (A,), {"axis": 0}),
    "maximum.reduce": (np.maximum.reduce, (A, (1, 2)), {}),
    "minimum.reduce": (np.minimum.reduce, (A, -1), {"keepdims": True}),
    "clip": (np.clip, (A, 0.7, 1.2), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_rules_agree_with_differences(name):
    function, arguments, keywords = CALLS[name]
    draw = rng()
    tangents = {}

    def tangent(array):
        if array.dtype.kind != "f":
            return array
        return tangents.setdefault(id(array), draw.standard_normal(array.shape))

    def moved(value, step):
        if isinstance(value, list):
            return [moved(part, step) for part in value]
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value + step * tangent(value)
        return value

    found = rule_of(function)(function, arguments, keywords, tangent)
    ends = [
        function(*(moved(value, sign * STEP) for value in arguments), **keywords)
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(
        np.broadcast_to(found, ends[0].shape),
        (ends[0] - ends[1]) / (2 * STEP),
        rtol=1e-7,
        atol=1e-8,
    )


@pytest.mark.parametrize("name", CALLS)
def test_rules_agree_on_the_arrays_of_a_device(name, gpu):
    function, arguments, keywords = CALLS[name]
    xp, draw = gpu.ops.xp, rng()
    tangents = {}

    def tangent(array):
        here = np.asarray(array.get() if hasattr(array, "get") else array)
        if here.dtype.kind != "f":
            return array
        found = tangents.setdefault(here.tobytes(), draw.standard_normal(here.shape))
        return xp.asarray(found) if hasattr(array, "get") else found

    wanted = rule_of(function)(function, arguments, keywords, tangent)
    there = map_arrays(arguments, xp.asarray)
    lowered = OnDevice(xp, DeviceArrays(xp), [], ()).returning(function, keywords)
    found = rule_of(function)(lowered[0], there, lowered[1], tangent)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", [np.add.accumulate, np.add.reduceat])
def test_what_a_device_has_no_form_of_is_refused(function, gpu):
    with pytest.raises(NotRecordableError, match=r"add\.\w+ on a device"):
        OnDevice(gpu.ops.xp, DeviceArrays(gpu.ops.xp), [], ()).returning(function, {})


def test_of_equal_ones_the_largest_has_the_mean_tangent():
    x, t = np.array([[1.0, 3.0, 3.0]]), np.array([[5.0, 2.0, 4.0]])
    found = rule_of(np.maximum.reduce)(np.maximum.reduce, (x, 1), {}, lambda _: t)
    assert found.tolist() == [3.0]


def test_steps_have_none_and_others_are_unknown():
    assert is_constant(np.sign)
    assert not is_constant(np.exp)
    assert rule_of(np.sort) is None
