"""Whole nets, written and read in every way there is: what holds for any net in any way."""

import copy
import json
import pickle
from functools import partial

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, initializer, layers, loss, metric, models
from singanet.engine.backward import ones
from singanet.params.grads import dense_gradient
from singanet.saving.net_pb2 import NetConfig
from singanet.saving.nets import net_from_proto, net_to_proto
from tests.layer_catalogue import CATALOGUE, concrete_layers, inputs_of, net_of
from tests.program.test_predictor import stir


def by_file(net, folder):
    net.save_model(folder / "m.singanet")
    return singanet.load_model(folder / "m.singanet")


def by_message(net, folder):
    """Through the bytes of a protobuf message, which says as much as JSON."""
    config = net.to_config()
    message = NetConfig.FromString(net_to_proto(config).SerializeToString())
    assert net_from_proto(message) == config
    assert net_from_proto(message.SerializeToString()) == config
    return described(net, net_from_proto(message))


def by_json(net, folder):
    return described(net, json.loads(json.dumps(net.to_config())))


def described(net, config):
    """The net of a description, with the parameters of ``net``."""
    made = FeedForwardNet.from_config(config)
    for one, other in zip(net.params(), made.params(), strict=True):
        other.put(one.value)
    return made


CODECS = {
    "file": by_file, "message": by_message, "JSON": by_json,
    "pickle": lambda net, folder: pickle.loads(pickle.dumps(net)),
    "copy": lambda net, folder: copy.deepcopy(net),
}  # fmt: skip


def arrays_of(output):
    """The arrays of what forward returned: one, several, or a dict of either."""
    if isinstance(output, np.ndarray):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    return [array for part in parts for array in arrays_of(part)]


def ones_of(output):
    """A gradient for what forward returned."""
    if isinstance(output, dict):
        return {name: ones_of(part) for name, part in output.items()}
    if isinstance(output, (list, tuple)):
        return [ones_of(part) for part in output]
    return np.ones_like(output)


def of_step(net, x):
    """Outputs without training and with it, and gradients of all parameters by name."""
    outputs = [type(net.forward(False, x)), *arrays_of(net.forward(False, x))]
    net.rng = np.random.default_rng(0)
    made = net.forward(True, x)
    outputs += arrays_of(made)
    for names, values, grads in net.backward(ones_of(made)):
        for name, value, grad in zip(names, values, grads, strict=True):
            outputs += [name, dense_gradient(net.device.ops, grad, value.shape)]
    return outputs


def expect_same_net(found, net):
    """Check for the same description, and parameters of the same names and bits."""
    assert found.to_config() == net.to_config()
    for one, other in zip(net.params(), found.params(), strict=True):
        assert (one.name, one.value.dtype) == (other.name, other.value.dtype)
        assert one.value.tobytes() == other.value.tobytes(), one.name


def test_the_catalogue_is_whole():
    assert set(CATALOGUE) == concrete_layers()


def net_of_specs():
    specs = {"init": initializer.Uniform(-1.0, 1.0), "lr_mult": 2.0}
    parts = [layers.Conv2D("conv", 4, (3, 1), stride=2, dilation=(1, 2), groups=2, W_specs=specs,
                           input_sample_shape=(2, 9, 9))]  # fmt: skip
    return FeedForwardNet(parts, seed=0)


def net_of_shares():
    """A layer at two places, a tied matrix, outputs in parts and in turn."""
    a, b = Input("a", (3,)), Input("b", (3,))
    fc = layers.Dense("fc", 4)
    head, tail = layers.Slice("cut", 1, [1])(fc(a))
    tied = layers.Dense("tied", 3, W_specs=fc.params["weight"], W_transpose=True)
    outputs = [layers.Concat("swap", 1)(tail, head), tied(fc(b))]
    return FeedForwardNet(inputs=[b, a], outputs=outputs, seed=0)


def net_of_nets():
    """A net at two places of another, with names, a limit, and what is not trained."""
    a, b = Input("a", (3,)), Input("b", (3,))
    tower = FeedForwardNet([layers.Dense("fc", 4, input_sample_shape=(3,))], name="tower")
    joined = layers.Concat("c", 1)(tower(b), tower(a))
    tied = layers.Dense("tied", 3, W_specs=tower["fc"].params["weight"], W_transpose=True)
    outputs = [layers.Dense("top", 2)(joined), tied(tower(a))]
    net = FeedForwardNet(inputs=[b, a], outputs=outputs, name="whole", seed=0)
    net.loss = loss.MultiLoss({"top": loss.SoftmaxCrossEntropy(), "tied": loss.Huber()})
    net.freeze("c")
    net.most_steps = 9
    net["tower/fc"].params["bias"].trainable = False
    net["top"].params["bias"].trainable = False
    config = net.to_config()
    assert config["inputs"] == ["b", "a"]
    assert config["most_steps"] == 9
    assert config["untrained"] == ["tower/fc/bias", "top/bias"]
    assert config["layers"][2]["net"]["name"] == "tower"
    return net


