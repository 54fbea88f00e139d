"""A small net learns from a large one, as in Keras' example of knowledge distillation.

    python examples/distillation.py [--epochs 40]
    python examples/distillation.py --small

Hinton et al., 2015. There are labels for 100 images only; the teacher knows all of them. With
--small it prints

    teacher: 97% right
    student by 100 labels: 81% right
    student by the teacher, too: 96% right
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import Executor, FeedForwardNet, Input
from singanet import functional as F
from singanet.data import digits
from singanet.layers import Conv2D, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam

TEMPERATURE, LABELLED = 3.0, 100


def build(teacher: FeedForwardNet) -> Executor:
    """Programs that train a student by labels, or by labels and the scores of ``teacher``."""
    image, label = Input("image", (1, 8, 8)), Input("label", (), dtype="int64")
    known = Input("known", ())  # 1 for an image with a label
    layers = [Flatten("flat"), Dense("hidden", 16, activation="relu"), Dense("scores", 10)]
    student = FeedForwardNet([*layers], name="student")
    scores = student(image)
    by_labels = SoftmaxCrossEntropy()(scores, label, sample_weight=known)
    wanted = F.softmax(teacher(image) / TEMPERATURE)
    apart = F.sum(wanted * (F.log(wanted + 1e-7) - F.log_softmax(scores / TEMPERATURE)), axis=1)
    both = 0.1 * by_labels + 0.9 * TEMPERATURE**2 * apart
    adam = Adam(learning_rate=0.003)
    training = {"labels": [adam.minimize(by_labels)], "both": [adam.minimize(both, [student])]}
    return Executor({**training, "classify": [scores]}, seed=0)


def main() -> None:
    """Train a teacher, and a student in both ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a few epochs")
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    data, epochs = digits(), 15 if given.small else given.epochs
    convolutions = [
        Conv2D("low", 16, 3, activation="relu", input_shape=data.sample_shape),
        Conv2D("high", 32, 3, strides=2, activation="relu"),
    ]
    teacher = FeedForwardNet([*convolutions, Flatten(), Dense(10)], name="teacher", seed=0)
    teacher.compile(Adam(learning_rate=0.002), SoftmaxCrossEntropy())
    teacher.fit(data.x_train, data.y_train, epochs=6, verbose=False)
    right = teacher.predict(data.x_test).argmax(axis=1) == data.y_test
    print(f"teacher: {right.mean():.0%} right")
    known = np.arange(len(data.x_train)) < LABELLED
    ways = {"labels": f"student by {LABELLED} labels", "both": "student by the teacher, too"}
    for program, what in ways.items():
        net, rng = build(teacher), np.random.default_rng(0)
        for _ in range(epochs):
            order = rng.choice(np.flatnonzero(known | (program == "both")), len(known))
            for rows in np.array_split(order, len(order) // 32):
                feed = {"image": data.x_train[rows], "label": data.y_train[rows]}
                net.run(program, {**feed, "known": known[rows].astype(np.float32)})
        (scores,) = net.run("classify", {"image": data.x_test})
        print(f"{what}: {np.mean(scores.argmax(axis=1) == data.y_test):.0%} right")


if __name__ == "__main__":
    main()
