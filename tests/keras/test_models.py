"""Whole models of Keras, there and back: every layer of the table, models in models, ready nets."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from singanet.errors import ArgumentError, FileFormatError
from singanet.keras import load_model, save_model
from singanet.loss import MeanSquaredError, SquaredError
from singanet.optimizer import SGD
from tests.keras.listed import listed

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
kl = keras.layers

VOLUME, IMAGE, STEPS, ROW = (5, 6, 4, 2), (9, 8, 4), (8, 6), (6,)


def through(made, x):
    """What a layer, or one after the other, makes of ``x``."""
    for layer in made if isinstance(made, list) else [made]:
        x = layer(x)
    return x


def tower():
    x = keras.Input(ROW)
    y = kl.Dense(6, "tanh", name="one")(x)
    return keras.Model(x, kl.Add()([kl.Dense(6, name="two")(y), x]), name="tower")


def joined():
    """Along every axis of an image, counted from either end."""

    def call(x):
        for axis in (1, 2, 3, -2):
            x = kl.Concatenate(axis)([x, kl.ReLU()(x)])
        return x

    return call


def ours():
    """Statistics that are the layer's own, of its data or of its description."""
    learned = kl.Normalization(axis=-1)
    learned.adapt(np.random.default_rng(0).normal(3, 2, (50, *IMAGE)))
    variance = [0.5, 1.0, 2.0, 0.0]
    return [learned, kl.Normalization(axis=-1, mean=[0.1, 0.2, 0.3, 0.4], variance=variance)]


def functions(x):
    """Statistics, functions of each element, comparisons and joins along the last axis."""
    ops = keras.ops
    centred = x - ops.mean(x, axis=1, keepdims=True)
    scaled = centred / ops.sqrt(ops.var(x, axis=[1, 2], keepdims=True) + 1e-3)
    least = ops.minimum(ops.max(scaled, axis=-1, keepdims=True), ops.exp(-ops.abs(x)))
    chosen = ops.where(x > 0.1, ops.gelu(scaled), 2.0**least)
    first, _ = ops.split(ops.concatenate([chosen, ops.silu(x) ** 2], axis=-1), [3], axis=-1)
    return ops.sum(ops.stack([first, ops.clip(ops.log_softmax(first), -1, 0)], 1), axis=1)


def translated():
    """A decoder that starts with the states of encoders."""

    def call(x):
        _, h, c = kl.LSTM(4, return_state=True)(x)
        _, *ends = kl.Bidirectional(kl.GRU(4, return_state=True))(x)
        y = kl.LSTM(4, return_sequences=True)(x, initial_state=[h, c])
        y, *_ = kl.Bidirectional(kl.GRU(4, return_sequences=True, return_state=True))(
            y, initial_state=ends
        )
        return kl.Concatenate()([y, kl.RepeatVector(8)(c)])

    return call


