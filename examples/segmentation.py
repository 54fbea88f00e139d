"""A class for each pixel: which digits lie where in a noisy scene.

    python examples/segmentation.py [--epochs 10] [--width 16]
    python examples/segmentation.py --small

Scenes are made of the digits that ship with the library. With --small it prints

    160 scenes of (1, 32, 32), 11 classes a pixel
    overlap over union 0.02 before, 0.08 after; right pixels 89%
"""

from __future__ import annotations

import argparse

import numpy as np

from singanet import models
from singanet.data import scenes
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import IOU
from singanet.optimizer import Adam


def main() -> None:
    """Learn, and tell the overlap with what is right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="few scenes, a narrow net")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=16, help="channels at full size")
    given = parser.parse_args()
    width, epochs, count = (4, 4, 160) if given.small else (given.width, given.epochs, 961)
    data = scenes()
    x, y = data.x_train[:count], data.y_train[:count]
    test = data.x_test[:count], data.y_test[:count]
    print(f"{len(x)} scenes of {data.sample_shape}, {data.num_classes} classes a pixel")

    # A U-Net gives a score for each class of each pixel, with the classes last: (N, H, W, classes).
    net = models.build("unet", data.sample_shape, data.num_classes, width=width, seed=0)
    # Nine pixels of ten are background, which would be learnt first and for long.
    often = np.bincount(y.ravel(), minlength=data.num_classes) / y.size
    loss = SoftmaxCrossEntropy(class_weight=(0.1 / (often + 0.01)).tolist())
    net.compile(Adam(learning_rate=0.01), loss, [IOU()])
    before = net.evaluate(*test, 32)
    net.fit(x, y, batch_size=16, epochs=epochs, verbose=False)
    after = net.evaluate(*test, 32)
    right = np.mean(net.predict(test[0], 32).argmax(-1) == test[1])
    print(f"overlap over union {before[1]:.2f} before, {after[1]:.2f} after; ", end="")
    print(f"right pixels {right:.0%}")


if __name__ == "__main__":
    main()
