"""Where a net looks: Grad-CAM of digits that are somewhere in a noisy image.

    python examples/grad_cam.py [--epochs 30]
    python examples/grad_cam.py --small

Selvaraju et al., 2017. The net learns which digit there is, never where. Its heat map finds the
place. With --small it prints

    right: 92% of the digits
    heat in the quarter of the digit: 66%, of the image 25%
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import Executor, Input
from singanet import functional as F
from singanet.data import digits
from singanet.executor import gradients
from singanet.layers import Conv2D, Dense, GlobalMaxPooling2D
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.types import Array


def build() -> Executor:
    """Programs to train, to classify, and for the slopes of the best score by the last maps."""
    image, label = Input("image", (1, 16, 16)), Input("label", (), dtype="int64")
    low = Conv2D("low", 16, 3, activation="relu")(image)
    maps = Conv2D("high", 32, 3, strides=2, activation="relu")(low)
    scores = Dense("scores", 10)(GlobalMaxPooling2D("pooled")(maps))
    loss = SoftmaxCrossEntropy()(scores, label)
    train = [loss, Adam(learning_rate=0.003).minimize(loss)]
    slopes = gradients(F.max(scores, axis=1), [maps])
    return Executor({"train": train, "look": [scores, maps], "slopes": slopes}, seed=0)


def placed(x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Each digit in one of the four quarters of a noisy image, and the quarters."""
    images = 0.5 * rng.random((len(x), 1, 16, 16), np.float32)
    quarters = rng.integers(0, 4, len(x))
    for image, digit, quarter in zip(images, x, quarters, strict=True):
        row, column = 8 * (quarter // 2), 8 * (quarter % 2)
        image[:, row : row + 8, column : column + 8] += digit
    return images, quarters


def heat_maps(net: Executor, images: Array) -> tuple[Array, Array]:
    """The classes, and the heat (N, 8, 8) of the maps that speak for them, at most 1."""
    scores, maps = net.run("look", {"image": images})
    (slopes,) = net.run("slopes", {"image": images})
    weights = F.mean(slopes, axis=(2, 3), keepdims=True)
    heat = F.relu(F.sum(weights * maps, axis=1))
    return scores.argmax(axis=1), heat / F.maximum(F.max(heat, (1, 2), keepdims=True), 1e-12)


def main() -> None:
    """Learn digits anywhere, and show where the net sees them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=30)
    given = parser.parse_args()
    data, rng, net = digits(), np.random.default_rng(0), build()
    for _ in range(12 if given.small else given.epochs):
        images, _ = placed(data.x_train, rng)
        for rows in np.array_split(rng.permutation(len(images)), len(images) // 32):
            net.run("train", {"image": images[rows], "label": data.y_train[rows]})
    images, quarters = placed(data.x_test, rng)
    classes, heat = heat_maps(net, images)
    print(f"right: {np.mean(classes == data.y_test):.0%} of the digits")
    sums = heat.reshape(-1, 2, 4, 2, 4).sum(axis=(2, 4)).reshape(-1, 4)
    share = np.mean(sums[np.arange(len(sums)), quarters] / np.maximum(sums.sum(axis=1), 1e-12))
    print(f"heat in the quarter of the digit: {share:.0%}, of the image 25%")


if __name__ == "__main__":
    main()