CALLS = {
    "Conv1D": (STEPS, lambda: kl.Conv1D(5, 3, 2, "same", activation="relu")),
    "Conv1D in turn": (STEPS, lambda: [kl.Conv1D(6, 3, groups=2, activation="softmax"),
                                       kl.Conv1D(4, 2, padding="same", dilation_rate=2)]),
    "an odd number of steps": ((7, 6), lambda: kl.Conv1D(5, 3, 2, "same")),
    "causal": (STEPS, lambda: kl.Conv1D(5, 3, padding="causal", dilation_rate=2)),
    "DepthwiseConv1D": (STEPS, lambda: kl.DepthwiseConv1D(3, 2, "same", 2)),
    "SeparableConv1D": (STEPS, lambda: kl.SeparableConv1D(5, 3, padding="same", activation="relu")),
    "SeparableConv1D without bias": (STEPS, lambda: kl.SeparableConv1D(
        5, 3, 2, depth_multiplier=2, use_bias=False)),
    "Conv1DTranspose": (STEPS, lambda: [kl.Conv1DTranspose(5, 3, 2, "same"),
                                        kl.Conv1DTranspose(4, 5, 1, "same")]),
    "pooling of steps": (STEPS, lambda: [kl.MaxPooling1D(3, 2, "same"), kl.AveragePooling1D(2)]),
    "adaptive pooling of steps": (STEPS, lambda: [kl.AdaptiveMaxPooling1D(5),
                                                  kl.AdaptiveAveragePooling1D(3)]),
    "adaptive pooling": (IMAGE, lambda: [
        kl.AdaptiveMaxPooling2D(5), kl.AdaptiveAveragePooling2D((2, 3)), kl.Flatten(),
        kl.Dense(3)]),
    "mean of steps": (STEPS, lambda: kl.GlobalAveragePooling1D(keepdims=True)),
    "largest of steps": (STEPS, lambda: kl.GlobalMaxPooling1D()),
    "borders of steps": (STEPS, lambda: [kl.ZeroPadding1D((1, 3)), kl.Cropping1D((2, 1))]),
    "Dense of steps": (STEPS, lambda: kl.Dense(3, "softmax")),
    "TimeDistributed": (STEPS, lambda: kl.TimeDistributed(kl.Dense(3, "relu"))),
    "TimeDistributed norm": (STEPS, lambda: kl.TimeDistributed(kl.LayerNormalization())),
    "normalised steps": (STEPS, lambda: [kl.BatchNormalization(scale=False),
                                         kl.GroupNormalization(3)]),
    "MultiHeadAttention": (STEPS, lambda: lambda x: kl.MultiHeadAttention(
        2, 3, value_dim=4, dropout=0.1)(x, x)),
    "causal attention": (STEPS, lambda: lambda x: kl.MultiHeadAttention(2, 3, use_bias=False)(
        x, kl.Dense(5)(x), use_causal_mask=True)),
    "LSTM": (STEPS, lambda: kl.LSTM(3, return_sequences=True)),
    "GRU": (STEPS, lambda: kl.GRU(3, return_sequences=True)),
    "SimpleRNN": (STEPS, lambda: kl.SimpleRNN(3, return_sequences=True)),
    "both ways": (STEPS, lambda: kl.Bidirectional(kl.LSTM(3, return_sequences=True))),
    "both ways, GRU": (STEPS, lambda: kl.Bidirectional(kl.GRU(3, return_sequences=True))),
    "Conv2D in groups": (IMAGE, lambda: kl.Conv2D(
        6, (3, 2), padding="same", groups=2, use_bias=False)),
    "DepthwiseConv2D": (IMAGE, lambda: kl.DepthwiseConv2D(3, depth_multiplier=2)),
    "GRU without bias": (STEPS, lambda: kl.GRU(4, use_bias=False, go_backwards=True)),
    "GRU, reset before": (STEPS, lambda: [
        kl.GRU(4, reset_after=False, return_sequences=True),
        kl.Bidirectional(kl.GRU(3, reset_after=False, use_bias=False))]),
    "PReLU of steps": (STEPS, lambda: kl.PReLU("ones", shared_axes=[1])),
    "Reshape": (IMAGE, lambda: [kl.Reshape((8, 36)), kl.Reshape((4, 6, 12))]),
    "Permute": (IMAGE, lambda: [kl.Permute((3, 1, 2)), kl.Flatten()]),
    "Permute of steps": (STEPS, lambda: [kl.Permute((2, 1)), kl.Dense(2)]),
    "Concatenate": (IMAGE, joined),
    "Rescaling": (IMAGE, lambda: [kl.Rescaling(0.1), kl.Rescaling([1, 2, 3, 4], 0.5)]),
    "Normalization": (IMAGE, ours),
    "PReLU": (IMAGE, lambda: kl.PReLU("ones", shared_axes=[1, 2])),
    "GroupNormalization": (IMAGE, lambda: kl.GroupNormalization(2)),
    "InstanceNormalization": (IMAGE, lambda: kl.GroupNormalization(-1, center=False)),
    "ReLU": (IMAGE, lambda: kl.ReLU(0.7, negative_slope=0.1)),
    "SeparableConv2D": (IMAGE, lambda: kl.SeparableConv2D(6, 3, (2, 2), "same", activation="relu")),
    "separable without bias": (IMAGE, lambda: kl.SeparableConv2D(
        6, (3, 2), depth_multiplier=2, use_bias=False)),
    "transposed, same": (IMAGE, lambda: kl.Conv2DTranspose(5, (4, 3), 2, "same")),
    "transposed, dilated": (IMAGE, lambda: kl.Conv2DTranspose(2, 3, dilation_rate=2)),
    "transposed, more behind": (IMAGE, lambda: kl.Conv2DTranspose(
        2, 4, 3, "same", output_padding=2)),
    "transposed, valid": (IMAGE, lambda: kl.Conv2DTranspose(5, (2, 5), 3, activation="relu")),
    "BatchNormalization": (IMAGE, lambda: [kl.BatchNormalization(scale=False),
                                           kl.BatchNormalization(center=False)]),
    "LayerNormalization": (STEPS, lambda: kl.LayerNormalization(scale=False)),
    "a gate": (IMAGE, lambda: lambda x: kl.Multiply()([
        x, kl.Conv2D(4, 1, activation="sigmoid")(kl.GlobalAveragePooling2D(keepdims=True)(x))])),
    "Conv3D": (VOLUME, lambda: [
        kl.Conv3D(4, (3, 2, 2), 2, "same", groups=2, activation="relu"), kl.Flatten(),
        kl.Dense(3)]),
    "Conv3DTranspose": (VOLUME, lambda: kl.Conv3DTranspose(
        3, 3, 2, "same", output_padding=1, activation="softmax")),
    "pooling of volumes": (VOLUME, lambda: [
        kl.MaxPooling3D(2, 1, "same"), kl.AveragePooling3D(2, 2, "same"),
        kl.AdaptiveAveragePooling3D(2), kl.GlobalMaxPooling3D(keepdims=True),
        kl.GlobalAveragePooling3D()]),
    "borders of volumes": (VOLUME, lambda: [
        kl.ZeroPadding3D((1, 2, 0)), kl.Cropping3D(((1, 0), (0, 2), (1, 1))),
        kl.SpatialDropout3D(0.3), kl.BatchNormalization()]),
    "volumes of another shape": (VOLUME, lambda: [
        kl.Permute((4, 1, 3, 2)), kl.Reshape((3, 2, 4, 10)), kl.Reshape((12, 20))]),
    "EinsumDense": (STEPS, lambda: [
        kl.EinsumDense("abc,cde->abde", (8, 2, 3), bias_axes="de", activation="relu"),
        kl.EinsumDense("abde,def->abf", (8, 5), bias_axes="f"),
        kl.EinsumDense("...c,cd->...d", 6, bias_axes=None, activation="softmax")]),
    "EinsumDense of images": (IMAGE, lambda: [
        kl.EinsumDense("abcd,be->aecd", (3, 8, 4), bias_axes="ed"),
        kl.EinsumDense("ab...,bc->ac...", 5, bias_axes="c")]),
    "Dot": (STEPS, lambda: lambda x: kl.Dot((1, 2), normalize=True)([x, kl.Permute((2, 1))(x)])),
    "Dot of images": (IMAGE, lambda: lambda x: kl.Dot((3, 1))([
        x, kl.Dense(3)(kl.Reshape((4, 72))(x))])),
    "Dot of rows": (ROW, lambda: lambda x: kl.Dot(1)([x, kl.Dense(6)(x)])),
    "UnitNormalization": (IMAGE, lambda: [
        kl.UnitNormalization(), kl.UnitNormalization(axis=[1, 3])]),
    "UnitNormalization of steps": (STEPS, lambda: kl.UnitNormalization(axis=1)),
    "both ways, added": (STEPS, lambda: [
        kl.Bidirectional(kl.LSTM(3, return_sequences=True), merge_mode="sum"),
        kl.Bidirectional(kl.GRU(3, return_sequences=True), merge_mode="ave"),
        kl.Bidirectional(kl.SimpleRNN(3), merge_mode="mul")]),
    "both ways, apart": (STEPS, lambda: lambda x: kl.Subtract()(
        kl.Bidirectional(kl.LSTM(3), merge_mode=None)(x))),
    "states": (STEPS, translated),
    "cells": (STEPS, lambda: [kl.RNN(kl.LSTMCell(3), return_sequences=True),
                              kl.RNN(kl.GRUCell(2))]),
    "TimeDistributed images": (VOLUME, lambda: [
        kl.TimeDistributed(kl.Conv2D(3, 2, activation="relu")),
        kl.TimeDistributed(kl.Flatten()), kl.LSTM(2)]),
    "TimeDistributed steps": (IMAGE, lambda: [
        kl.TimeDistributed(kl.Dense(3, "softmax")), kl.TimeDistributed(kl.Flatten())]),
    "Dense of images": (IMAGE, lambda: [kl.Dense(3, "softmax"), kl.Dense(2, use_bias=False)]),
    "means of windows of two": (IMAGE, lambda: [
        kl.AveragePooling2D(2, padding="same"), kl.AveragePooling2D((2, 3), (1, 1), "valid")]),
    "norms of rows of images": (IMAGE, lambda: [
        kl.BatchNormalization(axis=1), kl.GroupNormalization(4, axis=2)]),
    "norms of images": (IMAGE, lambda: [
        kl.LayerNormalization(), kl.LayerNormalization(axis=[1, 2, 3]),
        kl.RMSNormalization(axis=[-2, -1])]),
    "norms of steps": (STEPS, lambda: [
        kl.BatchNormalization(axis=1), kl.LayerNormalization(axis=[1, 2]),
        kl.Normalization(axis=1, mean=range(8), variance=range(1, 9))]),
    "Resizing": (IMAGE, lambda: [
        kl.Resizing(12, 5), kl.Resizing(7, 8, "nearest"), kl.Resizing(4, 5, antialias=True)]),
    "Resizing to a ratio": (IMAGE, lambda: [
        kl.Resizing(6, 6, crop_to_aspect_ratio=True),
        kl.Resizing(4, 12, pad_to_aspect_ratio=True, fill_value=0.5)]),
    "CenterCrop": (IMAGE, lambda: [kl.CenterCrop(6, 5), kl.CenterCrop(8, 4)]),
    "repeated": (VOLUME, lambda: [kl.UpSampling3D((1, 2, 3)), kl.Reshape((10, 144)),
                                  kl.UpSampling1D(2)]),
    "bilinear": (IMAGE, lambda: kl.UpSampling2D((2, 3), interpolation="bilinear")),
    "depth dropped": (IMAGE, lambda: kl.Dropout(0.3, noise_shape=(None, 1, 1, 1))),
    "numbers": (ROW, lambda: lambda x: (2 - x * 3) / 4 + kl.Dense(6)(x) * x - (x - 1)),
    "functions": (STEPS, lambda: functions),
    "categories": (ROW, lambda: lambda x: kl.Concatenate()([
        kl.Flatten()(kl.Discretization([-0.5, 0.0, 0.4], output_mode="one_hot")(x)),
        kl.Discretization([-0.2, 0.3], output_mode="count")(x),
        *(kl.CategoryEncoding(4, mode)(kl.Discretization([-0.5, 0.0, 0.4])(x))
          for mode in ("multi_hot", "count"))])),
    "functions of images": (IMAGE, lambda: functions),
    "Attention": (STEPS, lambda: lambda x: kl.Attention(use_scale=True, dropout=0.2)([
        x, kl.Attention(score_mode="concat")([x, kl.Dense(6)(x)])])),
    "AdditiveAttention": (STEPS, lambda: lambda x: kl.AdditiveAttention()([x, kl.Dense(6)(x), x])),
    "attention by hand": (STEPS, lambda: lambda x: keras.ops.matmul(
        keras.ops.softmax(x @ keras.ops.transpose(kl.Dense(6)(x), (0, 2, 1)) / 6**0.5, axis=-1),
        x)),
    "shapes": (IMAGE, lambda: lambda x: keras.ops.squeeze(keras.ops.expand_dims(
        keras.ops.einsum("bhwc,bkwc->bhk", x, keras.ops.reshape(x, (-1, 9, 8, 4))), 2), 2)),
    "parts": (STEPS, lambda: lambda x: x[:, 1:5:2, :3] + x[:, 4:6, -1:]),
    "a layer twice": (ROW, lambda: [kl.Dense(6, "tanh")] * 2),
    "a model twice": (ROW, lambda: [tower()] * 2),
    "a model of models": (ROW, lambda: keras.Sequential(
        [kl.Dense(6), tower(), keras.Sequential([kl.Dense(3)], name="q")])),
}  # fmt: skip


