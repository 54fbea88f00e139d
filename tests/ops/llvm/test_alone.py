"""LLVM's kernels without any other library: by its functions, and right."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.device import Device
from singanet.ops import numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.kernel import in_order
from singanet.ops.llvm import LlvmOps
from singanet.ops.window import Window

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")

USUAL = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
PAIRS = Window((2, 2), (2, 2), ((0, 0), (0, 0)))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, WEIGHT, LINE = draw(8, 48, 40, 40), draw(48, 48, 3, 3, seed=1), draw(48, seed=2)
LEVEL = np.abs(LINE) + 1
CALLS = {
    "conv2d": (X, WEIGHT, LINE, USUAL),
    "conv2d_constant": (X, WEIGHT, LINE, USUAL),
    "conv2d_backward_data": (X, WEIGHT, X.shape, USUAL),
    "conv2d_backward_weights": (X, X, WEIGHT.shape, USUAL),
    "max_pool": (X, PAIRS, True),
    "activation": ("relu", X),
    "combine": ("add", [X, X], X.shape, True),
    "affine_constant": (draw(4, 30), draw(30, 20, seed=1), None),
    "batch_norm": (X, LEVEL, LINE, LINE, LEVEL, 1e-3),
    "batch_norm_train": (X, LEVEL, LINE, 1e-3),
    "batch_norm_backward": (X, X, LEVEL, LINE, LEVEL, False),
}


def test_every_route_has_a_call_here():
    table = {name for name, member in vars(LlvmOps).items() if hasattr(member, "routes")}
    assert table == CALLS.keys()


@pytest.fixture
def only_llvm(monkeypatch):
    def refuse(*operands, **options):
        raise AssertionError("NumPy's kernel was called")

    for name in CALLS:
        routes = getattr(LlvmOps, name).routes
        monkeypatch.setattr(LlvmOps, name, in_order(*routes, last=refuse))
    return LlvmOps()


def arrays_of(made):
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("name", CALLS)
def test_its_functions_serve(only_llvm, name):
    made = arrays_of(getattr(only_llvm, name)(*CALLS[name]))
    wanted = arrays_of(getattr(numpy_ops, name)(*CALLS[name]))
    for got, expected in zip(made, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * abs(expected).max())


def test_batch_normalisation_with_relu(only_llvm):
    """Its mask is beta, which NumPy's has no use for."""
    for name, given in (("_train", (X, LEVEL, LINE)), ("", (X, LEVEL, LINE, LINE, LEVEL))):
        *made, mask = getattr(only_llvm, f"batch_norm{name}")(*given, 1e-3, True)
        *wanted, _ = getattr(numpy_ops, f"batch_norm{name}")(*given, 1e-3, True)
        for got, expected in zip(made, wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * abs(expected).max())
        assert mask is LINE
    only_llvm.batch_norm_backward(X, X, LEVEL, LINE, LEVEL, False, mask)


def test_small_and_other_ones_are_numpys():
    ops, x = LlvmOps(), draw(1, 2, 3, 3)
    weight = draw(2, 2, 3, 3, seed=1)
    for some in ((x, weight), (X.astype(np.float64)[:1], WEIGHT.astype(np.float64))):
        got = ops.conv2d(*some, None, USUAL)
        np.testing.assert_array_equal(got, numpy_ops.conv2d(*some, None, USUAL))


def test_recorded_steps_are_bit_equal_to_layers():
    places = Device("cpu", LlvmOps()), singanet.device.cpu()
    x, y = draw(8, 3, 32, 32), np.arange(8) % 10
    made = []
    for recorded, place in ((True, places[0]), (False, places[0]), (True, places[1])):
        net = singanet.models.build("resnet20", seed=0)
        net.to_device(place)
        sgd = singanet.optimizer.SGD(0.01)
        program = net.record(x, y, sgd) if recorded else None
        for _ in range(2):
            loss = program.run(x, y) if program else net.step(x, y, sgd)
        made.append((float(np.asarray(loss).mean()), net.predictor()(x)))
    assert made[0][0] == made[1][0]
    np.testing.assert_array_equal(made[0][1], made[1][1])
    np.testing.assert_allclose(made[0][1], made[2][1], rtol=1e-3, atol=1e-3)
