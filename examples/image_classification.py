"""A vision transformer learns to read handwritten digits.

    python examples/image_classification.py FOLDER [--out reader] [--epochs 3] [--limit N]
    python examples/image_classification.py --small

FOLDER is a published ViT or DeiT, such as google/vit-base-patch16-224-in21k. What is saved is its
model for classes, whose head is new. With --small it prints

    images of 16 x 16: 1442 to learn from, 355 to test on
    right: 11.8% before, 82.3% after
    saved in reader, which transformers loads
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import small_models

from singanet import pretrained, set_seed
from singanet.data import digits
from singanet.optimizer import AdamW
from singanet.types import Array


def pixels(images: Array, shape: tuple[int, ...]) -> Array:
    """Images (N, 1, 8, 8) from 0 to 1 as (N, C, H, W) from -1 to 1, each pixel as several."""
    channels, high, wide = shape
    rows, columns = np.arange(high) * 8 // high, np.arange(wide) * 8 // wide
    return np.repeat(2 * images[:, :, rows][..., columns] - 1, channels, axis=1)


def main() -> None:
    """Learn, and tell how often it is right."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--out", type=Path, default=Path("reader"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="images to learn from at most")
    given = parser.parse_args()
    set_seed(0)
    with tempfile.TemporaryDirectory() as beside:
        place = small_models.image_model(Path(beside, "m")) if given.small else given.folder
        net = pretrained.load(place, head="image-classification", classes=10)
    data, shape = digits(), net["pixel_values"].in_shapes
    assert isinstance(shape, tuple)  # not a list: it has one input
    x, y = pixels(data.x_train, shape)[: given.limit], data.y_train[: given.limit]
    test = pixels(data.x_test, shape), data.y_test
    print(f"images of {shape[1]} x {shape[2]}: {len(x)} to learn from, {len(test[0])} to test on")
    net.compile(AdamW(learning_rate=1e-3 if given.small else 5e-5), net.loss, [net.metric])
    before = net.evaluate(*test, 32)[1]
    net.fit(x, y, batch_size=16, epochs=given.epochs, verbose=False)
    print(f"right: {before:.1%} before, {net.evaluate(*test, 32)[1]:.1%} after")
    pretrained.save(net, given.out)
    print(f"saved in {given.out}, which transformers loads")


if __name__ == "__main__":
    main()
