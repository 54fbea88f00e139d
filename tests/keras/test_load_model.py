"""Nets from the archives that the real Keras writes."""

import json
import zipfile

import numpy as np
import pytest

from singanet import FeedForwardNet, errors
from singanet import keras as archive
from singanet.keras import load_model
from singanet.layers import Dense, Permute
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops.interface import ACTIVATIONS
from singanet.optimizer import SGD
from tests.kit.files import rewrite_zip

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
kl = keras.layers


def cnn():
    x = keras.Input((9, 7, 3), name="image")
    y = kl.Conv2D(4, 3, padding="same", activation="relu", name="c1")(x)
    z = kl.BatchNormalization(center=False)(y)
    y = kl.Add()([y, z])
    y = kl.Concatenate()([y, kl.LeakyReLU()(y)])
    y = kl.MaxPooling2D(2)(y)
    y = kl.Flatten()(kl.Dropout(0.3)(y))
    return keras.Model(x, kl.Dense(5, activation="softmax")(y))


def strided():
    return keras.Sequential([
        keras.Input((9, 8, 3)), kl.ZeroPadding2D(1), kl.Cropping2D(((0, 1), (1, 0))),
        kl.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
        kl.DepthwiseConv2D(3, strides=2, padding="same", activation="gelu"), kl.UpSampling2D(3),
        kl.SeparableConv2D(5, 3, strides=2, padding="same", depth_multiplier=2),
        kl.MaxPooling2D(2, padding="same"), kl.AveragePooling2D(3, strides=1, padding="same"),
        kl.AveragePooling2D(2), kl.GlobalAveragePooling2D(keepdims=True), kl.GlobalMaxPooling2D(),
        kl.LayerNormalization(center=False), kl.Dense(2),
    ])  # fmt: skip


def recurrent():
    return keras.Sequential([
        keras.Input((6,), dtype="int32"), kl.Embedding(12, 5), kl.LayerNormalization(),
        kl.Dense(4, activation="tanh"), kl.BatchNormalization(scale=False),
        kl.Bidirectional(kl.LSTM(3, return_sequences=True)),
        kl.GRU(4, return_sequences=True, use_bias=False, recurrent_dropout=0.2),
        kl.LSTM(4, return_sequences=True, go_backwards=True, dropout=0.2),
        kl.SimpleRNN(3, activation="relu"), kl.Activation("softmax"),
    ])  # fmt: skip


def masked():
    return keras.Sequential([
        keras.Input((6,), dtype="int32"), kl.Embedding(12, 5, mask_zero=True), kl.Dropout(0.1),
        kl.Bidirectional(kl.LSTM(3, return_sequences=True)), kl.GRU(4), kl.Dense(2),
    ])  # fmt: skip


def noisy():
    return keras.Sequential([
        keras.Input((6,), dtype="int32"), kl.Embedding(12, 5), kl.SpatialDropout1D(0.2),
        kl.RMSNormalization(), kl.GaussianNoise(0.1), kl.GRU(3), kl.AlphaDropout(0.2),
        kl.RepeatVector(2),
    ])  # fmt: skip


def activated():
    # A mode that Keras computes otherwise, or does not know, has to leave this list by name.
    known = {mode for mode in ACTIVATIONS if hasattr(keras.activations, mode)} - {"leaky_relu"}
    modes = [*sorted(known), "swish", "hard_silu"]
    parts = [part for mode in modes for part in (kl.Dense(6), kl.Activation(mode))]
    return keras.Sequential(
        [keras.Input((6,)), *parts, kl.Dense(4), kl.ReLU(6), kl.Activation("log_softmax")]
    )


def two_in_two_out():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    y = kl.Multiply()([kl.Dense(4, "tanh")(a), b])
    z = kl.Minimum()([kl.Subtract()([y, a]), b])
    return keras.Model([a, b], [kl.Dense(2, name="left")(z), kl.Maximum(name="right")([y, b])])


