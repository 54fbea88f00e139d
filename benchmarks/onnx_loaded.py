"""Predictions of a ready net beside those of the same net written as ONNX and read again."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from report import interleaved, publish, spread, table

from singanet import models, onnx


def main() -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    shape = (3, 224, 224)
    net = models.build(given.model, shape, 1000, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(net, path)
        loaded = onnx.load(path)
    x = np.random.default_rng(0).standard_normal((given.batch, *shape)).astype(np.float32)
    predictors = {"built": net.predictor(), "loaded": loaded.predictor()}
    runs = {name: lambda predict=predict: predict(x) for name, predict in predictors.items()}
    taken = interleaved(runs, given.rounds, time.process_time)
    ratios = [b / a for a, b in zip(taken["built"], taken["loaded"], strict=True)]
    lines = [
        [name, f"{1e3 * statistics.median(seconds):.1f}", spread(seconds)]
        for name, seconds in taken.items()
    ]
    lines.append(["loaded by built", f"{statistics.median(ratios):.3f}", spread(ratios)])
    title = f"{given.model}, batch {given.batch}: built and read from ONNX, processor time"
    publish("onnx_loaded", title, table(["net", "ms a prediction", "spread"], lines))


if __name__ == "__main__":
    main()
