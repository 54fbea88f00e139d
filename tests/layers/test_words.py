"""The words of layers' arguments, layers without a name, and activations of layers."""

import inspect

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers, load_model
from singanet.base.described import argument_names
from singanet.base.kinds import snake_case
from singanet.base.words import REQUIRED, aliases, part_words
from singanet.errors import SignatureError
from singanet.layers import Activation, Softmax, TimeDistributed
from singanet.layers.layer import Layer
from singanet.loss import MeanSquaredError
from singanet.optimizer import SGD
from tests.layer_catalogue import CATALOGUE, inputs_of
from tests.onnx.runtime import expect_same

KINDS = {name: getattr(layers, name) for name in CATALOGUE}
ALIASES = [
    (name, word, here)
    for name, kind in KINDS.items()
    for word, here in aliases(argument_names(kind)).items()
]
PARTS = [(name, word) for name, kind in KINDS.items() for word in part_words(kind.__init__)]
SETTINGS = {"initializer": "he_normal", "regularizer": 0.1, "constraint": "non_negative"}


def given(name):
    """The arguments of the layer in the catalogue, without its name."""
    made = CATALOGUE[name][0]("it")
    if not isinstance(made, Layer):
        return {}
    return {key: value for key, value in made.arguments.items() if key != "name"}


def drawn(make, name):
    """The outputs of a new layer on the inputs of the catalogue."""
    inputs = [Input(f"in{k}", shape) for k, shape in enumerate(CATALOGUE[name][1])]
    found = []
    for layer in make():
        made = layer(*inputs)
        found += made if isinstance(made, tuple) else [made]
    return FeedForwardNet(inputs=inputs, outputs=found, seed=1)


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "word", "here"), ALIASES)
def test_each_word_is_the_first_one(name, word, here):
    kind, arguments = KINDS[name], given(name)
    default = inspect.signature(kind).parameters[here].default
    value = arguments.pop(here, None if default is REQUIRED else default)
    one, other = (kind("it", **arguments, **{key: value}) for key in (here, word))
    assert one.arguments == other.arguments
    assert one.arguments[here] == value
    with pytest.raises(SignatureError, match=rf"{here}: expected one word for it; received"):
        kind("it", **arguments, **{here: value, word: value})


@pytest.mark.parametrize(("name", "word"), PARTS)
def test_settings_of_parameters_become_entries_of_specs(name, word):
    kind, arguments = KINDS[name], given(name)
    spec, key = part_words(kind.__init__)[word]
    spec, _, part = spec.partition(".")
    arguments.pop(spec, None)
    value = SETTINGS[word.rpartition("_")[2]]
    found = kind("it", **arguments, **{word: value}).arguments[spec]
    assert (found[part] if part else found) == {key: value}
    assert kind("it", **arguments, **{word: None}).arguments.keys() == {"name", *arguments}
    with pytest.raises(SignatureError, match=rf"{spec}= and {word}=|{word}= and {spec}="):
        kind("it", **arguments, **{spec: found, word: value})


@pytest.mark.parametrize("name", CATALOGUE)
def test_signatures_show_all_words_and_take_one_argument_by_place(name):
    kind = KINDS[name]
    shown = inspect.signature(kind).parameters
    assert {*argument_names(kind), *part_words(kind.__init__)} <= shown.keys()
    assert "words" not in shown
    assert next(iter(shown)) == "name"
    by_name = [each.name for each in shown.values() if each.kind is each.KEYWORD_ONLY]
    assert not {"W_specs", "b_specs", "use_bias", "activation"} & (shown.keys() - set(by_name))


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_name_comes_first_by_word_or_not_at_all(name):
    kind, arguments = KINDS[name], given(name)
    layer, named, unnamed = kind("it", **arguments), kind(name="it", **arguments), kind(**arguments)
    assert layer.to_config() == named.to_config()
    assert unnamed.name == snake_case(name)
    unnamed._take_name("it")
    assert unnamed.to_config() == layer.to_config()


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() - {"Masking", "TimeDistributed"}))
def test_layers_without_a_name_are_counted_in_their_net(name, tmp_path):
    net = drawn(lambda: [CATALOGUE[name][0](None) for _ in range(2)], name)
    stem = snake_case(name)
    assert [node.name for node in net.nodes()][len(CATALOGUE[name][1]) :] == [stem, f"{stem}_1"]
    net.save_model(tmp_path / "net.singanet")
    again = load_model(tmp_path / "net.singanet")
    assert [node.name for node in again.nodes()] == [node.name for node in net.nodes()]
    assert again.param_names() == net.param_names()
    feed = inputs_of(name)
    one, other = (each.forward(False, feed) for each in (net, again))
    assert one.keys() == other.keys()
    for key, y in one.items():
        np.testing.assert_equal(other[key], y)


