"""Nets as plain data and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, initializer, layers, loss, models, optimizer
from singanet.errors import ArgumentError, ConfigError, GraphError, SingaNetError, UnknownNameError
from singanet.layers import Dummy, Layer
from singanet.saving import nets as net_config
from singanet.saving import objects as config
from tests.mutation.mutations import places


class Twice(Layer):
    def __init__(self, name, times=2):
        super().__init__(name)
        self.times = times

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x * self.times


def twice(times):
    net = FeedForwardNet()
    net.add(Dummy("in", input_sample_shape=(2,)))
    net.add(Twice("twice", times=times))
    return net


def test_a_class_of_the_user_needs_a_registered_name(monkeypatch):
    monkeypatch.setattr(config, "_registered", {})
    net = twice(3)
    with pytest.raises(ConfigError, match=r"Twice: .*@singanet.register"):
        net.to_config()
    for name, kind, told in (
        ("Dense", Twice, "a registered name"), ("test.int.v1", int, "subclass of Layer")
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            singanet.register(name)(kind)
    assert singanet.register("test.twice.v1")(Twice) is Twice
    with pytest.raises(ConfigError, match=r"argument 'times'.*ndarray"):
        twice(np.ones(3)).to_config()
    described = net.to_config()
    assert described["layers"][1]["class"] == "test.twice.v1"
    made = FeedForwardNet.from_config(described)
    np.testing.assert_array_equal(made.forward(False, np.ones((1, 2))), [[3, 3]])
    monkeypatch.setattr(config, "_registered", {})
    with pytest.raises(UnknownNameError, match="import the module that registers it"):
        FeedForwardNet.from_config(described)


def described():
    return json.loads(json.dumps(models.build("mlp", (4,), 2, seed=0).to_config()))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.update(format="other"), ConfigError, "format 'singanet net'"),
        (lambda c: c.update(version=net_config.VERSION + 1), ConfigError, "upgrade singanet"),
        (lambda c: c.update(version=True and "1"), ConfigError, "version '1'"),
        (lambda c: c.update(layers=None), ConfigError, "a list under 'layers'"),
        (lambda c: c["layers"].append(3), ConfigError, "an object with a name"),
        (lambda c: c["layers"][0].pop("arguments"), ConfigError, "'class' and 'arguments'"),
        (lambda c: c["layers"][0].update({"class": "os.system"}), UnknownNameError, "os.system"),
        (lambda c: c["layers"][1].update({"class": "Dens"}), UnknownNameError, "'Dense'"),
        (lambda c: c["layers"][1]["arguments"].update(wide=3), ConfigError, "wide"),
        (lambda c: c["layers"][1]["arguments"].update(W_specs={"evil": 1}), ConfigError, "evil"),
        (lambda c: c["layers"][1].update(sources=[["nobody", None]]), GraphError, "nobody"),
        (lambda c: c["layers"][1].update(sources=[3]), ConfigError, r"\[name, index or null\]"),
        (lambda c: c["layers"][1].update(shares="later"), ConfigError, "a layer before it"),
        (lambda c: c.update(loss=c["layers"][1]), UnknownNameError, "a Loss of singanet"),
        (lambda c: c["layers"].append(c["layers"][0]), GraphError, "the name of another layer"),
        (lambda c: c.update(most_steps=0), ConfigError, "an integer of at least 1"),
        (lambda c: c.update(most_steps=True), ConfigError, "received True"),
    ],
)  # fmt: skip
def test_data_that_describe_no_net_are_refused(change, error, message):
    broken = described()
    change(broken)
    with pytest.raises(error, match=message):
        FeedForwardNet.from_config(broken).param_names()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["class", "arguments", "name", "dict", "parameter",
                                       "initializer", "object", "sources", "num_output"]),
                      inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize(
    "written",
    [
        "SGD(lr=WarmUp(Cosine(0.05, 452), 40), momentum=0.9)",
        "Accumulator(ClipByLayerNorm(Adam(lr=0.001, beta_1=0.8), 2.0), 2)",
        "SGD(lr=Chained([Cosine(0.1, 5), Step(0.1, 3)], [4]), weight_decay=0.1)",
        "SoftmaxCrossEntropy(label_smoothing=0.1)",
        "Dense('fc', 3, W_specs={'init': Gaussian(0.0, 0.1)})",
    ],
)
def test_configurations_are_shown_as_a_user_writes_them(written):
    rooms = (optimizer, optimizer.schedules, loss, layers, initializer)
    names = {name: value for room in rooms for name, value in vars(room).items()}

    def made(text):
        return eval(text, names).to_config()  # noqa: S307 - the test's own text

    shown = config.config_to_text(made(written))
    assert made(shown) == made(written)
    assert "learning_rate" not in shown
    if "Dense" not in written:
        assert shown == written


@given(JSON)
def test_any_data_is_shown(data):
    assert isinstance(config.config_to_text(data), str)
    entry = {"class": "<b>", "arguments": {"f": "<lambda>", "x": [None, "a"]}}
    assert config.config_to_text(entry) == "<b>(f=<lambda>, x=[None, 'a'])"


@given(st.data())
def test_mutated_configurations_raise_only_our_errors(data):
    broken = described()
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from([*places(broken)]))
        holder[key] = data.draw(JSON)
    try:
        FeedForwardNet.from_config(broken).param_names()
    except SingaNetError as error:
        assert len(str(error)) < 1000  # noqa: PT017 - any of our errors will do
