"""Digits out of noise: a variational autoencoder, whose loss has a term beside the pixels'.

    python examples/vae.py [--epochs 100]
    python examples/vae.py --small

Kingma and Welling, 2014. A LeNet that has learnt the real digits tells how like one an image is.
With --small it prints

    bits a pixel: 0.87 in the first epoch, 0.57 in the last
    new digits: LeNet is sure of 28%
    noise: LeNet is sure of 1%
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from singanet import FeedForwardNet, Input, models
from singanet.data import digits
from singanet.layers import Activation, Add, Dense, Multiply, Operation, Scale, Subtract
from singanet.loss import MeanAbsoluteError, MultiLoss, SigmoidCrossEntropy
from singanet.optimizer import Adam
from singanet.types import Array

CODE, PIXELS = 8, 64


def build() -> tuple[FeedForwardNet, FeedForwardNet]:
    """Images to codes and back, and the way back alone; they share its layers."""
    image, noise, alone = Input("image", (PIXELS,)), Input("noise", (CODE,)), Input("code", (CODE,))
    seen = Activation("relu1")(Dense("seen", 64)(image))
    m, s = Dense("mean", CODE)(seen), Dense("log variance", CODE)(seen)
    deviation = Operation("deviation", "exp")(Scale("half", 0.5)(s))
    drawn = Add("drawn")(m, Multiply("spread")(deviation, noise))
    # Twice the divergence from N(0, 1), m² + exp(s) − s − 1, as an output whose size is the loss.
    sums = Add("sum")(Multiply("square")(m, m), Operation("variance", "exp")(s))
    apart = Scale("apart", 1.0, offset=-1.0)(Subtract("less")(sums, s))
    made = alone
    for layer in (Dense("wide", 64), Activation("relu2"), Dense("pixels", PIXELS)):
        drawn, made = layer(drawn), layer(made)
    whole = FeedForwardNet(inputs=[image, noise], outputs=[drawn, apart], seed=0)
    return whole, FeedForwardNet(inputs=alone, outputs=made)


def batches(x: Array, epoch: int) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """All images in batches of 64 or so, each time with other noise."""
    rng = np.random.default_rng(epoch)
    for rows in np.array_split(rng.permutation(len(x)), len(x) // 64):
        noise = rng.standard_normal((len(rows), CODE), np.float32)
        yield {"image": x[rows], "noise": noise}, {"pixels": x[rows], "apart": 0 * noise}


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
    net, maker = build()
    # Both are means, over pixels and over the numbers of a code.
    parts = {"pixels": SigmoidCrossEntropy(), "apart": MeanAbsoluteError()}
    net.compile(Adam(learning_rate=0.003), MultiLoss(parts, weights={"apart": 0.5 * CODE / PIXELS}))
    x, epochs = data.x_train.reshape(-1, PIXELS), 15 if given.small else given.epochs
    bits = net.fit(lambda k: batches(x, k), epochs=epochs, verbose=False)["loss"] / np.log(2)
    print(f"bits a pixel: {bits[0]:.2f} in the first epoch, {bits[-1]:.2f} in the last")
    made = 1 / (1 + np.exp(-maker.predict(rng.standard_normal((500, CODE), np.float32))))
    for what, images in (("new digits", made), ("noise", rng.random(made.shape, np.float32))):
        sure = judge.predict(images.reshape(-1, 1, 8, 8)).max(axis=1) > 0.9
        print(f"{what}: LeNet is sure of {sure.mean():.0%}")


if __name__ == "__main__":
    main()
