"""Which batch normalisation LLVM makes: of what, in nets, and by how many threads."""

from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops, threads
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import kernels as llvm
from singanet.ops.llvm.plans import CompiledPlan, shared
from singanet.ops.threads import set_threads
from singanet.ops.workers import do
from singanet.optimizer import SGD
from tests.program.twins import Twins

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


@pytest.fixture
def compiles(monkeypatch):
    """However few the elements are."""
    monkeypatch.setattr(llvm, "_LEAST", 1)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def image(n, c, h, w, seed=0):
    return draw(n, h, w, c, seed=seed).transpose(0, 3, 1, 2)


def kernels_of(ops, monkeypatch):
    """The names of the plans that run."""
    found, run = [], ops.runs

    def note(build, *rest, **named):
        found.append(build.__name__)
        return run(build, *rest, **named)

    monkeypatch.setattr(ops, "runs", note)
    return found


def test_what_they_take(ops, narrow, monkeypatch):
    def takes(x, ops=ops):
        vector = np.ones(x.shape[1], x.dtype)
        return llvm.batch_norm_train.fits(ops, x, vector, vector, 1e-3)

    few, some, many = image(8, 24, 16, 16), image(32, 24, 16, 16), image(32, 48, 32, 32)
    assert not takes(few)
    assert takes(some)
    assert takes(some.astype(np.float16)) is takes(some.astype(np.float64)) is False
    assert takes(many)
    # oneDNN has a kernel for it, of which less is won.
    assert not takes(image(32, 32, 16, 16))
    assert takes(draw(4096, 40))
    # A row of pixels without gaps is as long as the whole.
    assert not takes(draw(65, 2047))
    assert takes(some, narrow)
    assert not takes(many, narrow)
    monkeypatch.setattr(llvm, "has_compiler", lambda: False)
    assert not takes(some)


@pytest.mark.parametrize("x", [image(3, 24, 11, 9), image(60, 7, 6, 7), draw(1100, 10), draw(1, 5)])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_kernels_beside_numpy_s(ops, compiles, monkeypatch, x, fixed, relu):
    dy, (gamma, beta, mean) = draw(*x.shape, seed=1), draw(3, x.shape[1], seed=2)
    var = abs(draw(x.shape[1], seed=3)) + 0.5
    used = kernels_of(ops, monkeypatch)
    given = (gamma, beta, mean, var, 1e-3, relu) if fixed else (gamma, beta, 1e-3, relu)
    name = "batch_norm" if fixed else "batch_norm_train"
    made, wanted = (getattr(o, name)(x, *given) for o in (ops, numpy_ops))
    for one, other in zip(made[: 2 if fixed else 4], wanted, strict=False):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=2e-5)
    mean, inverse = (mean, made[1]) if fixed else (made[1], made[3])
    back = dy, x, gamma, mean, inverse, fixed
    found = ops.batch_norm_backward(*back, *made[4 - 2 * fixed :])
    right = numpy_ops.batch_norm_backward(*back, *wanted[4 - 2 * fixed :])
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    steps = ["_batch_norm" if fixed else "_batch_norm_train", "_batch_norm_backward"]
    assert [name for name in used if name != "_reorder"] == ([] if x.size == 5 else steps)


def test_gradients_are_numerical_ones(ops, compiles):
    x, dy, (gamma, beta) = image(4, 10, 8, 9), image(4, 10, 8, 9, seed=1), draw(2, 10, seed=2)
    _, mean, _, inverse, mask = ops.batch_norm_train(x, gamma, beta, 1e-3, True)
    dx, dgamma, dbeta = ops.batch_norm_backward(dy, x, gamma, mean, inverse, False, mask)

    def slope(argument):
        given = [a.astype(np.float64) for a in (x, gamma, beta)]
        way, step = draw(*given[argument].shape, seed=4), 1e-6
        sums = []
        for sign in (1, -1):
            moved = list(given)
            moved[argument] = given[argument] + sign * step * way
            sums.append(np.sum(dy * numpy_ops.batch_norm_train(*moved, 1e-3, True)[0]))
        return (sums[0] - sums[1]) / (2 * step), way

    for argument, found in enumerate((dx, dgamma, dbeta)):
        wanted, way = slope(argument)
        np.testing.assert_allclose(np.sum(found.astype(np.float64) * way), wanted, rtol=1e-4)


def net_of(seed=0):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=seed)
    net.add(Conv2D("conv", 10, 3, input_sample_shape=(2, 9, 8)))
    net.add(BatchNormalization("bn"))
    net.add(Activation("relu"))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 20))
    net.add(BatchNormalization("top"))
    net.add(Dense("scores", 3))
    return net


def test_a_net_trains_as_without_them_recorded_or_not(ops, compiles, monkeypatch):
    x, y = draw(520, 2, 9, 8), np.arange(520) % 3
    made = []
    for there in (True, False):
        monkeypatch.setattr(llvm, "has_compiler", lambda there=there: there)
        twins = Twins(net_of, lambda: SGD(lr=0.05, momentum=0.9))
        losses = [twins.step(x, y)[0] for _ in range(4)]
        twins.forward(False, x)
        scores = twins.recorded.predict(x)
        np.testing.assert_allclose(twins.recorded.predictor()(x), scores, rtol=1e-3, atol=1e-4)
        made.append((losses, scores))
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_nan_reaches_the_loss(ops, compiles):
    net, sgd = net_of(), SGD(lr=0.05)
    x, y = draw(520, 2, 9, 8), np.arange(520) % 3
    for _ in range(3):
        assert np.isfinite(net.step(x, y, sgd)[0])
    x[300, 1, 4, 4] = np.nan
    assert np.isnan(net.step(x, y, sgd)[0])


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_threads_share_a_plan_to_the_same_bits(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())
    x, dy, (gamma, beta) = image(16, 24, 40, 40), image(16, 24, 40, 40, seed=1), draw(2, 24, seed=2)
    found = []
    for count in (1, 2):
        set_threads(count)
        ops = LlvmOps()
        y, mean, var, inverse, mask = ops.batch_norm_train(x, gamma, beta, 1e-3, True)
        back = ops.batch_norm_backward(dy, x, gamma, mean, inverse, False, mask)
        found.append((y, mean, var, inverse, *back))
        plans = ops.runtime()._plans.values()
        assert [plan.threads for plan in plans if isinstance(plan, CompiledPlan)] == [count] * 2
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_parts_of_stages_are_shared():
    assert shared((8, 9), (5, 1, 0), 1) == [[(8, 9, 0, 5, 0, 1, 0, 0)]]
    assert shared((8,), (5, 1, 0), 2) == [
        [(8, 0, 2, 0, 0, 0, 0), (8, 2, 5, 0, 0, 0, 0)],
        [(8, 0, 0, 0, 1, 0, 0)],
    ]


def test_calls_leave_openmp_s_threads_as_they_are():
    did = []
    build = SimpleNamespace(brief=True, side_by_side=lambda parts: [do(part) for part in parts])
    function = SimpleNamespace(briefly=did.append)
    stages = [[(7,)], [(8,), (9,)]]
    plan = CompiledPlan(build, function, stages, reads=(1,), writes=(0,), scratch=64)
    calls = plan.bound((4, 5), 6)
    calls()
    assert calls.threads == 0
    assert calls.after(1) == calls.after(2)
    given = [list(call.given) for stage in calls.stages for call in stage]
    assert given == [[4, 5, 6, 7], [4, 5, 6, 8], [4, 5, 6, 9]]
    assert len(did) == 3
    assert plan.threads == 2
