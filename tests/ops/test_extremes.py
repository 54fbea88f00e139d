"""Element-wise kernels and softmax at the ends of their types, against formulas in float64.

Backends use other kernels for long arrays than for short ones.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.onednn import OneDnnOps, find_library

INF, NAN = math.inf, math.nan
SIDE = [
    1e38, 1e4, 150, 100, 95, 90, 88, 87, 50, 30, 17, 14, 10, 6, 3, 1, 0.1, 1e-2, 1e-5, 1e-8, 1e-30
]  # fmt: skip
POINTS = [-INF, *(-x for x in SIDE), -0.0, 0.0, *reversed(SIDE), INF, NAN]
SLOPE = 0.3
MANY = (1 << 18) // len(POINTS)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def backends() -> list[Any]:
    found = [pytest.param(numpy_ops, kind, id=f"numpy, {kind}") for kind in ("f8", "f4", "f2")]
    library = find_library()
    if library is not None:
        found.append(pytest.param(OneDnnOps(library, True), "f4", id="onednn, f4"))
    return found


on_backends = pytest.mark.parametrize(("ops", "kind"), backends())


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def density(x: float) -> float:
    return 0.0 if abs(x) > 1e3 else math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def at_ends(x: float, below: float, above: float, between: float) -> float:
    """``between`` for a finite x, and the limits."""
    return NAN if math.isnan(x) else below if x == -INF else above if x == INF else between


def hard(x: float) -> float:
    return min(max(x + 3, 0.0), 6.0) / 6


def soft(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def tanh_gate(x: float) -> float:
    return logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)) if abs(x) < 50 else x > 0


def tanh_slope(x: float) -> float:
    bend = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x) if abs(x) < 50 else 0.0
    return tanh_gate(x) + x * tanh_gate(x) * tanh_gate(-x) * bend


ALPHA, LAMBDA = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

# Function and derivative of a finite x, and the limits of both below and above.
FORMULAS: dict[str, tuple[Any, Any, tuple[float, float], tuple[float, float]]] = {
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0), (0, INF), (0, 1)),
    "sigmoid": (logistic, lambda x: logistic(x) * logistic(-x), (0, 1), (0, 0)),
    "tanh": (math.tanh, lambda x: 4 * logistic(2 * x) * logistic(-2 * x), (-1, 1), (0, 0)),
    "leaky_relu": (lambda x: x if x > 0 else SLOPE * x, lambda x: 1.0 if x > 0 else SLOPE,
                   (-INF, INF), (SLOPE, 1)),
    "elu": (lambda x: x if x > 0 else SLOPE * math.expm1(x),
            lambda x: 1.0 if x > 0 else SLOPE * math.exp(x), (-SLOPE, INF), (0, 1)),
    "gelu": (lambda x: x * phi(x), lambda x: phi(x) + x * density(x), (0, INF), (0, 1)),
    "silu": (lambda x: x * logistic(x), lambda x: logistic(x) * (1 + x * logistic(-x)),
             (0, INF), (0, 1)),
    "softplus": (soft, logistic, (0, INF), (0, 1)),
    "relu6": (lambda x: min(max(x, 0.0), 6.0), lambda x: float(0 < x < 6), (0, 6), (0, 0)),
    "hard_sigmoid": (hard, lambda x: (abs(x) < 3) / 6, (0, 1), (0, 0)),
    "hard_swish": (lambda x: x * hard(x), lambda x: float(x >= 3) if abs(x) >= 3 else x / 3 + 0.5,
                   (0, INF), (0, 1)),
    "selu": (lambda x: LAMBDA * (x if x > 0 else ALPHA * math.expm1(x)),
             lambda x: LAMBDA * (1.0 if x > 0 else ALPHA * math.exp(x)),
             (-LAMBDA * ALPHA, INF), (0, LAMBDA)),
    "celu": (lambda x: x if x > 0 else SLOPE * math.expm1(x / SLOPE),
             lambda x: 1.0 if x > 0 else math.exp(x / SLOPE), (-SLOPE, INF), (0, 1)),
    "softsign": (lambda x: x / (1 + abs(x)), lambda x: (1 + abs(x)) ** -2.0, (-1, 1), (0, 0)),
    "mish": (lambda x: x * math.tanh(soft(x)),
             lambda x: math.tanh(soft(x)) + x * (1 - math.tanh(soft(x)) ** 2) * logistic(x),
             (0, INF), (0, 1)),
    "gelu_tanh": (lambda x: x * tanh_gate(x), tanh_slope, (0, INF), (0, 1)),
    "softcap": (lambda x: SLOPE * math.tanh(x / SLOPE), lambda x: 1 - math.tanh(x / SLOPE) ** 2,
                (-SLOPE, SLOPE), (0, 0)),
}  # fmt: skip


def wanted(mode: str, x: Any) -> tuple[Any, Any]:
    made = []
    for formula, ends in zip(FORMULAS[mode][:2], FORMULAS[mode][2:], strict=True):
        finite = (formula(t) if math.isfinite(t) else 0.0 for t in x.tolist())
        made.append([at_ends(t, *ends, y) for t, y in zip(x.tolist(), finite, strict=True)])
    return np.array(made[0]), np.array(made[1])


def close(found: Any, expected: Any, kind: str, beside: Any) -> None:
    """Check up to some last bits of the result, or of ``beside`` that the formula subtracts."""
    info = np.finfo(kind)
    with np.errstate(over="ignore"):
        expected = expected.astype(kind).astype("f8")
    # The tail of gelu has 5e-12 to 6 in float64, 1e-8 to 30: singanet/ops/numpy/pointwise.py.
    relative = max(150 * float(info.eps), 1e-7)
    allowed = relative * np.abs(expected) + 4 * float(info.eps) * beside + 4 * float(info.tiny)
    with np.errstate(invalid="ignore"):
        same = (found == expected) | (np.abs(found.astype("f8") - expected) <= allowed)
    same |= np.isnan(found) & np.isnan(expected)
    assert same.all(), (expected[~same], found[~same])


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("mode", ACTIVATIONS)
@on_backends
def test_activations(ops: Any, kind: str, mode: str, many: int) -> None:
    with np.errstate(over="ignore"):
        short = np.array(POINTS).astype(kind)
    if ops.name == "onednn" and mode == "relu":
        # It writes a NaN into the first element of its sample: docs/cpu.md.
        short = short[:-1]
    y, slope = wanted(mode, short.astype("f8"))
    x = np.tile(short, many)[None]
    found = ops.activation(mode, x, SLOPE)
    # By oneDNN gelu cancels in its left tail, as PyTorch's; so do slopes made of outputs.
    cancels = ops.name == "onednn" and mode in ("gelu", "silu")
    close(found[0, : len(y)], y, kind, np.minimum(np.abs(short), 10) if cancels else 0)
    assert found.dtype == kind
    assert np.array_equal(found.reshape(many, -1)[-1], found[0, : len(y)], equal_nan=True)
    kept = found if ACTIVATIONS[mode] == "y" else x
    dx = ops.activation_backward(mode, np.ones_like(x), kept, SLOPE)
    there = ~np.isnan(short)
    beside = float(cancels or ACTIVATIONS[mode] == "y") * 10
    close(dx[0, : len(y)][there], slope[there], kind, beside)


@pytest.mark.parametrize("many", [1, MANY])
@on_backends
def test_sigmoid(ops: Any, kind: str, many: int) -> None:
    with np.errstate(over="ignore"):
        x = np.array(POINTS).astype(kind)
    y = ops.sigmoid(np.tile(x, many)[None])[0, : len(x)]
    close(y, wanted("sigmoid", x.astype("f8"))[0], kind, 0)


@pytest.mark.parametrize("mode", ["gelu", "softplus", "silu"])
@on_backends
def test_the_slope_at_zero_has_no_sign(ops: Any, kind: str, mode: str) -> None:
    x = np.array([[0.0, -0.0]] * 20000, kind)
    np.testing.assert_allclose(ops.activation_backward(mode, np.ones_like(x), x), 0.5, rtol=1e-3)


def softmax_by_hand(row: Any) -> Any:
    if np.isnan(row).any() or row.max() in (INF, -INF):
        return np.full(len(row), NAN)
    e = np.array([math.exp(t - row.max()) for t in row.tolist()])
    return e / e.sum()


@pytest.mark.parametrize("many", [1, 4000])
@on_backends
def test_softmax(ops: Any, kind: str, many: int) -> None:
    rows = [[a, b, c, 0.5] for a in (-INF, -1e4, -100, 0, NAN) for b in (1e-8, 17, INF)
            for c in (-INF, -17, 1e4, 60000)] + [[-INF] * 4]  # fmt: skip
    short = np.array(rows).astype(kind)
    expected = np.array([softmax_by_hand(row) for row in short.astype("f8")])
    found = ops.softmax(np.tile(short, (many, 1)))[: len(rows)]
    close(found, expected, kind, 1e-3)
    if kind == "f2":
        return
    y = np.where(np.isnan(expected), 0.25, expected).astype(kind)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype(kind)
    dx = ops.softmax_backward(np.tile(dy, (many, 1)), np.tile(y, (many, 1)))[: len(rows)]
    p = y.astype("f8")
    close(dx, p * (dy - (dy * p).sum(axis=1, keepdims=True)), kind, 2.0)


@pytest.mark.parametrize("many", [1, MANY])
@pytest.mark.parametrize("y", [0.0, 0.25, 1.0])
@on_backends
def test_sigmoid_cross_entropy(ops: Any, kind: str, y: float, many: int) -> None:
    with np.errstate(over="ignore"):
        short = np.array(POINTS).astype(kind)

    def loss(x: float) -> float:
        near = math.log1p(math.exp(-abs(x))) if math.isfinite(x) else NAN if x != x else 0.0
        share = 1 - y if x > 0 else y
        return near + (abs(x) * share if share else 0.0)

    expected = np.array([loss(x) for x in short.astype("f8").tolist()])
    x = np.tile(short, many)[None]
    found = ops.sigmoid_cross_entropy(x, np.full_like(x, y))[0, : len(short)]
    close(found, expected, kind, 0)


@on_backends
def test_softmax_cross_entropy_of_masked_scores(ops: Any, kind: str) -> None:
    """−inf stands for a class that cannot be: rows of targets that leave it out cost as labels."""
    x = np.array([[0.0, -INF, 1.0], [-INF, 2.0, -INF], [0.5, 1.5, -INF]], kind)
    labels = np.array([2, 1, 2])
    losses, p = ops.softmax_cross_entropy(x, labels)
    soft, q = ops.softmax_cross_entropy_soft(x, np.eye(3, dtype=kind)[labels])
    expected = np.array([math.log1p(math.exp(-1)), 0.0, INF])
    close(losses, expected, kind, 1.0)
    close(soft, expected, kind, 1.0)
    np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
@on_backends
def test_lrn_of_one_channel(ops: Any, kind: str, beta: float) -> None:
    """oneDNN's backward ended the process."""
    x = np.random.default_rng(0).standard_normal((4, 8, 10, 10)).astype(kind)
    s = 2.0 + 0.3 * x.astype("f8") ** 2
    rtol = 1e-2 if kind == "f2" else 1e-4
    np.testing.assert_allclose(ops.lrn(x, 1, 0.3, beta, 2.0), x * s**-beta, rtol=rtol)
    slope = s**-beta - 2 * 0.3 * beta * x.astype("f8") ** 2 * s ** (-beta - 1)
    dx = ops.lrn_backward(np.ones_like(x), x, 1, 0.3, beta, 2.0)
    np.testing.assert_allclose(dx, slope, rtol=rtol, atol=rtol * 0.1)


