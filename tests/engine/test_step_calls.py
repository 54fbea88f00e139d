"""How many calls of the package a step makes: what a reader of a trace has to follow."""

import sys
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet
from singanet.layers import Activation, Dense, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD

PACKAGE = str(Path(singanet.__file__).parent)
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 16)).astype(np.float32), np.arange(8) % 4


def own_calls(call):
    """The Python functions of the package that ``call`` enters, generators at each turn.

    Those of kernels by oneDNN and LLVM and of their routes are left out, which not every machine
    has. A product of NumPy's kernels is a call of its own.
    """
    for _ in range(6):
        call()
    count = 0

    def seen(frame, event, _):
        nonlocal count
        file = frame.f_code.co_filename
        routed = "onednn" in file or "ops/llvm" in file or file.endswith("ops/kernel.py")
        count += event == "call" and file.startswith(PACKAGE) and not routed

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def small_net(metric=None):
    layers = [Dense("a", 32, input_sample_shape=(16,)), Activation("r", "relu"), Dense("b", 4)]
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), metric=metric, seed=1)


# By the layers with six for what a refused step goes back to, five that choose among kernels, and
# one a parameter, whose state may be read in parts.
@pytest.mark.parametrize(("recorded", "most"), [(False, 215), (True, 46)])
def test_a_step_is_followed_in_few_calls(recorded, most):
    net, rule = small_net(), SGD(0.1)
    net.programs.enabled = recorded
    assert 20 < own_calls(lambda: net.step(X, Y, rule)) <= most


def test_a_step_is_recorded_in_few_calls():
    net, rule = small_net(), SGD(0.1)
    net.step(X, Y, rule)
    assert 500 < own_calls(lambda: net.record(X, Y, rule)) <= 2560


def test_a_named_program_costs_a_few_calls_more():
    x, y = Input("x", (16,)), Input("y", (), dtype="int64")
    cost = SoftmaxCrossEntropy()(Dense("b", 4)(Activation("r", "relu")(Dense("a", 32)(x))), y)
    executor = Executor({"train": [cost, SGD(0.1).minimize(cost)]}, seed=0)
    assert 20 < own_calls(lambda: executor.run("train", {"x": X, "y": Y})) <= 56


# With a metric one call asks for the labels that it ignores.
@pytest.mark.parametrize(("metric", "most"), [(None, 71), (Accuracy, 94)])
def test_a_step_of_fit_is_followed_in_few_calls(metric, most):
    net = small_net(metric and metric())
    net.compile(SGD(0.1))

    def fit(steps):
        x, y = np.tile(X, (steps, 1)), np.tile(Y, steps)
        return lambda: net.fit(x, y, batch_size=len(X), verbose=False)

    # What an epoch costs beside falls out.
    assert 40 < (own_calls(fit(30)) - own_calls(fit(10))) / 20 <= most
