"""One net, three answers: which digit it is, whether it is odd, and how much ink it took.

    python examples/several_outputs.py [--epochs 30]
    python examples/several_outputs.py --small

With --small it prints

    1442 images to learn from, 355 to test on
    digit 98% right, parity 91% right, ink off by 24% of its spread
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import FeedForwardNet, Input
from singanet.data import digits
from singanet.layers import Activation, Conv2D, Dense, Flatten, MaxPooling2D
from singanet.loss import MultiLoss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, BinaryAccuracy
from singanet.optimizer import Adam
from singanet.types import Array


def answers(x: Array, y: Array) -> dict[str, Array]:
    """What is right, by the names of the outputs."""
    ink = x.sum(axis=(1, 2, 3), dtype=np.float32)[:, None]
    return {"digit": y, "odd": (y % 2).astype(np.float32)[:, None], "ink": (ink - 19.5) / 2.5}


def build() -> FeedForwardNet:
    """A trunk with three heads."""
    image = Input("image", (1, 8, 8))
    seen = Activation("relu1")(Conv2D("conv", 16, 3)(image))
    trunk = Activation("relu2")(Dense("trunk", 64)(Flatten("flat")(MaxPooling2D("pool", 2)(seen))))
    heads = [Dense("digit", 10)(trunk), Dense("odd", 1)(trunk), Dense("ink", 1)(trunk)]
    return FeedForwardNet(inputs=image, outputs=heads, seed=0)


def main() -> None:
    """Learn, and tell how good each answer is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=30)
    given = parser.parse_args()
    data = digits()
    print(f"{len(data.x_train)} images to learn from, {len(data.x_test)} to test on")
    parts = {"digit": SoftmaxCrossEntropy(), "odd": SigmoidCrossEntropy(), "ink": SquaredError()}
    net = build()
    net.compile(
        Adam(learning_rate=0.003),
        MultiLoss(parts, weights={"digit": 1.0, "odd": 0.5, "ink": 0.5}),
        metrics={"digit": Accuracy(), "odd": BinaryAccuracy()},
    )
    epochs = 8 if given.small else given.epochs
    net.fit(data.x_train, answers(data.x_train, data.y_train), epochs=epochs, verbose=False)

    wanted, found = answers(data.x_test, data.y_test), net.predict(data.x_test)
    digit = np.mean(found["digit"].argmax(1) == wanted["digit"])
    odd = np.mean((found["odd"] > 0.5) == wanted["odd"])
    off = np.abs(found["ink"] - wanted["ink"]).mean() / wanted["ink"].std()
    print(f"digit {digit:.0%} right, parity {odd:.0%} right, ink off by {off:.0%} of its spread")


if __name__ == "__main__":
    main()
