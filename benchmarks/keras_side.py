"""One side of `keras_vs_singanet.py`: a process that trains a net, an epoch a line that it reads.

Arguments: side ("singanet:" and its kernels, or Keras' backend with ":" and the data format), net,
samples, batch. It answers with the number of parameters after its first step, with seconds after
each epoch, and at the end with the peak of its resident memory in bytes.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

RATE, MOMENTUM, CLASSES = 0.01, 0.9, 10


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of MNIST's shape (N, 1, 28, 28), and classes; values do not change the time."""
    rng = np.random.default_rng(0)
    x = rng.random((samples, 1, 28, 28), np.float32)
    return x, rng.integers(0, CLASSES, samples).astype(np.int32)


def ours(name: str) -> tuple[Callable, Callable, int]:
    """First step, epoch, and number of parameters of singanet's ready net."""
    import singanet

    net = singanet.models.build(name, (1, 28, 28), CLASSES, 0)
    net.compile(singanet.optimizer.SGD(lr=RATE, momentum=MOMENTUM))
    parameters = sum(value.size for value in net.param_values())
    return net.train_on_batch, lambda x, y, b: net.fit(x, y, b, verbose=False), parameters


def theirs(name: str, side: str) -> tuple[Callable, Callable, int]:
    """The same of its twin in Keras."""
    os.environ["KERAS_BACKEND"], form = side.split(":")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    keras.config.set_image_data_format(form)
    keras.utils.set_random_seed(0)
    shape = (1, 28, 28) if form == "channels_first" else (28, 28, 1)
    net = keras.Sequential([keras.Input(shape), *_layers(keras.layers, name)])
    net.compile(
        keras.optimizers.SGD(RATE, MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def placed(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, *shape)  # one channel: both orders are the same bytes

    return (
        lambda x, y: net.train_on_batch(placed(x), y),
        lambda x, y, b: net.fit(placed(x), y, b, epochs=1, verbose=0),
        net.count_params(),
    )


def _layers(layers: object, name: str) -> list:
    def dense(size: int, activation: str | None = "relu") -> object:
        return layers.Dense(size, activation, kernel_initializer="he_normal")

    if name == "mlp":
        return [layers.Flatten(), dense(256), dense(128), dense(CLASSES, None)]
    found: list = []
    for kernels in (32, 64):
        found += [
            layers.Conv2D(kernels, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
        ]
    found += [layers.Flatten(), layers.Dropout(0.25), dense(256), layers.Dropout(0.5)]
    return [*found, dense(CLASSES, None)]


def main() -> None:
    """Train as often as a line comes."""
    side, name, samples, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    first, epoch, parameters = ours(name) if side.startswith("singanet") else theirs(name, side)
    x, y = data(samples)
    first(x[:batch], y[:batch])
    print(parameters, flush=True)
    for _ in iter(sys.stdin.readline, "\n"):
        start = time.perf_counter()
        epoch(x, y, batch)
        print(time.perf_counter() - start, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


if __name__ == "__main__":
    main()
