"""Weights to and from the real Keras: the same arrays bit for bit, the same outputs."""

from __future__ import annotations

import time

import h5py
import numpy as np
import pytest

from singanet import layers as ours
from singanet import loss, optimizer
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError, FileFormatError
from singanet.net import FeedForwardNet
from singanet.saving.codecs import keras_layers
from tests.kit.draws import drawn

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
kl, ko = keras.layers, keras.optimizers

IMAGE, ROW, SEQUENCE, VOLUME = (3, 8, 6), (5,), (7, 4), (3, 5, 4, 6)


def flat_cnn():
    here = [
        ours.Conv2D("c1", 4, 3, input_sample_shape=IMAGE), ours.BatchNormalization("bn"),
        ours.Activation("r"), ours.MaxPooling2D("p", 2, 2, border_mode="valid"), ours.Flatten("f"),
        ours.Dropout("d"), ours.Dense("fc1", 6), ours.Dense("fc2", 3),
    ]  # fmt: skip
    there = [
        kl.Conv2D(4, 3, padding="same"), kl.BatchNormalization(epsilon=1e-5), kl.ReLU(),
        kl.MaxPooling2D(2), kl.Flatten(), kl.Dropout(0.5), kl.Dense(6), kl.Dense(3),
    ]  # fmt: skip
    return here, there


CHANNELS_FIRST = (IMAGE, VOLUME)
# Other layers are in tests/keras/test_models.py, with whole models.
CASES = {
    "cnn": (IMAGE, flat_cnn, None),
    "dense": (ROW, lambda: ours.Dense("d", 4), lambda: kl.Dense(4)),
    "dense, turned": (ROW, lambda: ours.Dense("d", 4, W_transpose=True), lambda: kl.Dense(4)),
    "conv3d": (VOLUME, lambda: ours.Conv3D("c", 4, (3, 2, 1), border_mode="valid"),
               lambda: kl.Conv3D(4, (3, 2, 1))),
    "conv3d transpose": (VOLUME, lambda: ours.Conv3DTranspose("c", 4, (3, 2, 1), 1, "valid"),
                         lambda: kl.Conv3DTranspose(4, (3, 2, 1))),
}  # fmt: skip


def build(case, seed=5):
    """Our net and the Keras model, every parameter a random number."""
    shape, here, there = CASES[case]
    here, there = here() if there is None else ([here()], [there()])
    image = shape in CHANNELS_FIRST
    model = keras.Sequential([keras.Input((*shape[1:], shape[0]) if image else shape), *there])
    net = FeedForwardNet(here, seed=seed)
    net.build(shape)
    rng = np.random.default_rng(seed)
    for param in net.params():
        param.value[...] = rng.uniform(0.2, 1.0, param.shape)
    model.set_weights([rng.uniform(0.2, 1.0, w.shape).astype("f4") for w in model.get_weights()])
    return net, model


def expect_same_outputs(net, model, case):
    """Check both outputs for the same samples, channels first."""
    shape = CASES[case][0]
    image = shape in CHANNELS_FIRST
    x = np.random.default_rng(1).uniform(-1, 1, (2, *shape)).astype("f4")
    here = net.forward(False, x)
    there = model.predict(np.moveaxis(x, 1, -1) if image else x, verbose=0)
    there = np.moveaxis(there, -1, 1) if image and there.ndim == here.ndim > 2 else there
    np.testing.assert_allclose(there, here, rtol=2e-5, atol=2e-5)


@pytest.fixture(params=["m.weights.h5", "m.h5"])
def file(request, tmp_path):
    """The two kinds of file; the second is Keras' legacy one."""
    return tmp_path / request.param


def kind(file):
    return None if file.name.endswith(".weights.h5") else "keras-legacy"


