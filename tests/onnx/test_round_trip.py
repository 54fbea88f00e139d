"""Ready nets and layers as graphs: the same outputs there, and the same when they come back."""

import numpy as np
import pytest

from singanet.models import build, entries, find
from singanet.onnx import load, save
from tests.layer_catalogue import CATALOGUE, inputs_of, net_of
from tests.onnx.runtime import checked, filled, ran

QUICK, ROUND = ("alexnet", "resnet20", "transformer", "deepfm"), ("lenet", "transformer", "dcn")


def quick(chosen):
    """The ready nets, of which those that are not ``chosen`` are slow."""
    marks = {entry.name: () if entry.name in chosen else pytest.mark.slow for entry in entries()}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


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


@pytest.mark.parametrize("name", quick(QUICK))
def test_a_ready_net_gives_the_same_there(name, tmp_path):
    path = tmp_path / "net.onnx"
    net, feed = small(name)
    save(net, path)
    model = checked(path)
    norms, inputs = normalisations(model), [port.name for port in model.graph.input]
    there = dict(zip(inputs, feed.values(), strict=True))
    for thing, want in ((net, net.forward(False, feed)), (net.predictor(), net.predict(feed))):
        save(thing, path)
        assert thing is net or not norms or normalisations(checked(path)) < norms
        (found,) = ran(path, there).values()
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


def gradients(net, feed, dy):
    """The output, and the gradients of Σ dy y by the trained parameters, by their names."""
    out = net.forward(False, feed)
    (end,) = net._execution_plan().outputs
    names = [param.name for param in net.params() if param.trainable]
    return out, net.gradients(end, names, feed, dys={end: dy})


def apart(grads):
    """Those of transformer_lm by the names of the parts that its attention with angles becomes.

    Its table is the weight of its last layer as well; loaded, each layer has its own array.
    """
    table, last = grads.pop("embedding/weight"), grads.pop("embedding_2/weight")
    found = {"embedding/weight": table + last.T, "fc/bias": grads.pop("embedding_2/bias")}
    for name, grad in grads.items():
        layer, suffix = name.split("/")
        layer, dot, part = layer.partition(".")
        whole = not dot and layer.endswith("_attention")
        found[f"{layer}/{part or 'output'}_{suffix}" if dot or whole else name] = grad
    return found


@pytest.mark.parametrize("name", quick(ROUND))
def test_a_ready_net_comes_back_as_it_went(name, tmp_path):
    net, feed = small(name)
    save(net, tmp_path / "net.onnx")
    back = load(tmp_path / "net.onnx")
    again = dict(zip(back._execution_plan().inputs, feed.values(), strict=True))
    dy = np.random.default_rng(3).standard_normal(net.forward(False, feed).shape)
    dy = dy.astype(np.float32)
    (y, here), (found, there) = gradients(net, feed, dy), gradients(back, again, dy)
    there = apart(there) if name == "transformer_lm" else there
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-6 * np.abs(y).max())
    assert here.keys() == there.keys()
    most = max(float(np.abs(grad).max()) for grad in here.values())
    for key, grad in here.items():
        # What is nothing but rounding, as by the bias of keys, is measured by the others.
        scale = max(float(np.abs(grad).max()), 1e-3 * most)
        np.testing.assert_allclose(there[key], grad, rtol=0, atol=1e-5 * scale, err_msg=key)


OTHERWISE = {
    "MixtureOfExperts": "no operator multiplies the rows that chose an expert",
    "Flatten": "it folds an axis into the batch, and a net that is loaded keeps the samples apart",
    "Positions": "sums up to each step are not read",
    "Weight": "alone it depends on no input",
}


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - OTHERWISE.keys()))
def test_a_layer_comes_back_in_some_form(name, tmp_path):
    net = filled(net_of(name), np.random.default_rng(2))
    save(net, tmp_path / "net.onnx")
    back = load(tmp_path / "net.onnx")
    feed = inputs_of(name)
    again = {given: feed[given] for given in back._execution_plan().inputs}
    here, there = (arrays(n.forward(False, f)) for n, f in ((net, feed), (back, again)))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=2e-6)


def arrays(out):
    """All of them, in order."""
    parts = out.values() if isinstance(out, dict) else [out]
    return [y for part in parts for y in (part if isinstance(part, list) else [part])]
