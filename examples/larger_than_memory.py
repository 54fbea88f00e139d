"""Samples in a file that is never read as a whole: train, evaluate and predict from a memmap.

    python examples/larger_than_memory.py [--rows 10000000]
    python examples/larger_than_memory.py --small

Each batch reads its own rows. With --small it prints

    the file: 103 MB
    training, evaluating and predicting took at most 18% of that in arrays
    error: 1.12 without the net, 0.13 with it
"""

from __future__ import annotations

import argparse
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from singanet import FeedForwardNet
from singanet.layers import Dense
from singanet.types import Array

FEATURES, BLOCK = 256, 10_000


def written(path: Path, rows: int) -> Array:
    """A file of features, block by block; the last column is the target."""
    made = np.lib.format.open_memmap(path, "w+", np.float32, (rows, FEATURES + 1))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(FEATURES) / FEATURES**0.5
    for start in range(0, rows, BLOCK):
        block = rng.standard_normal((min(BLOCK, rows - start), FEATURES))
        made[start : start + BLOCK, :-1] = block
        made[start : start + BLOCK, -1] = np.abs(block @ weight) + np.tanh(3 * block @ weight)
    made.flush()
    found: Array = np.load(path, mmap_mode="r")
    return found


def main() -> None:
    """Write the file, and use it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="few rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        rows = written(Path(folder, "rows.npy"), 100_000 if given.small else given.rows)
        x, y = rows[:, :-1], rows[:, -1:]
        tracemalloc.start()
        net = FeedForwardNet([Dense(32, activation="relu"), Dense(1)], seed=0)
        net.compile("adam", "mse")
        net.fit(x, y, batch_size=256, epochs=2, verbose=False)
        error = net.evaluate(x, y, batch_size=256).loss
        net.predictor()(x[:20_000])
        used = tracemalloc.get_traced_memory()[1]
        print(f"the file: {rows.nbytes / 1e6:.0f} MB")
        share = used / rows.nbytes
        print(f"training, evaluating and predicting took at most {share:.0%} of that in arrays")
        print(f"error: {np.var(y[:BLOCK]):.2f} without the net, {error:.2f} with it")
        del rows, x, y


if __name__ == "__main__":
    main()
