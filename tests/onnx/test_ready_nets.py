"""Every ready net, small, as a graph: the same outputs there, and those of its predictor."""

import numpy as np
import pytest

from singanet.models import build, entries, find
from singanet.onnx import save
from tests.onnx.runtime import checked, ran

QUICK = ("alexnet", "resnet20", "transformer", "deepfm")
NAMES = [entry.name for entry in entries()]


def small(name):
    """The net with batch statistics as after a training, and a batch for each input of the file."""
    entry = find(name)
    shape = (3, 40, 40) if entry.input_shape[0] == 3 else entry.input_shape
    net = build(name, shape, min(entry.num_classes, 30), seed=0)
    rng = np.random.default_rng(1)
    plan = net._execution_plan()
    feed = {}
    for given in plan.inputs:
        step = plan.by_name[given]
        drawn = (2, *step.layer.in_shapes)
        integers = step.fed_type(0).kind == "i"
        values = rng.integers(0, 9, drawn) if integers else rng.standard_normal(drawn)
        feed[given] = values if integers else values.astype(np.float32)
    for param in net.params():
        if param.name.endswith("/var"):
            param.value[...] = rng.uniform(0.5, 1.5, param.shape)
        elif param.name.endswith("/mean"):
            param.value[...] = 0.1 * rng.standard_normal(param.shape)
    return net, feed


def normalisations(model):
    return [node.op_type for node in model.graph.node].count("BatchNormalization")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_a_ready_net_gives_the_same_there(name, tmp_path):
    path = tmp_path / "net.onnx"
    net, feed = small(name)
    save(net, path)
    model = checked(path)
    norms = normalisations(model)
    inputs = [port.name for port in model.graph.input]
    there = dict(zip(inputs, feed.values(), strict=True))
    want = net.forward(False, feed)
    (found,) = ran(path, there).values()
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())
    save(net.predictor(), path)
    assert not norms or normalisations(checked(path)) < norms
    (found,) = ran(path, there).values()
    want = net.predict(feed)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())