def image_rows():
    """Rows of images joined, normalised and met by a dense layer's."""
    a, b = keras.Input((4, 5, 3), name="a"), keras.Input((4, 5, 3), name="b")
    x, y = kl.Flatten()(kl.Conv2D(2, 3)(a)), kl.Flatten()(b)
    z = kl.LayerNormalization()(kl.Concatenate()([x, y]))
    w = kl.Multiply()([kl.Dense(60)(z), y])
    ends = [kl.Dense(3, name="left")(w), kl.BatchNormalization(name="right")(w)]
    return keras.Model([a, b], ends)


def randomise(model):
    rng = np.random.default_rng(3)
    model.set_weights([rng.uniform(0.1, 0.9, w.shape) for w in model.get_weights()])
    return model


def masked_features():
    return keras.Sequential(
        [keras.Input((5, 3)), kl.Masking(0.3), kl.SimpleRNN(4, return_sequences=True), kl.GRU(2)]
    )


@pytest.mark.parametrize(
    "make", [cnn, strided, recurrent, masked, masked_features, activated, noisy]
)
def test_outputs_are_those_of_keras(tmp_path, make):
    model = randomise(make())
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    shape, rng = model.input_shape[1:], np.random.default_rng(1)
    there = rng.uniform(-1, 1, (3, *shape)).astype("f4")
    if make in (recurrent, masked, noisy):
        there = rng.integers(0, 12, (3, *shape))
    elif make is masked_features:
        there[0, 3:], there[1, [0, 2]] = 0.3, 0.3
    found = net.forward(False, np.moveaxis(there, -1, 1) if len(shape) == 3 else there)
    np.testing.assert_allclose(found, model.predict(there, verbose=0), rtol=2e-5, atol=2e-5)