def keras_writes(model, file):
    if kind(file) is None:
        model.save_weights(file)
    else:
        legacy = pytest.importorskip("keras.src.legacy.saving.legacy_h5_format")
        with h5py.File(file, "w") as f:
            legacy.save_weights_to_hdf5_group(f, model)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_there_and_back(case, file, tmp_path):
    """Ours as Keras loads it, then Keras' as it comes here and goes back bit for bit."""
    net, model = build(case)
    before = model.get_weights()
    keras_writes(model, file)
    net.save(tmp_path / f"ours-{file.name}", format=kind(file))
    model.load_weights(tmp_path / f"ours-{file.name}")
    expect_same_outputs(net, model, case)
    model.set_weights(before)
    assert net.load(file).complete
    expect_same_outputs(net, model, case)
    net.save(tmp_path / f"again-{file.name}", format=kind(file))
    model.set_weights([np.zeros_like(w) for w in before])
    model.load_weights(tmp_path / f"again-{file.name}")
    for old, new in zip(before, model.get_weights(), strict=True):
        assert old.tobytes() == new.tobytes()


def test_several_layers_of_a_kind(tmp_path):
    net, model = FeedForwardNet(seed=1), keras.Sequential([keras.Input((4,))])
    for i in range(12):  # Keras' tenth comes before the second in HDF5's own order
        net.add(ours.Dense(f"layer{i}", 4, input_sample_shape=(4,) if not i else None))
        model.add(kl.Dense(4))
    net.save(tmp_path / "m.weights.h5")
    model.load_weights(tmp_path / "m.weights.h5")
    for param, weight in zip(net.params(), model.get_weights(), strict=True):
        assert param.value.tobytes() == weight.tobytes()


def test_embedding(tmp_path):
    net = FeedForwardNet([ours.Embedding("e", 11, 3, input_sample_shape=(5,))])
    model = keras.Sequential([keras.Input((5,), dtype="int32"), kl.Embedding(11, 3)])
    model.save_weights(tmp_path / "m.weights.h5")
    net.load(tmp_path / "m.weights.h5")
    assert net.param_values()[0].tobytes() == model.get_weights()[0].tobytes()


@pytest.mark.parametrize("grouped", [False, True])
def test_attention(tmp_path, grouped):
    x = keras.Input((6, 4))
    given = {"num_kv_heads": 2, "input_sample_shape": (6, 4)}
    layer = ours.MultiHeadAttention("a", 2, 3, 5, input_sample_shape=(6, 4))
    net = FeedForwardNet(
        [ours.MultiHeadAttention("a", 4, 3, **given) if grouped else layer], seed=3
    )
    theirs = kl.GroupQueryAttention(3, 4, 2) if grouped else kl.MultiHeadAttention(2, 3, 5)
    model = keras.Model(x, theirs(x, x))
    samples = np.random.default_rng(1).standard_normal((2, 6, 4)).astype("f4")
    for name in ("m.weights.h5", "m.h5"):
        net.save(tmp_path / name, format=kind(tmp_path / name))
        model.load_weights(tmp_path / name)
        found = model.predict(samples, verbose=0)
        np.testing.assert_allclose(found, net.forward(False, samples), rtol=1e-4, atol=1e-5)


def test_channels_first_models_keep_the_order_of_rows(tmp_path):
    net = FeedForwardNet(seed=2)
    for layer in (ours.Flatten("f", input_sample_shape=(2, 3, 4)), ours.Dense("d", 5)):
        net.add(layer)
    model = keras.Sequential([keras.Input((2, 3, 4)), kl.Flatten(), kl.Dense(5)])
    net.save(tmp_path / "m.weights.h5", data_format="channels_first")
    model.load_weights(tmp_path / "m.weights.h5")
    assert model.get_weights()[0].tobytes() == net.param_values()[0].tobytes()
    net.load(tmp_path / "m.weights.h5", data_format="channels_first")
    net.save(tmp_path / "last.weights.h5")
    model.load_weights(tmp_path / "last.weights.h5")
    rows = net.param_values()[0].reshape(2, 3, 4, 5).transpose(1, 2, 0, 3).reshape(24, 5)
    np.testing.assert_array_equal(model.get_weights()[0], rows)


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")  # inside Keras' fit
@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5"])
def test_whole_models_and_their_optimizer_give_their_weights(tmp_path, name):
    net, model = build("dense")
    model.compile("adam", "mse")
    model.fit(np.ones((2, 5)), np.ones((2, 4)), verbose=0)
    (model.save if name == "m.h5" else model.save_weights)(tmp_path / name)
    assert net.load(tmp_path / name).complete
    assert net.param_values()[0].tobytes() == model.get_weights()[0].tobytes()


