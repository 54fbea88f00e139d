"""The derivatives of NumPy's functions, against differences."""

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.layers import Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.on_device.device_lowering import OnDevice
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
    lowered = OnDevice(xp, [], ()).returning(function, keywords)
    found = rule_of(function)(lowered[0], there, lowered[1], tangent)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", [np.add.accumulate, np.add.reduceat])
def test_what_a_device_has_no_form_of_is_refused(function, gpu):
    with pytest.raises(NotRecordableError, match=r"add\.\w+ on a device"):
        OnDevice(gpu.ops.xp, [], ()).returning(function, {})


def test_of_equal_ones_the_largest_has_the_mean_tangent():
    x, t = np.array([[1.0, 3.0, 3.0]]), np.array([[5.0, 2.0, 4.0]])
    found = rule_of(np.maximum.reduce)(np.maximum.reduce, (x, 1), {}, lambda _: t)
    assert found.tolist() == [3.0]


def test_steps_have_none_and_others_are_unknown():
    assert is_constant(np.sign)
    assert not is_constant(np.exp)
    assert rule_of(np.sort) is None


# -- Tangents that are carried through a recorded pass ----------------------------------------


def net_of_two():
    """Scores for numbers and for labels, of the same inputs."""
    x = Input("x", (3,))
    ends = [Dense("numbers", 2, use_bias=False)(x), Dense("labels", 4, use_bias=False)(x)]
    loss = MultiLoss({"numbers": SquaredError(), "labels": SoftmaxCrossEntropy()})
    net = FeedForwardNet(inputs=x, outputs=ends, loss=loss, seed=0)
    net.as_type("float64")
    return net


def test_the_second_derivatives_of_two_losses_and_what_they_left_behind(rng):
    net, x, count = net_of_two(), rng.standard_normal((5, 3)), 5
    y = {"numbers": rng.standard_normal((5, 2)), "labels": rng.integers(0, 4, 5)}
    net.train(x, y)
    before = {name: part.copy() for name, part in net.loss.parts.items()}
    v, u = rng.standard_normal((3, 2)), rng.standard_normal((3, 4))
    found = net.hessian_vector_product(
        "loss",
        ["numbers/weight", "labels/weight"],
        {"x": rng.permutation(x), "targets": y},
        {"numbers/weight": v, "labels/weight": u},
    )
    # Half the mean square is quadratic: XᵀX v over all numbers, in whatever order samples come.
    np.testing.assert_allclose(found["numbers/weight"], x.T @ x @ v / (2 * count), rtol=1e-9)
    # Its parts are those of the last step, not of the question.
    assert before.keys() == net.loss.parts.keys()
    for name, part in net.loss.parts.items():
        np.testing.assert_array_equal(part, before[name])
    p = net.forward(False, x)["labels"]
    p = np.exp(p - p.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    again = net.hessian_vector_product(
        "loss", "labels/weight", {"x": x, "targets": y}, {"labels/weight": u}
    )
    moved = x @ u
    slopes = p * (moved - (p * moved).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(again["labels/weight"], x.T @ slopes / count, rtol=1e-8, atol=1e-12)
