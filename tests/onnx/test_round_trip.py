"""Nets that go out as graphs and come back: the same outputs, and the same after a step."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.onnx import load, save
from tests.layer_catalogue import CATALOGUE, inputs_of, net_of
from tests.onnx.runtime import filled
from tests.onnx.test_ready_nets import NAMES, small

# Its table is the weight of its last layer as well; loaded, each layer has its own array.
TIED = ("transformer_lm",)
QUICK = ("lenet", "transformer", "char_rnn", "dcn")


def stepped(net, feed, dy):
    """The output, and that after a step of steepest descent along ``dy``, dropout away."""
    out = net.forward(False, feed)
    (name,) = net.execution_plan().outputs
    params = [param for param in net.params() if param.trainable]
    grads = net.gradients(name, [param.name for param in params], feed, dys={name: dy})
    largest = max(float(np.abs(grad).max()) for grad in grads.values())
    for param in params:
        grad = grads[param.name]
        param.value[...] -= 0.01 / largest * np.asarray(grad)
    return out, net.forward(False, feed), largest


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_a_ready_net_comes_back_as_it_went(name, tmp_path):
    net, feed = small(name)
    save(net, tmp_path / "net.onnx")
    back = load(tmp_path / "net.onnx")
    again = dict(zip(back.execution_plan().inputs, feed.values(), strict=True))
    dy = np.random.default_rng(3).standard_normal(net.forward(False, feed).shape)
    here, there = (stepped(n, f, dy.astype(np.float32)) for n, f in ((net, feed), (back, again)))
    bounds = (1e-6,) if name in TIED else (1e-6, 1e-5, 1e-5)
    for one, other, far in zip(here, there, bounds, strict=False):
        scale = np.abs(one).max()
        np.testing.assert_allclose(other, one, rtol=0, atol=far * scale)


OTHERWISE = {
    "Flatten": "it folds an axis into the batch, and a net that is loaded keeps the samples apart",
    "Weight": "alone it depends on no input",
}


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - OTHERWISE.keys()))
def test_a_layer_comes_back_in_some_form(name, tmp_path):
    net = filled(net_of(name), np.random.default_rng(2))
    save(net, tmp_path / "net.onnx")
    back = load(tmp_path / "net.onnx")
    feed = inputs_of(name)
    again = {given: feed[given] for given in back.execution_plan().inputs}
    here, there = (arrays(n.forward(False, f)) for n, f in ((net, feed), (back, again)))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=2e-6)


def arrays(out):
    """All of them, in order."""
    parts = out.values() if isinstance(out, dict) else [out]
    return [y for part in parts for y in (part if isinstance(part, list) else [part])]
