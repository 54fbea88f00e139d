"""The default install, whose kernels are LLVM's, beside the extra fast and beside NumPy alone.

Steps and predictions. Each side is a process of its own, asked in turn for one turn's time.
PyTorch beside it: `train_vs_torch.py --ops llvm`.

    python benchmarks/default_install.py [--threads 1] [--rounds 9]
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
SIDES = {"llvm": "the default", "onednn": "with fast", "numpy": "NumPy alone"}


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
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    # Else NumPy's products would keep a number of their own.
    os.environ.pop("OPENBLAS_NUM_THREADS", None)
    taken = apart(make, list(SIDES), range(2 * len(NETS)), given.rounds, 8)
    rows = []
    factors: dict[tuple[str, str], list[float]] = {}
    for number, sides in enumerate(taken):
        model, batch = NETS[number // 2]
        what = "prediction" if number % 2 else "step"
        seconds = {name: sides[name].seconds for name in SIDES}
        cells = [f"{1e3 * statistics.median(s):.3g}" for s in seconds.values()]
        for name in ("onednn", "numpy"):
            ratios = [a / b for a, b in zip(seconds[name], seconds["llvm"], strict=True)]
            factors.setdefault((what, name), []).append(statistics.median(ratios))
            cells += [f"{statistics.median(ratios):.2f}", spread(ratios)]
        rows.append([f"{model}:{batch}", what, *cells])
    told = [
        f"A {what} {SIDES[name]} takes {math.exp(statistics.fmean(map(math.log, found))):.2f} of"
        f" the default's time at the geometric mean, {min(found):.2f} to {max(found):.2f}."
        for (what, name), found in factors.items()
    ]
    header = ["net", "what", *(f"{side}, ms" for side in SIDES.values()),
              "fast / default", "spread", "NumPy / default", "spread"]  # fmt: skip
    load = f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    body = f"{given.threads} thread(s). {load}\n\n{' '.join(told)}\n\n{table(header, rows)}"
    publish(f"default_install_{given.threads}t", "With and without the extra fast", body)


if __name__ == "__main__":
    main()