# -- activations ----------------------------------------------------------------------------------

ACTIVATED = [
    name
    for name, kind in KINDS.items()
    if "activation" in argument_names(kind)
    and argument_names(kind)[1:3] != ("units", "activation")
    and not issubclass(kind, (layers.RNN, layers.LSTM, layers.GRU))
]


def behind(name, mode):
    """The layer of ``mode`` behind that of the catalogue; channels are the axis 1."""
    axis = -1 if name in ("Dense", "LayerNorm", "RMSNorm") else 1
    return Softmax("after", axis) if mode == "softmax" else Activation("after", mode)


def pair(name, mode, net=None):
    """A net of the layer with its activation, and one with a layer for each of both."""
    x, arguments = Input("in0", CATALOGUE[name][1][0]), given(name)
    one = KINDS[name]("it", **arguments, activation=mode)(x)
    other = behind(name, mode)(KINDS[name]("it", **arguments)(x))
    return [
        FeedForwardNet(MeanSquaredError(), inputs=x, outputs=y, seed=1, name=net)
        for y in (one, other)
    ]


def same(one, other, feed, steps=4):
    """Values, gradients and steps, of which the later ones are recorded."""
    y = one.forward(False, feed)
    np.testing.assert_array_equal(y, other.forward(False, feed))
    targets = np.linspace(-1.0, 1.0, y.size, dtype=y.dtype).reshape(y.shape)
    losses = []
    for net in (one, other):
        rule = SGD(0.05)
        losses.append([net.step(feed, targets, rule) for _ in range(steps)])
        losses[-1].append([np.asarray(each).tolist() for each in net.train(feed, targets)[0]])
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(one.forward(False, feed), other.forward(False, feed))


@pytest.mark.parametrize("mode", ["relu", "softmax", "gelu"])
@pytest.mark.parametrize("name", ACTIVATED)
def test_an_activation_is_a_layer_of_its_own_behind(name, mode, tmp_path):
    one, other = pair(name, mode)
    feed = inputs_of(name)
    same(one, other, feed)
    one.save_model(tmp_path / "one.singanet")
    same(load_model(tmp_path / "one.singanet"), other, feed)
    cut = one.upto("it")
    np.testing.assert_array_equal(cut.forward(False, feed), one.forward(False, feed))


@pytest.mark.parametrize("name", ACTIVATED)
def test_an_activation_in_a_nested_net(name):
    x = Input("in0", CATALOGUE[name][1][0])
    outer = [
        FeedForwardNet(MeanSquaredError(), inputs=x, outputs=inner(x), seed=1)
        for inner in pair(name, "softmax", net="inner")
    ]
    same(*outer, inputs_of(name))
    assert "inner/it" in outer[0]


@pytest.mark.parametrize("mode", ["relu", "softmax"])
@pytest.mark.parametrize("name", sorted({*ACTIVATED} - {"BatchNormalization"}))
def test_an_activation_at_each_step(name, mode):
    """Channels are one axis further behind."""
    (shape,) = CATALOGUE[name][1]
    x = Input("in0", (2, *shape))
    wrapped = [TimeDistributed("each", KINDS[name]("it", **given(name), **more))(x)
               for more in ({"activation": mode}, {})]  # fmt: skip
    after = behind(name, mode)
    if mode == "softmax" and after.axis == 1:
        after = Softmax("after", 2)
    one, other = (
        FeedForwardNet(MeanSquaredError(), inputs=x, outputs=y, seed=1)
        for y in (wrapped[0], after(wrapped[1]))
    )
    same(one, other, {"in0": np.random.default_rng(3).random((3, 2, *shape), np.float32)})


def test_a_layer_with_a_function_inside_has_none_behind_at_each_step():
    x = Input("in0", (2, 4, 3))
    y = TimeDistributed("each", layers.LSTM("it", 5))(x)
    net = FeedForwardNet(inputs=x, outputs=y, seed=1)
    assert [node.name for node in net.nodes()] == ["in0", "each"]


@pytest.mark.parametrize("mode", ["relu", "softmax"])
@pytest.mark.parametrize("name", ACTIVATED)
def test_an_activation_in_an_onnx_file(name, mode, tmp_path):
    pytest.importorskip("onnx")
    one, _ = pair(name, mode)
    expect_same(one, inputs_of(name), tmp_path / "net.onnx", 17)
