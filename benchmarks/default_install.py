"""What the kernels of ``pip install 'singanet[fast]'`` save: steps and predictions beside NumPy's.

Each side is a process of its own, asked in turn for one turn's time.

    python benchmarks/default_install.py [--threads 1] [--rounds 9] [--kernels llvm]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from typing import Any

from apart import Entrant, apart
from report import introduction, publish, spread, table

NETS = (("lenet", 32), ("resnet20", 32), ("vgg11", 8), ("mobilenet_v2", 8),
        ("mlp", 32), ("transformer", 8), ("lstm", 32))  # fmt: skip


def make(name: str, row: int) -> Entrant:
    """A step of a net, or of its even rows a prediction, by the kernels ``name``."""
    os.environ["SINGANET_OPS"] = name
    from cases import batch_of, build

    from singanet.optimizer import SGD

    model, batch = NETS[row // 2]
    net = build(model)
    x, y = batch_of(model, batch)
    if row % 2:
        predictor: Any = net.predictor()
        return Entrant(lambda: predictor(x))
    rule = SGD(lr=1e-3, momentum=0.9)
    return Entrant(lambda: net.step(x, y, rule))


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=introduction(__doc__))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernels", choices=("llvm", "onednn"), default="onednn")
    given = parser.parse_args()
    kernels, named = ("numpy", given.kernels), {"llvm": "LLVM", "onednn": "oneDNN"}[given.kernels]
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(given.threads)
    taken = apart(make, kernels, range(2 * len(NETS)), given.rounds, 12)
    rows, factors = [], {"step": [], "prediction": []}  # type: ignore[var-annotated]
    for number, sides in enumerate(taken):
        model, batch = NETS[number // 2]
        what = "prediction" if number % 2 else "step"
        seconds = [sides[name].seconds for name in kernels]
        ratios = [slow / fast for slow, fast in zip(*seconds, strict=True)]
        factors[what].append(statistics.median(ratios))
        rows.append([
            f"{model}:{batch}", what, *(f"{1e3 * statistics.median(s):.3g} ms" for s in seconds),
            f"{factors[what][-1]:.2f}", spread(ratios),
        ])  # fmt: skip
    told = [
        f"{what}s take {math.exp(statistics.fmean(map(math.log, found))):.2f} times as long"
        f" without {named} at the geometric mean, {min(found):.2f} to {max(found):.2f}."
        for what, found in factors.items()
    ]
    header = ["net", "what", "NumPy's kernels", f"{named}'s", "times", "spread"]
    body = f"{given.threads} thread(s). {' '.join(told)}\n\n{table(header, rows)}"
    beside = "" if given.kernels == "onednn" else f"_{given.kernels}"
    title = "With and without the extra fast" + (f", by {named}" if beside else "")
    publish(f"default_install{beside}_{given.threads}t", title, body)


if __name__ == "__main__":
    main()
