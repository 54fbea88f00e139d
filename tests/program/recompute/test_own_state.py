"""Running state of a layer of a user's own moves once a step, however often its forward runs."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm


class Counted(Layer):
    """Scales by how often it was trained: what is counted twice shows in the losses."""

    def setup(self, in_shape):
        self.add_state("seen", ())
        return in_shape

    def forward(self, ctx, x):
        seen = ctx.params["seen"]
        if ctx.train:
            ctx.update_state("seen", np.asarray(seen + 1, seen.dtype))
        scale = x.dtype.type(1 / (1 + float(seen)))
        ctx.save(scale=scale)
        return x * scale

    def backward(self, ctx, dy):
        return dy * ctx.saved["scale"], {}


def trained(recompute, recorded, wrap, steps=6):
    chain = [Dense("in", 32, input_sample_shape=(8,))]
    for k in range(6):
        chain += [Activation(f"t{k}", "tanh"), Dense(f"d{k}", 32)]
    chain.insert(6, Counted("counted"))
    net = singanet.FeedForwardNet([*chain, Dense("out", 3)], loss=SoftmaxCrossEntropy(), seed=0)
    net.programs.enabled = recorded
    if recompute is not None:
        net.programs.recompute = recompute
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    optimizer = wrap(SGD(lr=0.1))
    losses = [net.step(x, np.arange(16) % 3, optimizer)[0] for _ in range(steps)]
    (seen,) = (float(param.value) for param in net.params() if param.is_state)
    return losses, seen


WRAPS = {
    "plain": lambda rule: rule,
    "clipped": lambda rule: ClipByGlobalNorm(rule, 0.05),
    "accumulated": lambda rule: Accumulator(ClipByGlobalNorm(rule, 0.05), 2),
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("recompute", [None, "cheap", "blocks", "sqrt", "optimal"])
def test_it_is_counted_once_a_step(recompute, wrap):
    losses, seen = trained(recompute, True, WRAPS[wrap])
    expected, _ = trained(None, False, WRAPS[wrap])
    assert seen == 6
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-6)