def test_a_classifier_that_ends_in_softmax_trains_on_as_in_keras(tmp_path):
    """It trained on a softmax of a softmax, and predict gave 0.44 for Keras' 0.64."""
    model = keras.Sequential([keras.Input((4,)), kl.Dense(6, "tanh"), kl.Dense(3, "softmax")])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    with pytest.raises(errors.ArgumentError, match="CategoricalCrossEntropy"):
        net.compile(SGD(lr=0.5), SoftmaxCrossEntropy())
    net.compile(SGD(lr=0.5), loss, ["accuracy"])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("f4"), rng.integers(0, 3, 32)
    theirs = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    ours = net.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=False)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-4)
    np.testing.assert_allclose(ours["accuracy"], theirs["accuracy"])
    np.testing.assert_allclose(net.predict(x), model.predict(x, verbose=0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("make", "shape"), [(two_in_two_out, (4,)), (image_rows, (4, 5, 3))])
def test_several_inputs_and_outputs(tmp_path, make, shape):
    """And rows of images, which stand as in Keras."""
    model = randomise(make())
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    a, b = np.random.default_rng(1).uniform(-1, 1, (2, 3, *shape)).astype("f4")
    feed = {"a": a, "b": b}
    if len(shape) == 3:
        feed = {name: np.moveaxis(x, -1, 1) for name, x in feed.items()}
    found = net.forward(False, feed)
    for name, expected in zip(("left", "right"), model.predict([a, b], verbose=0), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    net.save(tmp_path / "again.weights.h5")
    before = model.get_weights()
    model.load_weights(tmp_path / "again.weights.h5")
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.fixture
def change(tmp_path):
    """An archive of a model, a small one by default, whose description went through a function."""

    def change(edit, layers=None):
        layers = layers or [keras.Input((4,)), kl.Dense(3, name="d"), kl.Dense(2, name="e")]

        def edited(name, content):
            if name != "config.json":
                return content
            config = json.loads(content)
            return json.dumps(edit(config) or config).encode()

        keras.Sequential(layers).save(tmp_path / "m.keras")
        return rewrite_zip(tmp_path / "m.keras", tmp_path / "changed.keras", edited)

    return change


def inside(config):
    return config["config"]["layers"][1]


NORMALIZED = [keras.Input((1,)), kl.Normalization(mean=0.0, variance=1.0)]
CONVOLVED = [keras.Input((6, 6, 1)), kl.Conv2D(2, 3, padding="same")]


@pytest.mark.parametrize(
    ("edit", "message", "layers"),
    [
        (lambda c: inside(c).update(class_name="Lambda"), "layer 'd'.*classes among.*'?Lambda", ()),
        (lambda c: inside(c).update(registered_name="evil>Dense"), "classes among", ()),
        (lambda c: c.update(class_name="Evil"), "Sequential", ()),
        (lambda c: inside(c)["config"].update(activation={"module": "os"}), "an activation a", ()),
        (lambda c: inside(c)["config"].update(units="many"), "units", ()),
        (lambda c: inside(c)["config"].update(units=-1), "units", ()),
        (lambda c: inside(c)["config"].clear(), "written by Keras 3.*KeyError", ()),
        (lambda c: c["config"].update(layers=5), "written by Keras 3", ()),
        (lambda c: c["config"].update(layers=[]), "written by Keras 3", ()),
        (lambda c: [1], "JSON object", ()),
        (lambda c: inside(c)["config"].update(units=7), "do not fit|with its shape", ()),
        (lambda c: inside(c)["config"].update(what_comes_next=False), "'d'.*what_comes_next=N", ()),
        (lambda c: inside(c)["config"].update(mean=[0.0] * 5, variance=[1.0] * 5),
         "that fits its weights", NORMALIZED),
        (lambda c: inside(c)["config"].update(strides=0), "written by Keras 3.*ZeroDivisionError",
         CONVOLVED),
        (lambda c: c.update(class_name="x" * 5000), "a model among", ()),
        (lambda c: c.update(class_name=[{"class_name": "y" * 5000}]), "a model among", ()),
    ],
)  # fmt: skip
def test_what_is_not_in_the_table(change, edit, message, layers):
    path = change(edit, layers)
    with pytest.raises(errors.SingaNetError, match=message) as caught:
        load_model(path)
    assert len(str(caught.value)) < (600)


def test_two_layers_at_one_place_of_a_file_are_told(tmp_path):
    from dataclasses import replace

    from singanet.checkpoint import write_state
    from singanet.checkpoint.keras import KerasReader
    from singanet.saving.codecs import keras_layers

    weights = {"fc/weight": np.ones((3, 2), "f4"), "fc/bias": np.zeros(2, "f4")}
    (one,) = keras_layers(FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,))]))
    one = replace(one, place="functional/layers/dense")
    write_state(tmp_path / "k.weights.h5", weights, "keras", layers=[one])
    places = [one, replace(one, name="b")]
    with pytest.raises(errors.FileFormatError, match="KeyError"):
        KerasReader(tmp_path / "k.weights.h5", places)


def test_claims_that_the_weights_cannot_fill(change):
    # Float32: weights and biases from 4 to 10**12 units, and from these to 2.
    numbers = 5 * 10**12 + 2 * (10**12 + 1)
    match = f"expected parameters of at most .* received {4 * numbers} bytes"
    with pytest.raises(errors.UnsafeFileError, match=match):
        load_model(change(lambda c: inside(c)["config"].update(units=10**12)))


def test_a_description_as_long_as_may_be_and_no_longer(change, monkeypatch):
    path = change(lambda config: None)
    with zipfile.ZipFile(path) as whole:
        size = whole.getinfo("config.json").file_size
    monkeypatch.setattr(archive, "_LONGEST", size)
    load_model(path)
    monkeypatch.setattr(archive, "_LONGEST", size - 1)
    with pytest.raises(errors.FileFormatError, match=f"a description of at most {size - 1} bytes"):
        load_model(path)


@pytest.mark.parametrize("missing", ["config.json", "model.weights.h5"])
def test_members_that_are_missing(tmp_path, change, missing):
    whole, less = change(lambda c: None), tmp_path / "less.keras"
    rewrite_zip(whole, less, lambda name, content: None if name == missing else content)
    with pytest.raises(errors.FileFormatError, match=r"less\.keras"):
        load_model(less)


def test_cut_anywhere(change, tmp_path):
    whole = change(lambda c: None).read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "cut.keras").write_bytes(whole[:size])
        with pytest.raises(errors.FileFormatError, match=r"cut\.keras"):
            load_model(tmp_path / "cut.keras")
    with pytest.raises(errors.FileAccessError):
        load_model(tmp_path / "gone.keras")