def net_of_merge():
    """Whose first layer has several inputs."""
    return FeedForwardNet([layers.Merge("m", input_sample_shape=[(2,), (2,)])])


OBJECTS = [
    loss.SoftmaxCrossEntropy(), loss.Huber(0.3), loss.Hinge(reduction="sum"), loss.SmoothL1(0.3),
    loss.MultiLoss({"a": loss.SquaredError(), "b": loss.BinaryCrossEntropy()}, {"a": 0.25}),
    loss.SoftmaxFocal(1.5, class_weight=[1.0, 2.0]), loss.SigmoidFocal(alpha=0.25),
    metric.Accuracy(), metric.Perplexity(), metric.R2(),
]  # fmt: skip
NETS = {
    **{name: partial(net_of, name) for name in CATALOGUE},
    "specs": net_of_specs,
    "shares": net_of_shares,
    "nets": net_of_nets,
    "merge": net_of_merge,
}


def feed_of(name):
    """A batch for the net of that name."""
    if name in CATALOGUE:
        return inputs_of(name)
    rng = np.random.default_rng(0)
    if name == "specs":
        return rng.standard_normal((2, 2, 9, 9)).astype(np.float32)
    if name == "merge":
        return [*rng.standard_normal((2, 3, 2)).astype(np.float32)]
    return {each: rng.standard_normal((2, 3)).astype(np.float32) for each in "ab"}


@pytest.mark.parametrize("name", NETS)
def test_every_layer_and_net_comes_back(name, tmp_path):
    net = NETS[name]()
    assert name not in CATALOGUE or name in {each["class"] for each in net.to_config()["layers"]}
    for param in net.params():
        param.value[...] += 0.25
    read = {codec: write(net, tmp_path) for codec, write in CODECS.items()}
    predictor = net.predictor()
    predictor.save(tmp_path / "p.singanet")
    loaded = singanet.load_predictor(tmp_path / "p.singanet")
    assert repr(loaded) == repr(predictor)
    for one, other in zip(loaded._net.params(), predictor._net.params(), strict=True):
        np.testing.assert_array_equal(one.value, other.value)
    for found in read.values():
        expect_same_net(found, net)
    feed = feed_of(name)
    if name in ("shares", "nets"):
        expected = net.predict(feed)
        for key, array in loaded(feed).items():
            np.testing.assert_array_equal(array, predictor(feed)[key])
            np.testing.assert_allclose(array, expected[key], rtol=1e-5, atol=1e-6)
    wanted = of_step(net, feed)
    for codec, found in read.items():
        for one, other in zip(of_step(found, feed), wanted, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=codec)


def test_a_description_draws_the_same_parameters_from_the_same_seed():
    for net in (
        *(models.build(m, (1, 8, 8), 10, seed=0) for m in ("mlp", "lenet")),
        net_of_specs(),
    ):
        found = FeedForwardNet.from_config(json.loads(json.dumps(net.to_config())), seed=0)
        expect_same_net(found, net)
        assert found.param_specs() == net.param_specs()


@pytest.mark.parametrize("given", OBJECTS, ids=lambda each: type(each).__name__)
def test_losses_and_metrics_come_back(given, tmp_path):
    kind = "metric" if isinstance(given, metric.Metric) else "loss"
    net = net_of("Dense", **{kind: given})
    assert net.to_config()[kind]["class"] == type(given).__name__
    for write in CODECS.values():
        found = write(net, tmp_path)
        expect_same_net(found, net)
        assert type(getattr(found, kind)) is type(given)


@pytest.mark.few(3, full=9)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(entry.name, marks=pytest.mark.slow if entry.parameters > 10_000_000 else ())
        for entry in models.entries()
    ],
)
def test_ready_nets_come_back(name, tmp_path):
    shape = models.find(name).input_shape
    net = models.build(name, (3, 40, 40) if shape[0] == 3 else shape, seed=1)
    stir(net)
    for write in (by_file, by_message):
        found = write(net, tmp_path)
        expect_same_net(found, net)
        assert found.summary() == net.summary()
    feed = ones(net._execution_plan(), 2, net.device, 8)
    predictor = net.predictor()
    predictor.save(tmp_path / "p.singanet")
    wanted, made = predictor(feed), singanet.load_predictor(tmp_path / "p.singanet")(feed)
    for one, other in zip(arrays_of(made), arrays_of(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