def drawn(model, seed=3, most=9):
    """The model with its arrays of up to ``most`` axes drawn anew."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if np.dtype(variable.dtype).kind == "f" and len(variable.shape) <= most:
            low = 0.5 if "var" in variable.path or "gamma" in variable.path else -0.5
            variable.assign(rng.uniform(low, low + 1, variable.shape))
    return model


def there(shape, seed=0, count=3):
    x = np.random.default_rng(seed).uniform(-1, 1, (count, *shape)).astype("f4")
    return x, np.moveaxis(x, -1, 1) if len(shape) >= 3 else x


def same(ours, theirs, rtol=1e-5):
    if theirs.ndim >= 4:
        theirs = np.moveaxis(theirs, -1, 1)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())


def some_words():
    """Indices, of which zeros are no words."""
    x = np.random.default_rng(0).integers(1, 9, (4, 6))
    x[1:, 4:] = x[2:, 3] = x[3, 1] = 0
    return x


def expect_as_there(model, path, x):
    """Check that the net of the model's archive makes of ``x`` what Keras does."""
    model.save(path)
    same(load_model(path).forward(False, x), model.predict(x, verbose=0))


# What files of weights alone have no form for, or another number of arrays.
WHOLE_ALONE = ("TimeDistributed", "TimeDistributed norm", "Normalization", "a model twice",
               "a model of models", "norms of rows of images", "norms of images",
               "norms of steps", "states", "cells", "Attention", "AdditiveAttention",
               "TimeDistributed images",
               "TimeDistributed steps", "EinsumDense", "EinsumDense of images")  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_layer_there_and_back(name, tmp_path):
    shape, make = CALLS[name]
    x = keras.Input(shape)
    model = drawn(keras.Model(x, through(make(), x)))
    there_and_back(model, shape, tmp_path)
    if model.weights and name not in WHOLE_ALONE:
        weights_there_and_back(model, tmp_path)


