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
from tests.layers import typed_layers
from tests.onnx.runtime import expect_same

KINDS = {name: getattr(layers, name) for name in CATALOGUE}
ALIASES = {name: found for name, kind in KINDS.items() if (found := aliases(argument_names(kind)))}
PARTS = {name: found for name, kind in KINDS.items() if (found := part_words(kind.__init__))}
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


@pytest.mark.parametrize("name", ALIASES)
def test_each_word_is_the_first_one(name):
    kind = KINDS[name]
    for word, here in ALIASES[name].items():
        arguments, default = given(name), inspect.signature(kind).parameters[here].default
        value = arguments.pop(here, None if default is REQUIRED else default)
        one, other = (kind("it", **arguments, **{key: value}) for key in (here, word))
        assert one.arguments == other.arguments
        assert one.arguments[here] == value
        with pytest.raises(SignatureError, match=rf"{here}: expected one name for the"):
            kind("it", **arguments, **{here: value, word: value})


@pytest.mark.parametrize("name", PARTS)
def test_settings_of_parameters_become_entries_of_specs(name):
    kind = KINDS[name]
    for word, (whole, key) in PARTS[name].items():
        arguments, (spec, _, part) = given(name), whole.partition(".")
        arguments.pop(spec, None)
        value = SETTINGS[word.rpartition("_")[2]]
        found = kind("it", **arguments, **{word: value}).arguments[spec]
        assert (found[part] if part else found) == {key: value}
        assert kind("it", **arguments, **{word: None}).arguments.keys() == {"name", *arguments}
        with pytest.raises(SignatureError, match=rf"{spec}= and {word}=|{word}= and {spec}="):
            kind("it", **arguments, **{spec: found, word: value})


@pytest.mark.parametrize("name", CATALOGUE)
def test_signatures_show_all_words_and_the_name_comes_first_by_word_or_not_at_all(name):
    kind, arguments = KINDS[name], given(name)
    shown = inspect.signature(kind).parameters
    assert {*argument_names(kind), *part_words(kind.__init__)} <= shown.keys()
    assert "words" not in shown
    assert next(iter(shown)) == "name"
    by_name = [each.name for each in shown.values() if each.kind is each.KEYWORD_ONLY]
    assert not {"W_specs", "b_specs", "use_bias", "activation"} & (shown.keys() - set(by_name))
    layer, named, unnamed = kind("it", **arguments), kind(name="it", **arguments), kind(**arguments)
    assert layer.to_config() == named.to_config()
    assert unnamed.name == snake_case(name)
    unnamed._take_name("it")
    assert unnamed.to_config() == layer.to_config()


OLD = [
    ("Conv1D", {"nb_kernels": 2, "border_mode": "causal", "dilation": 2},
     {"filters": 2, "padding": "causal", "dilation_rate": 2}),
    ("Conv2D", {"nb_kernels": 2, "kernel": [3, 1], "stride": 2, "border_mode": "valid"},
     {"filters": 2, "kernel_size": [3, 1], "strides": 2, "padding": "valid"}),
    ("Conv2D", {"nb_kernels": 2, "border_mode": "valid", "pad": [[0, 1], 2]},
     {"filters": 2, "padding": [[0, 1], 2]}),
    ("Conv2D", {"nb_kernels": 2, "border_mode": "valid", "pad": None},
     {"filters": 2, "padding": "valid"}),
    ("Conv3D", {"nb_kernels": 2, "pad": None}, {"filters": 2}),
    ("Conv2DTranspose", {"nb_kernels": 2, "kernel": 4, "stride": 2, "border_mode": "keras_same"},
     {"filters": 2, "kernel_size": 4, "strides": 2, "padding": "keras_same"}),
    ("DepthwiseConv2D", {"kernel": 5, "pad": 2}, {"kernel_size": 5, "padding": 2}),
    ("SeparableConv2D", {"nb_kernels": 2, "kernel": 5}, {"filters": 2, "kernel_size": 5}),
    ("MaxPooling2D", {"kernel": 2, "stride": 1, "pad": 1, "dilation": 2},
     {"pool_size": 2, "strides": 1, "padding": 1, "dilation_rate": 2}),
    ("AvgPooling1D", {"kernel": 2, "stride": None, "border_mode": "valid"},
     {"pool_size": 2, "strides": None, "padding": "valid"}),
    ("Pad", {"pad": [[0, 1], [2, 0]]}, {"padding": [[0, 1], [2, 0]]}),
    ("EndPadding", {"pad": 2}, {"padding": 2}),
    ("Cropping", {"crop": 1}, {"cropping": 1}),
    ("Upsampling2D", {"size": 3, "mode": "bilinear"}, {"size": 3, "interpolation": "bilinear"}),
    ("Dropout", {"p": 0.25}, {"rate": 0.25}),
    ("SpatialDropout", {"p": 0.25, "axis": -1}, {"rate": 0.25, "axis": -1}),
    ("AlphaDropout", {"p": 0.25}, {"rate": 0.25}),
    ("GaussianNoise", {"std": 0.25}, {"stddev": 0.25}),
    ("Masking", {"value": 1.0}, {"mask_value": 1.0}),
    ("Permute", {"axes": [2, 1]}, {"dims": [2, 1]}),
    ("Reduce", {"mode": "max", "axes": [1]}, {"mode": "max", "axis": [1]}),
    ("RepeatVector", {"count": 3}, {"n": 3}),
    ("Split", {"num_output": 2}, {"num_outputs": 2}),
    ("Concat", {"axis": 1, "input_sample_shapes": [[2], [3]]},
     {"axis": 1, "input_shape": [[2], [3]]}),
    ("Dense", {"num_output": 3, "input_sample_shape": [4]}, {"units": 3, "input_shape": [4]}),
    ("Embedding", {"vocabulary_size": 5, "num_output": 2}, {"input_dim": 5, "output_dim": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), OLD)
def test_descriptions_in_the_words_of_before_are_read(name, old, new):
    made = Layer.from_config({"class": name, "arguments": {"name": "it", **old}})
    kind = KINDS[name]
    # Those before `data_format` mean channels first.
    first = {"data_format": "channels_first"} if "data_format" in argument_names(kind) else {}
    assert made.to_config() == kind("it", **new, **first).to_config()


def test_singas_pad_goes_before_its_border_mode_and_padding_has_one_word():
    both = layers.Conv2D("it", 2, border_mode="valid", pad=1)
    assert both.window == layers.Conv2D("it", 2, padding=1).window
    for more in ({"pad": 1}, {"border_mode": "same"}, {"pad": 1, "border_mode": "same"}):
        with pytest.raises(SignatureError, match="padding: expected one name for the argument"):
            layers.Conv2D("it", 2, padding=1, **more)


def test_users_write_them_in_one_of_three_ways():
    assert [layer.name for layer in typed_layers.LAYERS[:3]] == ["c", "conv2d", "c"]


@pytest.mark.slow
def test_type_checkers_accept_all_of_them():
    mypy = pytest.importorskip("mypy.api")
    found, wrong, status = mypy.run(["--strict", typed_layers.__file__])
    assert (status, wrong) == (0, ""), found


# -- names ----------------------------------------------------------------------------------------


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
