"""Ready nets in Keras: layer for layer, or as `keras.applications` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

APPLICATIONS = {
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet152",
    "mobilenet": "MobileNet",
    "mobilenet_v2": "MobileNetV2",
    "mobilenet_v3_small": "MobileNetV3Small",
    "mobilenet_v3_large": "MobileNetV3Large",
    "efficientnet_b0": "EfficientNetB0",
    "densenet121": "DenseNet121",
}
"""Whose numbers of parameters differ a little from those of the papers."""

_VGG = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}


def build(model: str, shape: Sequence[int], classes: int) -> Any:
    """The twin for channels-last samples of ``shape``, scores without softmax."""
    import keras

    if model in APPLICATIONS:
        make = getattr(keras.applications, APPLICATIONS[model])
        options = {"weights": None, "input_shape": tuple(shape), "classes": classes}
        return make(classifier_activation=None, **options)
    if model == "wide_deep":
        return _wide_deep(keras, shape, classes)
    kind = "int32" if model == "char_rnn" else "float32"
    given = keras.Input(tuple(shape), dtype=kind)
    return keras.Model(given, _SCORES[model](keras.layers, given, classes))


def _chain(x: Any, *layers: Callable) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def _dense(layers: Any, size: int) -> Any:
    return layers.Dense(size, "relu", kernel_initializer="he_normal")


def _mlp(layers: Any, x: Any, classes: int) -> Any:
    hidden = _dense(layers, 256), _dense(layers, 128)
    return _chain(x, layers.Flatten(), *hidden, layers.Dense(classes))


def _lenet(layers: Any, x: Any, classes: int) -> Any:
    for kernels in (32, 64):
        x = layers.Conv2D(kernels, 5, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = _chain(x, layers.Flatten(), layers.Dropout(0.25), _dense(layers, 256))
    return _chain(x, layers.Dropout(0.5), layers.Dense(classes))


def _conv_bn(layers: Any, x: Any, channels: int, stride: int = 1, ends: bool = True) -> Any:
    options = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}
    x = layers.Conv2D(channels, 3, stride, **options)(x)
    return _chain(x, layers.BatchNormalization(), *[layers.ReLU()] * ends)


def _vgg(depths: Sequence[int], layers: Any, x: Any, classes: int) -> Any:
    for channels, count in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(count):
            x = _conv_bn(layers, x, channels)
        x = layers.MaxPooling2D(2)(x)
    x = _chain(x, layers.Flatten(), layers.Dropout(0.5), layers.Dense(512, use_bias=False))
    x = _chain(x, layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.5))
    return layers.Dense(classes)(x)


def _resnet(depth: int, layers: Any, x: Any, classes: int) -> Any:
    from keras import ops

    x = _conv_bn(layers, x, 16)
    for stage, channels in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 6):
            stride = 2 if stage and not block else 1
            y = _conv_bn(layers, x, channels, stride)
            y = _conv_bn(layers, y, channels, ends=False)
            if stride > 1:
                x = layers.AveragePooling2D(1, 2)(x)
                x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (channels // 4, channels // 4)))
            x = layers.ReLU()(layers.Add()([x, y]))
    return _chain(x, layers.GlobalAveragePooling2D(), layers.Dense(classes))


def _unet(layers: Any, x: Any, classes: int) -> Any:
    before = []
    for channels in (64, 128, 256, 512):
        x = _conv_bn(layers, _conv_bn(layers, x, channels), channels)
        before.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = _conv_bn(layers, _conv_bn(layers, x, 1024), 1024)
    for beside in reversed(before):
        channels = beside.shape[-1]
        x = layers.Conv2DTranspose(channels, 2, 2, kernel_initializer="he_normal")(x)
        x = layers.Concatenate()([beside, x])
        x = _conv_bn(layers, _conv_bn(layers, x, channels), channels)
    return layers.Conv2D(classes, 1)(x)


def _autoencoder(layers: Any, x: Any, classes: int) -> Any:
    size, shape = x.shape[1] * x.shape[2] * x.shape[3], x.shape[1:]
    x = _chain(x, layers.Flatten(), _dense(layers, 128), layers.Dense(16))
    return _chain(x, _dense(layers, 128), layers.Dense(size), layers.Reshape(shape))


def _lstm(layers: Any, x: Any, classes: int) -> Any:
    x = layers.Bidirectional(layers.LSTM(128))(x)
    return _chain(x, layers.Dropout(0.3), layers.Dense(classes))


def _char_rnn(layers: Any, x: Any, classes: int) -> Any:
    x = _chain(x, layers.Embedding(classes, 64), layers.Dropout(0.2))
    x = layers.LSTM(256, return_sequences=True)(x)
    return _chain(x, layers.Dropout(0.2), layers.Dense(classes))


def _wide_deep(keras: Any, shape: Sequence[int], classes: int) -> Any:
    layers, vocabulary = keras.layers, 102
    ids = keras.Input((shape[0],), dtype="int32", name="categorical")
    numeric = keras.Input((shape[1],), name="numeric")
    wide = keras.ops.sum(layers.Embedding(vocabulary, classes)(ids), 1)
    x = layers.Flatten()(layers.Embedding(vocabulary, 8)(ids))
    x = layers.Concatenate()([x, numeric])
    for size in (128, 64):
        x = _chain(x, _dense(layers, size), layers.Dropout(0.2))
    linear = layers.Dense(classes, use_bias=False)(numeric)
    scores = layers.Add()([wide, linear, layers.Dense(classes)(x)])
    return keras.Model({"categorical": ids, "numeric": numeric}, scores)


_SCORES: dict[str, Callable] = {
    "mlp": _mlp,
    "lenet": _lenet,
    "unet": _unet,
    "autoencoder": _autoencoder,
    "lstm": _lstm,
    "char_rnn": _char_rnn,
    **{name: partial(_vgg, depths) for name, depths in _VGG.items()},
    **{f"resnet{depth}": partial(_resnet, depth) for depth in (20, 32, 44, 56, 110)},
}

NAMES = frozenset({*APPLICATIONS, *_SCORES, "wide_deep"})
"""The nets with a twin."""