class Junk(ctypes.Structure):
    """Passed by value, it fills the stack with NaN."""

    _fields_ = (("words", ctypes.c_uint32 * 16384),)


@pytest.mark.skipif(sys.platform != "linux", reason="calls a function of Linux' C library")
@pytest.mark.parametrize("rows", range(1, 9))
def test_what_lies_beyond_a_matrix_of_five_columns_raises_no_flag(rows):
    """OpenBLAS' product with a vector reads the stack, if the processor has AVX-512."""
    call, junk = ctypes.CDLL(None).getpid, Junk()
    call.argtypes = [Junk]
    junk.words[:] = [0x7FA00000] * 16384
    x, weight = np.ones((rows, 5), np.float32), np.ones((5, 1), np.float32)
    with np.errstate(all="raise"):
        for work in (
            lambda: numpy_ops.affine(x, weight, None),
            lambda: numpy_ops.matmul(x, weight, out=np.empty((rows, 1), np.float32)),
            lambda: numpy_ops.softmax_cross_entropy(x, np.zeros(rows, int)),
            lambda: numpy_ops.matmul(x[:1], np.ones((rows, 5), np.float32).T),
            lambda: numpy_ops.affine(x[:1], np.ones((rows, 6), np.float32)[:, :5].T, None),
            lambda: numpy_ops.matmul(x[None], np.ones((2, 5, 1), np.float32)),
            lambda: numpy_ops.matmul(np.ones((2, 1, 5), np.float32), x.T),
            lambda: numpy_ops.channel_sum(x.reshape(1, rows, 5)),
            lambda: numpy_ops.global_avg_pool(x.reshape(1, rows, 5)),
        ):
            call(junk)
            work()