def test_weights_no_larger_than_the_drawing_needs(change, tmp_path):
    """A few kilobytes that would write hundreds of megabytes to a temporary folder."""
    zeros = rewrite_zip(
        change(lambda c: None), tmp_path / "zeros.keras",
        lambda name, content: content + bytes(60 << 20) * name.endswith(".h5"),
        zipfile.ZIP_DEFLATED,
    )  # fmt: skip
    # A number and five of an optimizer, of 8 bytes each, and 64 kB around each of the four arrays.
    most = (1 << 20) + (4 * 3 + 3 + 3 * 2 + 2) * 6 * 8 + 4 * (64 << 10)
    with pytest.raises(
        errors.UnsafeFileError, match=f"at most {most} bytes of weights; received 62"
    ):
        load_model(zeros)


def test_zeros_packed_small_are_not_made_into_a_net(tmp_path):
    model = keras.Sequential([keras.Input((2000,)), kl.Dense(5000, kernel_initializer="zeros")])
    model.save(tmp_path / "m.keras")
    rewrite_zip(
        tmp_path / "m.keras", tmp_path / "n.keras", lambda name, raw: raw, zipfile.ZIP_DEFLATED
    )
    with pytest.raises(errors.UnsafeFileError, match="parameters of at most"):
        load_model(tmp_path / "n.keras")
    assert load_model(tmp_path / "m.keras").params()[0].shape == (2000, 5000)


def test_parameters_of_as_many_bytes_as_the_archive_allows_and_no_more(change, monkeypatch):
    path, nbytes = change(lambda config: None), 4 * (4 * 3 + 3 + 3 * 2 + 2)
    monkeypatch.setattr(archive, "TIMES", 0)
    monkeypatch.setattr(archive, "FLOOR", nbytes)
    assert sum(value.nbytes for value in load_model(path).param_values()) == nbytes
    monkeypatch.setattr(archive, "FLOOR", nbytes - 1)
    with pytest.raises(
        errors.UnsafeFileError, match=f"at most {nbytes - 1} bytes; received {nbytes}"
    ):
        load_model(path)


def settled():
    reg, con = keras.regularizers, keras.constraints
    return keras.Sequential([
        keras.Input((6, 6, 2)),
        kl.Conv2D(3, 2, kernel_regularizer="l2", kernel_constraint=con.MaxNorm(2, [0, 1, 2])),
        kl.DepthwiseConv2D(2, depthwise_regularizer=reg.L1(0.05)),
        kl.BatchNormalization(trainable=False, name="held"), kl.Flatten(),
        kl.Dense(4, kernel_regularizer=reg.L1L2(0.0, 0.1), bias_regularizer=reg.L2(0.3)),
        kl.Dense(4, trainable=False, name="frozen"), kl.LayerNormalization(gamma_regularizer="l2"),
        kl.Dense(3, kernel_constraint=con.MaxNorm(0.4), bias_constraint=con.MaxNorm(0.2)),
    ])  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")  # inside Keras' fit