AT, DECAYED = {"lr": 0.01}, {"weight_decay": 0.1}
SMALL = {"learning_rate": 0.01, "epsilon": 1e-8}
OPTIMIZERS = {
    "sgd": (lambda: optimizer.SGD(0.1), lambda: ko.SGD(0.1)),
    "momentum": (lambda: optimizer.SGD(0.1, 0.9), lambda: ko.SGD(0.1, 0.9)),
    "nesterov": (lambda: optimizer.Nesterov(0.1, 0.9), lambda: ko.SGD(0.1, 0.9, nesterov=True)),
    "adamw": (lambda: optimizer.AdamW(**AT, **DECAYED), lambda: ko.AdamW(**SMALL, **DECAYED)),
    "adamw, largest": (lambda: optimizer.AdamW(**AT, **DECAYED, amsgrad=True),
                       lambda: ko.AdamW(**SMALL, **DECAYED, amsgrad=True)),
    "amsgrad": (lambda: optimizer.AMSGrad(**AT), lambda: ko.Adam(**SMALL, amsgrad=True)),
    "lamb": (lambda: optimizer.LAMB(**AT, weight_decay=None),
             lambda: ko.Lamb(0.01, epsilon=1e-6)),
    "lion": (lambda: optimizer.Lion(**AT), lambda: ko.Lion(0.01)),
    "adam": (lambda: optimizer.Adam(**AT), lambda: ko.Adam(**SMALL)),
    "rmsprop": (lambda: optimizer.RMSProp(**AT), lambda: ko.RMSprop(**SMALL)),
    "rmsprop, centered": (lambda: optimizer.RMSProp(**AT, centered=True, momentum=0.5),
                          lambda: ko.RMSprop(**SMALL, momentum=0.5, centered=True)),
    "adamax": (lambda: optimizer.Adamax(**AT), lambda: ko.Adamax(**SMALL)),
    "adadelta": (lambda: optimizer.Adadelta(0.5, 0.95, 1e-7), lambda: ko.Adadelta(0.5)),
    "adagrad": (lambda: optimizer.AdaGrad(**AT), lambda: ko.Adagrad(**SMALL)),
}  # fmt: skip


def recurrent_pair():
    """Both kinds of bias, and running state that no optimizer trains."""
    here = [
        ours.LSTM("l", 3, input_sample_shape=(4, 2)), ours.GRU("g", 3, return_sequences=False),
        ours.BatchNormalization("b"), ours.Dense("d", 2),
    ]  # fmt: skip
    there = [
        keras.Input((4, 2)), kl.LSTM(3, return_sequences=True), kl.GRU(3),
        kl.BatchNormalization(epsilon=1e-5), kl.Dense(2),
    ]  # fmt: skip
    return FeedForwardNet(here, loss=loss.SquaredError(), seed=3), keras.Sequential(there)


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")  # inside Keras' fit
@pytest.mark.parametrize("name", drawn(OPTIMIZERS, 5))
def test_a_training_of_keras_goes_on_here(tmp_path, name):
    """Its state loads here, comes back bit for bit, and is the same after one step more.

    The weights need not be: where Keras has one bias and we have two, their sum moves twice.
    """
    mine, theirs = (make() for make in OPTIMIZERS[name])
    net, model = recurrent_pair()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 4, 2)).astype("f4"), rng.standard_normal((6, 2)).astype("f4")
    # SINGA's loss: half the square.
    model.compile(theirs, loss=lambda t, p: 0.5 * keras.ops.square(t - p))
    for _ in range(3):
        model.train_on_batch(x, y)
    model.save_weights(tmp_path / "a.weights.h5")
    assert net.load(tmp_path / "a.weights.h5", optimizer=mine).complete
    net.save(tmp_path / "b.weights.h5", optimizer=mine)
    with h5py.File(tmp_path / "a.weights.h5") as a, h5py.File(tmp_path / "b.weights.h5") as b:
        assert sorted(a["optimizer/vars"]) == sorted(b["optimizer/vars"])
        for key in a["optimizer/vars"]:
            np.testing.assert_array_equal(a["optimizer/vars"][key], b["optimizer/vars"][key])
    model.load_weights(tmp_path / "b.weights.h5")
    assert int(theirs.iterations) == 3
    before = [np.array(v) for v in theirs.variables]
    model.train_on_batch(x, y)
    net.step(x, y, mine)
    net.save(tmp_path / "c.weights.h5", optimizer=mine)
    after = [np.array(v) for v in theirs.variables]
    model.load_weights(tmp_path / "c.weights.h5")
    assert len(before) == len(after)
    for expected, found in zip(after, theirs.variables, strict=True):
        np.testing.assert_allclose(np.array(found), expected, rtol=2e-3, atol=2e-5)


