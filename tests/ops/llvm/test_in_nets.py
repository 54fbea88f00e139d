"""Compiled kernels around a user's own layer, in a fit with a callback and in a streaming loop."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.device import Device
from singanet.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    Layer,
    MaxPooling2D,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps
from singanet.ops.llvm import kernels as llvm
from singanet.ops.llvm import winograd as tiles
from singanet.optimizer import SGD
from singanet.training import Callback

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


class Halved(Layer):
    """A user's: half of what comes."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return ctx.ops.multiply(x, np.float32(0.5))

    def backward(self, ctx, dy):
        return ctx.ops.multiply(dy, np.float32(0.5)), {}


class Lengths(Callback):
    """A user's: how long all weights are after each epoch."""

    def __init__(self):
        self.found = []

    def on_epoch_end(self, epoch, logs):
        values = self.session.net.param_values()
        self.found.append(float(sum(np.square(value).sum() for value in values)))


def build(ops):
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Conv2D("conv1", 24, 5, input_sample_shape=(8, 48, 48)))
    net.add(Halved("halved"))
    net.add(BatchNormalization("bn1"))
    net.add(Activation("relu1"))
    net.add(MaxPooling2D("pool1", 2, 2))
    net.add(Conv2D("conv2", 40, 3))
    net.add(Activation("relu2"))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 4))
    net.device = Device("cpu", ops)
    return net


def trained(ops):
    """The weights, and what the callback saw."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 8, 48, 48), np.float32), rng.integers(0, 4, 32)
    net, lengths = build(ops), Lengths()
    net.compile(SGD(lr=1e-3, momentum=0.9))
    net.fit(x, y, batch_size=16, epochs=2, callbacks=[lengths], verbose=False)
    sgd = SGD(lr=1e-3)
    for part in (slice(0, 16), slice(16, 32)):
        net.loss.forward(True, net.forward(True, x[part]), y[part])
        for names, values, grads in net.backward(net.loss.backward()):
            sgd.update(names, values, grads)
    return [value.copy() for value in net.param_values()], lengths.found


def test_they_train_as_with_numpy_s_kernels(monkeypatch):
    ops, taken = LlvmOps(), set()
    plan = ops.runtime().plan

    def watched(build, *arguments, **options):
        taken.add(build.__module__)
        return plan(build, *arguments, **options)

    monkeypatch.setattr(ops.runtime(), "plan", watched)
    got, lengths = trained(ops)
    wanted, others = trained(numpy_ops)
    assert {module.__name__ for module in (tiles, llvm)} <= taken
    np.testing.assert_allclose(lengths, others, rtol=1e-5)
    # Weights have moved by some 1e-3. Rounding decides which of near maxima, and which values about
    # zero, hand a gradient on.
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