def test_settings_that_change_a_training_are_kept(tmp_path):
    """Trained on, the net becomes what Keras makes of the same model."""
    model = randomise(settled())
    # SINGA's loss: half the square.
    half = lambda t, p: 0.5 * keras.ops.square(t - p)  # noqa: E731
    model.save(tmp_path / "m.keras")
    model.compile(keras.optimizers.SGD(0.05), loss=half)
    net, after = load_model(tmp_path / "m.keras"), tmp_path / "after.weights.h5"
    frozen = [p.name for p in net.params() if not p.trainable]
    held = [f"held/{suffix}" for suffix in ("gamma", "beta", "mean", "var")]
    assert frozen == [*held, "frozen/weight", "frozen/bias"]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 6, 6, 2)).astype("f4"), rng.standard_normal((8, 3)).astype("f4")
    net.loss, sgd = SquaredError(), SGD(lr=0.05)
    for _ in range(3):
        model.train_on_batch(x, y)
        net.step(np.moveaxis(x, -1, 1), y, sgd)
    model.save_weights(after)
    expected = load_model(tmp_path / "m.keras")
    moved = [value.copy() for value in expected.param_values()]
    expected.load(after)
    for param, value, old in zip(net.params(), expected.param_values(), moved, strict=True):
        np.testing.assert_allclose(param.value, value, rtol=1e-4, atol=1e-5, err_msg=param.name)
        assert param.trainable != np.array_equal(value, old)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_a_table_are_held_along_the_axis_that_keras_names(tmp_path, axis):
    largest = keras.constraints.MaxNorm(0.5, axis)
    table = kl.Embedding(4, 3, embeddings_constraint=largest)
    keras.Sequential([keras.Input((4,), dtype="int32"), table]).save(tmp_path / "m.keras")
    net, ids = load_model(tmp_path / "m.keras"), np.arange(4)[None]
    weight = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    net.params()[0].put(weight)
    net.loss = SquaredError()
    net.step(ids, weight[ids], SGD(lr=0.1))  # no gradient: the constraint alone
    wanted = weight * 0.5 / np.linalg.norm(weight, axis=axis, keepdims=True)
    np.testing.assert_allclose(net.param_values()[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "axes"),
    [
        (kl.SeparableConv2D, (4, 4, 3), {"pointwise": [0, 1, 2], "depthwise": [0, 1]}),
        (kl.DepthwiseConv2D, (4, 4, 3), {"depthwise": [0, 1]}),
        (kl.SeparableConv1D, (6, 3), {"pointwise": [0, 1], "depthwise": 0}),
        (kl.DepthwiseConv1D, (6, 3), {"depthwise": 0}),
        (kl.Conv1D, (6, 3), {"kernel": [0, 1]}),
        (kl.Conv2D, (4, 4, 3), {"kernel": [0, 1, 2]}),
    ],
)
def test_kernels_by_channel_are_held_along_the_axes_that_keras_names(tmp_path, kind, shape, axes):
    held = {name: keras.constraints.MaxNorm(0.3, along) for name, along in axes.items()}
    settings = {f"{name}_constraint": each for name, each in held.items()}
    settings["depth_multiplier" if [*axes] == ["depthwise"] else "filters"] = 2
    model = randomise(keras.Sequential([keras.Input(shape), kind(kernel_size=2, **settings)]))
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    x = np.ones((2, shape[-1], *shape[:-1]) if len(shape) == 3 else (2, *shape), np.float32)
    net.loss = SquaredError()
    net.step(x, net.predict(x), SGD(lr=1e-6))  # no gradient: the constraints alone
    layer = model.layers[0]
    for name, each in held.items():
        kernel = getattr(layer, f"{name}_kernel", None)
        kernel = layer.kernel if kernel is None else kernel
        kernel.assign(each(kernel))
    model.save(tmp_path / "held.keras")
    wanted = load_model(tmp_path / "held.keras").param_values()
    for one, other in zip(net.param_values(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


NORM, LSTM = keras.constraints.MaxNorm, lambda: kl.LSTM(3, activity_regularizer="l2", name="d")
REFUSED = [
    ((4,), lambda: kl.Dense(3, activity_regularizer="l2", name="d"), "activity_regularizer=None"),
    ((4,), lambda: kl.Dense(3, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.1), name="d"),
     "kernel_regularizer: expected L1 or L2"),
    ((4,), lambda: kl.Dense(3, bias_regularizer="orthogonal_regularizer", name="d"), "L1 or L2"),
    ((4,), lambda: kl.Dense(3, kernel_constraint="non_neg", name="d"), "expected MaxNorm.*NonNeg"),
    ((4,), lambda: kl.Dense(3, kernel_constraint=NORM(2, 1), name="d"), "MaxNorm along axes"),
    ((4,), lambda: kl.Dropout(0.5, noise_shape=(1, 4), name="d"), "noise_shape=None"),
    ((4,), lambda: kl.Dense(3, lora_rank=2, name="d"), "lora_rank=None"),
    ((5, 4), lambda: kl.DepthwiseConv1D(2, depthwise_constraint=NORM(2, [0, 1]), name="d"),
     r"MaxNorm along axes \(0,\)"),
    ((5, 4), lambda: kl.SeparableConv1D(3, 2, depthwise_constraint=NORM(2, [0, 1]), name="d"),
     r"MaxNorm along axes \(0,\)"),
    ((5, 4), LSTM, "activity_regularizer=None"),
    ((5, 4), lambda: kl.Bidirectional(LSTM(), name="d"), "activity_regularizer=None"),
    ((6, 4), lambda: lambda x: kl.Dropout(0.5, name="d")(x, training=True), "training=True"),
    ((2, 3, 4), lambda: kl.Normalization(axis=(1, 3), mean=0.0, variance=1.0, name="d"),
     r"one axis.*axis=\[1, 3\]"),
    ((6, 4), lambda: lambda x: kl.MultiHeadAttention(2, 3, sliding_window=2, name="d")(x, x),
     "sliding_window=None"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "layer", "words"), REFUSED)
def test_settings_that_we_have_not_are_refused_by_name(tmp_path, shape, layer, words):
    x = keras.Input(shape)
    try:
        y = layer()(x)
    except (TypeError, ValueError):
        pytest.skip("this Keras has no such setting")
    keras.Model(x, y).save(tmp_path / "m.keras")
    with pytest.raises(errors.FileFormatError, match=f"layer 'd'.*{words}"):
        load_model(tmp_path / "m.keras")


def test_two_orders_of_axes_in_one_model_are_refused(tmp_path):
    other = kl.MaxPooling2D(2, data_format="channels_first")
    keras.Sequential([keras.Input((4, 4, 4)), kl.Conv2D(2, 1), other]).save(tmp_path / "m.keras")
    with pytest.raises(errors.FileFormatError, match="one data_format in all layers"):
        load_model(tmp_path / "m.keras")


def test_models_inside_each_other_up_to_a_limit(tmp_path):
    model = keras.Sequential([keras.Input((2,)), kl.Dense(2)])
    for _ in range(20):
        model = keras.Sequential([keras.Input((2,)), model])
    model = randomise(model)
    model.save(tmp_path / "m.keras")
    x = np.eye(2, dtype="f4")
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(load_model(tmp_path / "m.keras").predict(x), expected, rtol=1e-6)
    keras.Sequential([keras.Input((2,)), model]).save(tmp_path / "n.keras")
    with pytest.raises(errors.FileFormatError, match="at most 20 levels of nested models"):
        load_model(tmp_path / "n.keras")


def test_layers_that_turn_one_after_the_other_undo_each_other_only_where_they_do(tmp_path):
    rows = [keras.Input((7, 4)), kl.GroupNormalization(2), kl.GroupNormalization(4)]
    images = [keras.Input((4, 5, 3)), kl.Permute((3, 1, 2)), kl.Permute((3, 1, 2)), kl.Flatten()]
    rng = np.random.default_rng(0)
    for layers, count in (rows, 2), (images, 3):
        model = randomise(keras.Sequential(layers))
        model.save(tmp_path / "m.keras")
        net = load_model(tmp_path / "m.keras")
        x = rng.uniform(-1, 1, (2, *model.input_shape[1:])).astype("f4")
        found = net.predict(np.moveaxis(x, -1, 1) if x.ndim == 4 else x)
        np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
        assert sum(isinstance(layer, Permute) for layer in net.layers) == count


def test_a_model_that_is_not_trained_at_all_and_weights_of_half_the_bytes(tmp_path):
    model = keras.Sequential([keras.Input((4,)), kl.Dense(3)])
    model.trainable = False
    model.save(tmp_path / "m.keras")
    assert not any(param.trainable for param in load_model(tmp_path / "m.keras").params())
    # The latter are no forgery.
    keras.Sequential([keras.Input((200,)), kl.Dense(200, dtype="float16")]).save(
        tmp_path / "h.keras"
    )
    with pytest.raises(errors.StateMismatchError, match="weight float16, not float32"):
        load_model(tmp_path / "h.keras")