def weights_there_and_back(model, folder):
    """Files of weights, Keras' legacy ones too: they come here and go back bit for bit."""
    legacy = pytest.importorskip("keras.src.legacy.saving.legacy_h5_format")
    net, before = load_model(folder / "m.keras"), model.get_weights()
    wanted = [value.copy() for value in net.param_values()]
    model.save_weights(folder / "w.weights.h5")
    with h5py.File(folder / "w.h5", "w") as file:
        legacy.save_weights_to_hdf5_group(file, model)
    for name, format in (("w.weights.h5", None), ("w.h5", "keras-legacy")):
        for param in net.params():
            param.value[...] = 0
        assert net.load(folder / name).complete
        for value, old in zip(net.param_values(), wanted, strict=True):
            np.testing.assert_array_equal(value, old)
        net.save(folder / f"again-{name}", format=format)
        model.set_weights([np.zeros_like(weight) for weight in before])
        model.load_weights(folder / f"again-{name}")
        for old, new in zip(before, model.get_weights(), strict=True):
            assert old.tobytes() == new.tobytes()


def there_and_back(model, shape, folder, count=3, last=0):
    """Compare outputs of the model's archive, and of one with other (``last``) parameters."""
    model.save(folder / "m.keras")
    net = load_model(folder / "m.keras")
    x, ours = there(shape, count=count)
    same(net.forward(False, ours), model.predict(x, verbose=0))
    for param in net.params()[-last:]:
        if param.trainable and not param.is_state:
            param.put(param.peek() * 1.25 + 0.01)
    save_model(net, folder / "back.keras", like=folder / "m.keras")
    back = keras.models.load_model(folder / "back.keras")
    same(net.forward(False, ours), back.predict(x, verbose=0))


