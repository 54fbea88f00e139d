"""Folders of image files, a class each: a net that has learnt other images learns these.

    python examples/image_folder.py FOLDER --net FILE
    python examples/image_folder.py --small

FOLDER has train/CLASS/*.png and test/CLASS/*.png. With --small files are made: five each of the
digits 5 to 9, for a net that knows 0 to 4. A new head learns alone, then all layers. It prints

    right: 54% by a new head, 76% by all layers
    where nothing was known before: 64% after as many epochs
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from singanet import FeedForwardNet, load_model, models
from singanet.data import FolderLoader, digits
from singanet.data.transforms import random_crop
from singanet.layers import Dense
from singanet.optimizer import Adam


def made(folder: Path, file: Path) -> None:
    """Images of the digits from 5 on, five of each to learn from; a net that knows the others."""
    data = digits()
    net, old = models.build("lenet", data.sample_shape, 5, seed=0), data.y_train < 5
    net.compile(Adam(learning_rate=0.002))
    net.fit(data.x_train[old], data.y_train[old], epochs=4, verbose=False)
    net.save_model(file)
    for part, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        for kind in range(5, 10):
            (place := folder / part / str(kind)).mkdir(parents=True)
            for k in np.flatnonzero(y == kind)[: 5 if part == "train" else None]:
                Image.fromarray((255 * x[k, 0]).astype(np.uint8)).save(place / f"{k}.png")


def main() -> None:
    """Take the net of the file, and teach it the classes of the folder."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--net", type=Path, default=Path("net.singanet"), help="a LeNet's file")
    source.add_argument("--small", action="store_true", help="files that are made in place")
    given = parser.parse_args()
    folder, file = given.folder or Path("images"), given.net
    if given.small:
        made(folder, file)
    shifted = partial(random_crop, size=8, pad=1)  # by up to a pixel to each side
    train = FolderLoader(folder / "train", 8, (8, 8), grayscale=True, transforms=[shifted])
    test = FolderLoader(folder / "test", 64, (8, 8), grayscale=True, classes=train.classes)

    def taught(net: FeedForwardNet, lr: float, epochs: int) -> float:
        net.compile(Adam(learning_rate=lr), fresh.loss, [fresh.metric])
        net.fit(train, epochs=epochs, verbose=False)
        return net.evaluate(test).metric

    fresh = models.build("lenet", (1, 8, 8), len(train.classes), seed=0)
    net = load_model(file).upto("flat", seed=0)
    net.add(Dense("kinds", len(train.classes)))
    net.freeze("kinds")  # all before it
    head = taught(net, 0.005, 6)
    net.unfreeze()
    print(f"right: {head:.0%} by a new head, {taught(net, 0.003, 6):.0%} by all layers")
    print(f"where nothing was known before: {taught(fresh, 0.003, 12):.0%} after as many epochs")


if __name__ == "__main__":
    main()
