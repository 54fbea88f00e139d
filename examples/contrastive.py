"""Images of a class lie close together: supervised contrastive learning, as in Keras' example.

    python examples/contrastive.py [--epochs 20]
    python examples/contrastive.py --small

Khosla et al., 2020. Each image is compared with all others of its batch; the loss is a function of
symbols, whose gradient the library knows. Then one example of each digit names new images. With
--small it prints

    the loss: 2.79 in the first epoch, 2.13 in the last
    right: 66% by pixels, 96% by the net
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import FeedForwardNet
from singanet import functional as F
from singanet.data import digits
from singanet.layers import Conv2D, Dense, Flatten
from singanet.layers.symbol import Symbol
from singanet.loss import from_function
from singanet.optimizer import Adam
from singanet.types import Array

TEMPERATURE = 0.2


def contrastive_loss(points: Symbol, labels: Symbol) -> Symbol:
    """The cross-entropy of finding the images of the same label among those of the batch."""
    units = points / F.sqrt(F.sum(F.square(points), axis=1, keepdims=True) + 1e-9)
    logits = F.matmul(units, F.transpose(units)) / TEMPERATURE
    same = F.equal(labels, F.transpose(labels))
    return -F.sum(same * F.log_softmax(logits, axis=1), axis=1) / F.sum(same, axis=1)


def right(points: Array, y: Array) -> float:
    """How many are nearest to the example of their own kind, over 50 draws of examples."""
    rng, found = np.random.default_rng(0), []
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    for _ in range(50):
        examples = [rng.choice(np.flatnonzero(y == kind)) for kind in range(10)]
        found.append(np.mean((units @ units[examples].T).argmax(axis=1) == y))
    return float(np.mean(found))


def main() -> None:
    """Learn points by comparisons, and name images by ten of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    data = digits()
    net = FeedForwardNet(
        [
            Conv2D("low", 16, 3, activation="relu", input_shape=data.sample_shape),
            Conv2D("high", 32, 3, strides=2, activation="relu"),
            Flatten("flat"),
            Dense("point", 16),
        ],
        seed=0,
    )
    net.compile(Adam(learning_rate=0.002), from_function(contrastive_loss))
    epochs = 5 if given.small else given.epochs
    y = data.y_train[:, None]
    losses = net.fit(data.x_train, y, batch_size=64, epochs=epochs, verbose=False)["loss"]
    print(f"the loss: {losses[0]:.2f} in the first epoch, {losses[-1]:.2f} in the last")
    shares = [
        right(points.reshape(len(points), -1), data.y_test)
        for points in (data.x_test, net.predict(data.x_test))
    ]
    print(f"right: {shares[0]:.0%} by pixels, {shares[1]:.0%} by the net")


if __name__ == "__main__":
    main()
