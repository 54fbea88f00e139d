"""Small nets of Keras, and their graphs as its PyTorch backend writes them, by name."""

import os
import warnings

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from keras import layers as kl


def _cnn():
    return [
        kl.Input((16, 16, 3)), kl.Conv2D(8, 3, padding="same", activation="relu"),
        kl.MaxPooling2D(), kl.Conv2D(12, 3, strides=2, padding="same"), kl.BatchNormalization(),
        kl.ReLU(), kl.AveragePooling2D(2), kl.Flatten(), kl.Dense(5, activation="softmax"),
    ]  # fmt: skip


def _channels_first():
    first = {"data_format": "channels_first"}
    return [
        kl.Input((3, 16, 16)), kl.Conv2D(8, 3, padding="same", activation="relu", **first),
        kl.MaxPooling2D(**first), kl.BatchNormalization(axis=1), kl.Flatten(), kl.Dense(5),
    ]  # fmt: skip


def _mlp():
    return [
        kl.Input((10,)), kl.Dense(16, activation="gelu"), kl.Dropout(0.3), kl.LayerNormalization(),
        kl.Dense(16, activation="silu"), kl.Dense(16, activation="tanh"), kl.Dense(3),
    ]  # fmt: skip


def _recurrent(kind, both=False):
    first = kind(7, return_sequences=True)
    return [kl.Input((5, 4)), kl.Bidirectional(first) if both else first, kind(4), kl.Dense(3)]


def _char_rnn():
    return [kl.Input((5,), dtype="int32"), kl.Embedding(11, 5), kl.LSTM(7), kl.Dense(3)]


def _attention():
    x = kl.Input((6, 8))
    return x, kl.MultiHeadAttention(2, 4)(x, x)


def _cross():
    x = kl.Input((6, 8))
    return x, kl.MultiHeadAttention(2, 4, value_dim=3)(x, kl.Dense(5)(x), use_causal_mask=True)


def _block():
    x = kl.Input((6, 8))
    y = kl.LayerNormalization()(x)
    a = kl.Add()([x, kl.MultiHeadAttention(2, 4)(y, y)])
    y = kl.Dense(16, activation="gelu")(kl.LayerNormalization()(a))
    y = kl.GlobalAveragePooling1D()(kl.Add()([a, kl.Dense(8)(y)]))
    return x, kl.Dense(3)(y)


def _mobile():
    def normed(y):
        return kl.BatchNormalization()(y)

    x = kl.Input((16, 16, 3))
    y = kl.ReLU(6.0)(normed(kl.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)))
    z = kl.ReLU(6.0)(normed(kl.DepthwiseConv2D(3, padding="same", use_bias=False)(y)))
    y = kl.Add()([y, normed(kl.Conv2D(8, 1, use_bias=False)(z))])
    y = kl.ReLU(6.0)(kl.SeparableConv2D(10, 3, strides=2, padding="same")(y))
    return x, kl.Dense(5)(kl.GlobalAveragePooling2D()(y))


MODELS = {
    "cnn": _cnn, "cnn, channels first": _channels_first, "mlp": _mlp,
    "lstm": lambda: _recurrent(kl.LSTM), "lstm, both ways": lambda: _recurrent(kl.LSTM, both=True),
    "gru": lambda: _recurrent(kl.GRU), "char_rnn": _char_rnn, "attention": _attention,
    "cross attention": _cross, "block": _block, "mobile": _mobile,
}  # fmt: skip
FIXED = ("mlp", "block")
"""Keras' LayerNormalization has a graph of one sample only (of a free batch: "not constant")."""


def made(name):
    """The model with arrays as after a training, and a batch of five for it."""
    keras.utils.set_random_seed(0)
    parts = MODELS[name]()
    model = keras.Sequential(parts) if isinstance(parts, list) else keras.Model(*parts)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "variance" in weight.path:
            weight.assign(rng.uniform(0.5, 2.0, weight.shape))
        elif "seed" not in weight.path and len(weight.shape) == 1:
            weight.assign(weight + 0.2 * rng.standard_normal(weight.shape))
    (given,) = model.inputs
    shape = (5, *given.shape[1:])
    drawn = rng.integers(0, 11, shape) if "int" in given.dtype else rng.standard_normal(shape)
    return model, drawn.astype(given.dtype)


def export(name, path):
    """Write the model to ``path``; a batch for it and what it makes of that."""
    model, x = made(name)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        y = model(x).numpy()
        one = [keras.InputSpec(shape=(1, *x.shape[1:]), dtype=x.dtype.name, name="x")]
        model.export(
            path, format="onnx", verbose=False, input_signature=one if name in FIXED else None
        )
    return x, y
