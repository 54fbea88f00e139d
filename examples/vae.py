"""Digits out of noise: a variational autoencoder, whose loss is drawn as in Keras.

    python examples/vae.py [--epochs 100]
    python examples/vae.py --small

Kingma and Welling, 2014. A LeNet that has learnt the real digits tells how like one an image is.
With --small it prints

    bits a pixel: 0.89 in the first epoch, 0.57 in the last
    new digits: LeNet is sure of 29%
    noise: LeNet is sure of 3%
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import Executor, FeedForwardNet, Input, models
from singanet import functional as F
from singanet.data import digits
from singanet.layers import Dense
from singanet.optimizer import Adam
from singanet.types import Array

CODE, PIXELS = 8, 64


def build() -> Executor:
    """Two programs: "train" by images and noise, and "make" of codes, with one decoder."""
    image, noise, code = Input("image", (PIXELS,)), Input("noise", (CODE,)), Input("code", (CODE,))
    seen = Dense("seen", 64, activation="relu")(image)
    mean, log_variance = Dense("mean", CODE)(seen), Dense("log variance", CODE)(seen)
    drawn = mean + F.exp(0.5 * log_variance) * noise

    layers = [Dense("wide", 64, activation="relu"), Dense("pixels", PIXELS)]
    decoder = FeedForwardNet([*layers], name="decoder")
    scores = decoder(drawn)

    # The cross-entropy of the pixels, from scores, and the divergence of the codes from N(0, 1).
    cross = F.maximum(scores, 0) - scores * image + F.log(1 + F.exp(-F.abs(scores)))
    apart = -0.5 * (1 + log_variance - F.square(mean) - F.exp(log_variance))
    loss = F.mean(F.sum(cross, axis=1)) + F.mean(F.sum(apart, axis=1))
    step = Adam(learning_rate=0.003).minimize(loss)
    return Executor({"train": [loss, step], "make": [F.sigmoid(decoder(code))]}, seed=0)


def epoch_of(vae: Executor, x: Array, epoch: int) -> float:
    """Train on all images in batches of 64 or so, each time with other noise."""
    rng = np.random.default_rng(epoch)
    losses = []
    for rows in np.array_split(rng.permutation(len(x)), len(x) // 64):
        noise = rng.standard_normal((len(rows), CODE), np.float32)
        losses.append(vae.run("train", {"image": x[rows], "noise": noise})[0])
    return float(np.mean(losses)) / PIXELS / np.log(2)


def main() -> None:
    """Learn to make digits, and have another net look at them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    data, rng = digits(), np.random.default_rng(1)
    judge = models.build("lenet", data.sample_shape, data.num_classes, seed=0)
    judge.compile(Adam(learning_rate=0.002))
    judge.fit(data.x_train, data.y_train, epochs=4, verbose=False)
    vae, x = build(), data.x_train.reshape(-1, PIXELS)
    bits = [epoch_of(vae, x, epoch) for epoch in range(15 if given.small else given.epochs)]
    print(f"bits a pixel: {bits[0]:.2f} in the first epoch, {bits[-1]:.2f} in the last")
    (made,) = vae.run("make", {"code": rng.standard_normal((500, CODE), np.float32)})
    for what, images in (("new digits", made), ("noise", rng.random(made.shape, np.float32))):
        sure = judge.predict(images.reshape(-1, 1, 8, 8)).max(axis=1) > 0.9
        print(f"{what}: LeNet is sure of {sure.mean():.0%}")


if __name__ == "__main__":
    main()