def test_optimizers_that_do_not_fit(tmp_path):
    net, _ = recurrent_pair()
    path = tmp_path / "m.weights.h5"
    adam = optimizer.Adam(lr=0.1)
    with pytest.raises(ArgumentError, match="an optimizer that has updated every"):
        net.save(path, optimizer=adam)
    with pytest.raises(ArgumentError, match="an optimizer with Keras' state.*Adafactor"):
        net.save(path, optimizer=optimizer.Adafactor(lr=0.1))
    with pytest.raises(ArgumentError, match=r"a \.weights\.h5 of Keras.*'npz'"):
        net.save(tmp_path / "m.npz", optimizer=adam)
    assert list(tmp_path.iterdir()) == []
    net.save(tmp_path / "m.npz")
    with pytest.raises(ArgumentError, match=r"a \.weights\.h5 of Keras.*'npz'"):
        net.load(tmp_path / "m.npz", optimizer=adam)
    net.step(np.ones((2, 4, 2), "f4"), np.ones((2, 2), "f4"), adam)
    net.save(path, optimizer=adam)
    with pytest.raises(FileFormatError, match="the state of RMSProp"):
        net.load(path, optimizer=optimizer.RMSProp(lr=0.1))


@pytest.mark.parametrize(
    "layer",
    [
        ours.MultiHeadAttention("it", 2, norm=ours.QueryKeyNorm()),
        ours.MultiHeadAttention("it", 2, relative=ours.RelativePositions()),
        ours.MultiHeadAttention("it", 2, use_bias=("query",)),
        ours.RMSNorm("it", offset=1.0),
        ours.GatedUnit("it", 3),
    ],
)
def test_layers_that_keras_has_otherwise_are_refused(layer, tmp_path):
    x = ours.Input("x", SEQUENCE)
    net = FeedForwardNet(inputs=x, outputs=layer(x))
    with pytest.raises(ArgumentError, match="layer 'it'.*safetensors, hdf5, npz"):
        net.save(tmp_path / "m.weights.h5")
    assert list(tmp_path.iterdir()) == []


def test_a_layer_named_again_and_again(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_group("fc").attrs["weight_names"] = np.array([b"fc/kernel"] * 50)
        # More than 64 KB of an attribute stand in pieces.
        for piece in range(12):
            file.attrs[f"layer_names{piece}"] = np.array([b"fc"] * 5000)
        file["fc/fc/kernel"] = np.ones((3, 2), "f4")
    net = FeedForwardNet([ours.Dense("fc", 2, use_bias=False, input_sample_shape=(3,))])
    (layer,) = keras_layers(net)
    start = time.process_time()
    with pytest.raises(FileFormatError, match="the layer 'fc' twice"):
        open_state(tmp_path / "m.h5", "keras", layers=[layer])
    assert time.process_time() - start < 2
