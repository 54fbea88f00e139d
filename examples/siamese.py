"""Images that are alike lie close together: one net, called on three images at once.

    python examples/siamese.py [--epochs 20]
    python examples/siamese.py --small

It is told which images are of one kind, never which kind, and then has one example of each digit
to name new images by. With --small it prints

    1442 images in triplets, 355 to be named by one example of each digit
    right: 66% by pixels, 91% by the net
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from singanet import FeedForwardNet, Input
from singanet.data import digits
from singanet.layers import Activation, Conv2D, Dense, Flatten, L2Norm, TimeDistributed
from singanet.loss import TripletMargin
from singanet.optimizer import Adam
from singanet.types import Array


def build() -> FeedForwardNet:
    """Three images (3, 1, 8, 8) to three points (3, 16), by the same weights."""
    images = symbol = Input("images", (3, 1, 8, 8))
    tower = [Conv2D("conv1", 16, 3), Activation("relu1"), Conv2D("conv2", 32, 3, strides=2)]
    tower += [Activation("relu2"), Flatten("flat"), Dense("point", 16), L2Norm("length")]
    for layer in tower:
        symbol = TimeDistributed(f"each {layer.name}", layer)(symbol)
    return FeedForwardNet(inputs=images, outputs=symbol, loss=TripletMargin(0.5), seed=0)


def triplets(x: Array, y: Array, epoch: int) -> Iterator[tuple[Array, Array]]:
    """Batches of an anchor, another of its kind, and one of another kind."""
    rng = np.random.default_rng(epoch)
    for _ in range(20):
        anchor = rng.integers(0, len(x), 64)
        alike = np.array([rng.choice(np.flatnonzero(y == y[k])) for k in anchor])
        other = np.array([rng.choice(np.flatnonzero(y != y[k])) for k in anchor])
        yield np.stack([x[anchor], x[alike], x[other]], axis=1), np.ones(64, np.float32)


def right(points: Array, y: Array) -> float:
    """How many are nearest to the example of their own kind, over 50 draws of examples."""
    rng, found = np.random.default_rng(0), []
    points = points.reshape(len(points), -1)
    for _ in range(50):
        examples = [rng.choice(np.flatnonzero(y == kind)) for kind in range(10)]
        apart = np.linalg.norm(points[:, None] - points[examples], axis=2)
        found.append(np.mean(apart.argmin(axis=1) == y))
    return float(np.mean(found))


def main() -> None:
    """Learn what is alike, and name what is new."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    data = digits()
    x, y, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    print(f"{len(x)} images in triplets, {len(x_test)} to be named by one example of each digit")
    net = build()
    net.compile(Adam(learning_rate=0.002), net.loss)
    epochs = 5 if given.small else given.epochs
    net.fit(lambda epoch: triplets(x, y, epoch), epochs=epochs, verbose=False)
    points = net.predict(np.stack([x_test] * 3, axis=1))[:, 0]
    print(f"right: {right(x_test, y_test):.0%} by pixels, {right(points, y_test):.0%} by the net")


if __name__ == "__main__":
    main()
