"""What nets learn with factors of bfloat16, beside float32 from the same seeds.

Each line is two trainings by `singanet train`, in turns, with its own recipe but for the epochs.

    python benchmarks/narrow_accuracy.py --seeds 3
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys

from report import publish, table

ROWS = {
    "lenet": (("--data", "digits", "--epochs", "10"), "accuracy"),
    "resnet20": (("--data", "digits", "--epochs", "6"), "accuracy"),
    "char_rnn": (("--data", "plays", "--epochs", "2"), "loss"),
    "transformer": (("--data", "plays", "--epochs", "1"), "loss"),
}
_LAST = re.compile(r"(accuracy|loss) +([0-9.]+)")


def trained(model: str, precision: str | None, seed: int) -> float:
    """The figure in the last line of a training."""
    given, wanted = ROWS[model]
    precise = () if precision is None else ("--mixed-precision", precision)
    command = (sys.executable, "-m", "singanet", "train", model, *given, "--seed", str(seed))
    run = subprocess.run((*command, *precise), capture_output=True, check=True, text=True)
    last = run.stdout.strip().splitlines()[-1]
    return next(float(value) for name, value in _LAST.findall(last) if name == wanted)


def main() -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS))
    given = parser.parse_args()
    os.environ["SINGANET_OPS"] = "onednn"
    lines = []
    for model in given.rows.split(","):
        pairs = [
            (trained(model, None, seed), trained(model, "bfloat16", seed))
            for seed in range(given.seeds)
        ]
        usual, narrow = map(statistics.mean, zip(*pairs, strict=True))
        figure = ROWS[model][1]
        apart = f"{100 * (narrow - usual):+.2f} points"
        if figure == "loss":
            apart = f"{100 * (narrow / usual - 1):+.2f} %"
        each = ", ".join(f"{a:.4f} {b:.4f}" for a, b in pairs)
        lines.append([model, figure, f"{usual:.4f}", f"{narrow:.4f}", apart, each])
        print(lines[-1], flush=True)
    header = ["net", "figure", "float32", "bfloat16", "apart", "each seed: float32 bfloat16"]
    publish("narrow_accuracy", "Learning with factors of bfloat16", table(header, lines))


if __name__ == "__main__":
    main()