def words(*layers):
    """Indices, of which 0 is no word, through ``layers``."""
    return keras.Sequential(
        [keras.Input((6,), dtype="int32"), kl.Embedding(9, 4, mask_zero=True), *layers]
    )


def attended():
    x = keras.Input((6,), dtype="int32")
    y = kl.Embedding(9, 4, mask_zero=True)(x)
    y = kl.LayerNormalization()(kl.Add()([y, kl.MultiHeadAttention(2, 3)(y, y)]))
    return keras.Model(x, kl.GlobalAveragePooling1D()(kl.TimeDistributed(kl.Dense(3))(y)))


def called():
    """Masks that the description has as operations."""
    x, f = keras.Input((6,), dtype="int32", name="x"), keras.Input((6, 4), name="f")
    y = kl.LSTM(4, return_sequences=True)(kl.Embedding(9, 4, mask_zero=True)(x))
    z = kl.Masking(0.0)(f)
    return keras.Model([x, f], kl.Add()([kl.GRU(3)(kl.Dense(5)(y)), kl.GRU(3)(z)]))


def states_of_masked():
    """Of a layer that is called with states, Keras passes the mask on and does not use it."""
    x = keras.Input((6,), dtype="int32")
    y = kl.Embedding(9, 4, mask_zero=True)(x)
    _, h, c = kl.LSTM(3, return_state=True)(y)
    z = kl.LSTM(3, return_sequences=True)(y, initial_state=[h, c])
    return keras.Model(x, kl.Add()([kl.GRU(3)(z), kl.GRU(3)(y, initial_state=h)]))


