"""What nets learn with factors of bfloat16, beside float32 from the same seeds.

Each run is two trainings by `singanet train` with the model's recipe but for the epochs. Run k has
the seed k; of digits a fifth of all samples is for its test, each fifth in turn.

    python benchmarks/narrow_accuracy.py --runs 10
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from report import publish, table

from singanet.data import digits

ROWS = {
    "lenet": ("digits", "10", "accuracy"),
    "resnet20": ("digits", "6", "accuracy"),
    "char_rnn": ("plays", "2", "loss"),
    "transformer": ("plays", "1", "loss"),
}
_FOLDS = 5
_LAST = re.compile(r"(accuracy|loss) +([0-9.]+)")


def folds(folder: Path) -> list[str]:
    """The digits in as many files, each with another part for the test."""
    data = digits()
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    which = np.random.default_rng(0).permutation(len(x)) % _FOLDS
    made = []
    for fold in range(_FOLDS):
        test = which == fold
        parts = {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
        made.append(str(folder / f"{fold}.npz"))
        np.savez(made[-1], **parts)
    return made


def trained(model: str, data: str, seed: int, precision: str | None) -> float:
    """The figure in the last line of a training."""
    _, epochs, wanted = ROWS[model]
    command = [sys.executable, "-m", "singanet", "train", model, "--data", data]
    command += ["--epochs", epochs, "--seed", str(seed)]
    command += [] if precision is None else ["--mixed-precision", precision]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    last = run.stdout.strip().splitlines()[-1]
    return next(float(value) for name, value in _LAST.findall(last) if name == wanted)


def line(model: str, runs: int, files: list[str]) -> list[str]:
    """A net's cells; how far apart the two are, with the standard error of the mean."""
    data, _, figure = ROWS[model]
    pairs = []
    for seed in range(runs):
        given = files[seed % _FOLDS] if data == "digits" else data
        pairs.append([trained(model, given, seed, p) for p in (None, "bfloat16")])
        print(model, *pairs[-1], flush=True)
    usual, narrow = map(statistics.mean, zip(*pairs, strict=True))
    unit, whole = ("points", 1.0) if figure == "accuracy" else ("%", usual)
    apart = [100 * (b - a) / whole for a, b in pairs]
    error = statistics.stdev(apart) / len(apart) ** 0.5
    told = f"{statistics.mean(apart):+.2f} ± {error:.2f} {unit}"
    each = ", ".join(f"{value:+.2f}" for value in apart)
    return [model, figure, str(runs), f"{usual:.4f}", f"{narrow:.4f}", told, each]


def main() -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="of accuracies; 3 of losses")
    parser.add_argument("--rows", default=",".join(ROWS))
    given = parser.parse_args()
    os.environ["SINGANET_OPS"] = "onednn"
    with tempfile.TemporaryDirectory() as folder:
        files = folds(Path(folder))
        lines = []
        for model in given.rows.split(","):
            runs = given.runs if ROWS[model][2] == "accuracy" else min(3, given.runs)
            lines.append(line(model, runs, files))
    header = ["net", "figure", "runs", "float32", "bfloat16", "apart, standard error", "each run"]
    publish("narrow_accuracy", "Learning with factors of bfloat16", table(header, lines))


if __name__ == "__main__":
    main()