MASKED = {
    "states": states_of_masked,
    "both ways, added": lambda: words(
        kl.Bidirectional(kl.LSTM(3, return_sequences=True), merge_mode="sum"), kl.GRU(2)),
    "a cell": lambda: words(kl.RNN(kl.GRUCell(3), return_sequences=True), kl.GRU(2)),
    "mean": lambda: words(kl.GlobalAveragePooling1D()),
    "largest, of all": lambda: words(kl.Dense(3), kl.GlobalMaxPooling1D()),
    "convolution, of all": lambda: words(kl.Conv1D(3, 2), kl.LSTM(2)),
    "attention": attended,
    "tags": lambda: words(kl.Dense(3, "softmax"), kl.Bidirectional(kl.GRU(2))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
@pytest.mark.parametrize("name", MASKED)
def test_masks_are_read_and_dropped_as_in_keras(name, tmp_path):
    model = drawn(MASKED[name]())
    expect_as_there(model, tmp_path / "m.keras", some_words())


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_masks_that_are_called(tmp_path):
    model = drawn(called())
    model.save(tmp_path / "m.keras")
    rng = np.random.default_rng(0)
    x, f = rng.integers(1, 9, (4, 6)), rng.normal(size=(4, 6, 4)).astype("f4")
    x[1:, 4:], f[2:, 3:] = 0, 0
    net = load_model(tmp_path / "m.keras")
    want = model.predict([x, f], verbose=0)
    same(net.forward(False, {"x": x, "f": f}), want)

    y = kl.Embedding(9, 4, mask_zero=True)(x := keras.Input((6,), dtype="int32"))
    keras.Model(x, kl.GRU(2)(y, mask=keras.ops.not_equal(x, 3))).save(tmp_path / "m.keras")
    with pytest.raises(FileFormatError, match="the mask of its input"):
        load_model(tmp_path / "m.keras")


ANY = {
    "words": lambda: [kl.Embedding(9, 4), kl.Bidirectional(kl.LSTM(3)), kl.Dense(2)],
    "convolutions": lambda: [
        kl.Embedding(9, 4), kl.Conv1D(3, 3, padding="same"),
        kl.SeparableConv1D(3, 2, padding="same"), kl.LayerNormalization(),
        kl.GlobalAveragePooling1D()],
    "states": lambda: [kl.Embedding(9, 6), translated_any, kl.TimeDistributed(kl.Dense(2))],
    "attention": lambda: [kl.Embedding(9, 4), lambda x: kl.MultiHeadAttention(2, 3)(x, x)],
}  # fmt: skip


def translated_any(x):
    _, h, c = kl.LSTM(4, return_state=True)(x)
    return kl.LSTM(4, return_sequences=True)(x, initial_state=[h, c])


@pytest.mark.parametrize("name", ANY)
def test_steps_of_any_number(name, tmp_path):
    x = keras.Input((None,), dtype="int32")
    model = drawn(keras.Model(x, through(ANY[name](), x)))
    model.save(tmp_path / "m.keras")
    net, words = load_model(tmp_path / "m.keras"), some_words()
    for steps in (6, 3):
        same(net.forward(False, words[:, :steps]), model.predict(words[:, :steps], verbose=0))


def test_masks_of_outputs_are_outputs(tmp_path):
    model = drawn(words(kl.Dense(3), kl.Dense(2)))
    model.save(tmp_path / "m.keras")
    x = some_words()
    net = load_model(tmp_path / "m.keras")
    found = net.forward(False, x)
    y, mask = (found[name] for name, _ in net.ports().outputs)
    np.testing.assert_array_equal(mask, x != 0)
    same(y, model.predict(x, verbose=0))


def test_random_changes_of_images_are_named_and_left_out(tmp_path):
    changes = [kl.RandomFlip(), kl.RandomRotation(0.2), kl.RandomContrast((0.1, 0.2))]
    model = keras.Sequential([keras.Input(IMAGE), *changes, kl.Conv2D(2, 3)])
    model.save(tmp_path / "m.keras")
    x, ours = there(IMAGE)
    with pytest.warns(RuntimeWarning, match="random_flip.*random_contrast.*loader"):
        net = load_model(tmp_path / "m.keras")
    same(net.forward(False, ours), model.predict(x, verbose=0))


def test_what_was_compiled_stays_behind(tmp_path):
    model = keras.Sequential([keras.Input(ROW), kl.Dense(4), kl.Dropout(0.5), kl.Dense(2)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 6)), np.ones((4, 2)), verbose=0)
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    net.compile(SGD(lr=0.1), SquaredError())
    x, _ = there(ROW)
    net.fit(x, np.ones((3, 2), np.float32), epochs=2, verbose=False)
    save_model(net, tmp_path / "back.keras", like=tmp_path / "m.keras")
    back = keras.models.load_model(tmp_path / "back.keras")
    same(net.predict(x), back.predict(x, verbose=0))
    net.params()[0].put(net.params()[0].peek() + 1)
    other = keras.Sequential([keras.Input(ROW), kl.Dense(4)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(ArgumentError, match="4 other parameters"):
        save_model(net, tmp_path / "back.keras", like=tmp_path / "other.keras")
    assert keras.models.load_model(tmp_path / "back.keras").count_params() == model.count_params()


@pytest.mark.parametrize(
    ("shape", "make", "message"),
    [
        (IMAGE, lambda: kl.PReLU(), "one slope a channel"),
        (STEPS, lambda: kl.EinsumDense("abc,bcd->abd", (8, 3)), "each letter once"),
        (STEPS, lambda: kl.RNN(kl.StackedRNNCells([kl.LSTMCell(3)])), "a cell of LSTM"),
        (STEPS, lambda: lambda x: keras.ops.sort(x), "classes among"),
        (STEPS, lambda: lambda x: x - keras.ops.mean(x, 0, keepdims=True), "within samples"),
        (STEPS, lambda: lambda x: keras.ops.matmul(x, np.ones((6, 2), "f4")), "outputs of layers"),
        (IMAGE, lambda: lambda x: x[:, 1], "slices of vectors or sequences"),
        (IMAGE, lambda: kl.AveragePooling2D((2, 3), 2, "same"), "padding='valid'"),
        (STEPS, lambda: kl.RMSNormalization(axis=1), "the last axes"),
        (IMAGE, lambda: kl.Resizing(3, 3, "bicubic"), "interpolation='bilinear'"),
        ((None, 5), lambda: kl.Conv1D(3, 3, 2, "same"), "a known number of steps"),
        ((None, 5), lambda: kl.UpSampling1D(2), "m.keras', layer 'up_sampling1d"),
        ((None, 8, 3), lambda: kl.Conv2D(3, 3), "all axes but the steps"),
        (STEPS, lambda: kl.LSTM(3, bias_regularizer="l1"), "an L2 bias_regularizer"),
        (STEPS, lambda: kl.GRU(3, bias_constraint="max_norm"), "bias_constraint"),
        (STEPS, lambda: kl.LSTM(3, kernel_constraint="non_neg"), "kernel_constraint"),
        (STEPS, lambda: kl.Bidirectional(kl.LSTM(3), backward_layer=kl.LSTM(
            3, kernel_regularizer="l2", go_backwards=True)), "different layers"),
    ],
)  # fmt: skip
def test_refused_by_name(shape, make, message, tmp_path):
    x = keras.Input(shape)
    keras.Model(x, make()(x)).save(tmp_path / "m.keras")
    with pytest.raises(FileFormatError, match=message):
        load_model(tmp_path / "m.keras")


def test_the_guide_lists_the_classes():
    guide = Path(__file__).parents[2] / "docs" / "migration" / "keras.md"
    assert listed() in guide.read_text("utf-8"), listed()


# Building them in Keras takes the time.
READY = {
    "MobileNet": 64, "MobileNetV2": 64, "MobileNetV3Small": 64, "MobileNetV3Large": 64,
    "EfficientNetB0": 64, "Xception": 96, "InceptionV3": 96, "DenseNet121": 64, "ResNet50": 64,
    "ResNet50V2": 64, "VGG16": 64,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", READY)
def test_ready_models(name, tmp_path):
    size = READY[name]
    given = {"input_shape": (size, size, 3), "classes": 7, "classifier_activation": None}
    model = drawn(getattr(keras.applications, name)(weights=None, **given), most=1)
    there_and_back(model, (size, size, 3), tmp_path, 2, 8)


def masked_and_not(merge, reader):
    """Embedded words that have a mask, and positions that have none, merged and read."""
    x = keras.Input((6,), dtype="int32")
    words = kl.Embedding(9, 4, mask_zero=True)(x)
    places = kl.Dense(4)(kl.Embedding(9, 4)(x))
    return keras.Model(x, reader(merge([words, places])))


MERGES = ("Add", "Subtract", "Average")
READERS = {
    "pooled": lambda y: kl.GlobalAveragePooling1D()(y),
    "lstm": lambda y: kl.LSTM(3)(y),
    "gru": lambda y: kl.GRU(3)(y),
    "attention": lambda y: kl.Flatten()(kl.MultiHeadAttention(2, 3)(y, y)),
}


FEW = [*((merge, "pooled") for merge in MERGES), *(("Add", reader) for reader in [*READERS][1:])]
MORE = [(merge, reader) for merge in MERGES[1:] for reader in [*READERS][1:]]


@pytest.mark.parametrize(
    ("merge", "reader"), [*FEW, *(pytest.param(*each, marks=pytest.mark.full) for each in MORE)]
)
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_a_merge_with_what_has_no_mask_has_none(merge, reader, tmp_path):
    model = drawn(masked_and_not(getattr(kl, merge)(), READERS[reader]))
    expect_as_there(model, tmp_path / "m.keras", some_words())


@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
@pytest.mark.parametrize("merge", ["Multiply", "Maximum", "Minimum"])
def test_merges_that_look_at_masks_need_all_of_them(merge, tmp_path):
    keras_merge = getattr(kl, merge)
    drawn(masked_and_not(keras_merge(), READERS["pooled"])).save(tmp_path / "m.keras")
    with pytest.raises(FileFormatError, match="masks of all"):
        load_model(tmp_path / "m.keras")
    x = keras.Input((6,), dtype="int32")
    e = kl.Embedding(9, 4, mask_zero=True)(x)
    model = drawn(keras.Model(x, kl.GlobalAveragePooling1D()(keras_merge()([e, kl.Dense(4)(e)]))))
    expect_as_there(model, tmp_path / "m.keras", some_words())
    keras.Model(x, kl.Flatten()(keras_merge()([e, kl.Dense(4)(e)]))).save(tmp_path / "m.keras")
    with pytest.raises(FileFormatError, match="use the mask"):
        load_model(tmp_path / "m.keras")


def after_attention(how):
    """Attention of queries that have a mask, and what reads its outcome."""
    x = keras.Input((6,), dtype="int32")
    e = kl.Embedding(9, 4, mask_zero=True)(x)
    return keras.Model(x, how(e, kl.MultiHeadAttention(2, 3)(e, e)))


@pytest.mark.parametrize(
    ("how", "is_taken"),
    [
        (lambda e, a: kl.GlobalAveragePooling1D()(a), True),
        (lambda e, a: kl.GlobalAveragePooling1D()(kl.Add()([e, a])), True),
        (lambda e, a: kl.LSTM(3)(kl.LayerNormalization()(kl.Add()([e, kl.Dense(4)(a)]))), True),
        (lambda e, a: kl.GlobalAveragePooling1D()(e + a), False),
        (lambda e, a: kl.Flatten()(a), False),
        (lambda e, a: kl.Flatten()(kl.Dense(3)(a)), False),
        (lambda e, a: kl.GlobalMaxPooling1D()(kl.Add()([e, a])), False),
        (lambda e, a: a, False),
    ],
)
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_what_reads_masked_queries_goes_by_the_mask_or_is_refused(how, is_taken, tmp_path):
    model = drawn(after_attention(how))
    model.save(tmp_path / "m.keras")
    if not is_taken:
        with pytest.raises(FileFormatError, match="mask"):
            load_model(tmp_path / "m.keras")
        return
    expect_as_there(model, tmp_path / "m.keras", some_words())


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 5), (6,)])
@pytest.mark.parametrize("form", ["channels_first", "channels_last"])
@pytest.mark.parametrize("dense", [True, False])
def test_flatten_puts_channels_last_whatever_comes_behind_it(shape, form, dense, tmp_path):
    x, path = keras.Input(shape), tmp_path / "m.keras"
    y = kl.Flatten(data_format=form)(x)
    model = drawn(keras.Model(x, kl.Dense(3)(y) if dense else y))
    model.save(path)
    given = np.random.default_rng(0).normal(size=(2, *shape)).astype("f4")
    images = len(shape) == 3 and form == "channels_last"
    ours = given.transpose(0, 3, 1, 2) if images else given
    same(load_model(path).forward(False, ours), model.predict(given, verbose=0))
    if len(shape) == 2:
        keras.Model(x, kl.ZeroPadding1D((1, 3), data_format="channels_first")(x)).save(path)
        wanted = np.pad(given, [(0, 0)] * 2 + [(1, 3)])
        same(load_model(path).forward(False, given), wanted)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("ways", [1, 2])
def test_rules_of_recurrent_layers_come_along(kind, ways, tmp_path):
    """A step of SGD equals Keras'; a bias that is the sum of two here moves twice as far."""
    rules = {
        "kernel_regularizer": keras.regularizers.L2(0.3),
        "recurrent_regularizer": keras.regularizers.L1(0.2),
        "bias_regularizer": keras.regularizers.L2(0.1),
        "kernel_constraint": keras.constraints.MaxNorm(0.5),
    }
    layer = getattr(kl, kind)(3, bias_initializer="glorot_uniform", **rules)
    x = keras.Input(STEPS)
    model = keras.Model(x, (kl.Bidirectional(layer) if ways == 2 else layer)(x))
    model.save(tmp_path / "m.keras")
    net = load_model(tmp_path / "m.keras")
    rng = np.random.default_rng(0)
    given, y = rng.normal(size=(4, *STEPS)).astype("f4"), rng.normal(size=(4, 3 * ways))
    before, ours = model.get_weights(), keras.models.clone_model(model)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(given, y.astype("f4"))
    net.compile(SGD(0.1), MeanSquaredError())
    net.train_on_batch(given, y.astype("f4"))
    net.save(tmp_path / "ours.weights.h5")
    wanted = model.get_weights()
    ours.load_weights(tmp_path / "ours.weights.h5")
    for start, want, got in zip(before, wanted, ours.get_weights(), strict=True):
        twice = want.ndim == 1 and kind != "GRU"
        np.testing.assert_allclose(got - start, (want - start) * (1 + twice), atol=1e-5)
