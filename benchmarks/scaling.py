"""Time and memory for each sample of a training step, by batch size.

Cost that grows as the work gives flat lines. ``--threads``, ``--ops`` and ``--rounds`` as in
`train_vs_torch.py`; ``--rows`` chooses among lenet and resnet20.
"""

from __future__ import annotations

import statistics

from versus import options

OPTIONS = options(__doc__)

from apart import Entrant, apart, resident  # noqa: E402 - after the number of threads
from cases import batch_of, build  # noqa: E402
from report import publish, spread, table  # noqa: E402
from rivals import LR, MOMENTUM, imports  # noqa: E402

import singanet  # noqa: E402

MODELS = [name for name in ("lenet", "resnet20") if name in (OPTIONS.rows or "lenet,resnet20")]
SIZES = (16, 32, 64, 128, 256)
ROWS = [(model, size) for model in MODELS for size in SIZES]


def make(_: str, row: int) -> Entrant:
    """A step; what a step of one sample leaves in memory, parameters and all, is set apart."""
    before = resident("RssAnon")
    model, size = ROWS[row]
    net, sgd = build(model), singanet.optimizer.SGD(lr=LR, momentum=MOMENTUM)
    net.step(*batch_of(model, 1), sgd)
    x, y = batch_of(model, size)
    return Entrant(lambda: net.step(x, y, sgd), {"fixed": resident("RssAnon") - before})


def main() -> None:
    """Print and keep the table."""
    measured = apart(make, ["singanet"], range(len(ROWS)), OPTIONS.rounds, OPTIONS.seconds, imports)
    lines: list[list[str]] = []
    first: dict[str, tuple[float, float]] = {}
    for (model, size), taken in zip(ROWS, measured, strict=True):
        result = taken["singanet"]
        if result.failure:
            raise SystemExit(f"{model}, batch {size}: {result.failure}")
        each = statistics.median(result.seconds) / size
        memory = (result.peak - result.facts["fixed"]) / size
        base = first.setdefault(model, (each, memory))
        cells = [f"{1e3 * each:.3g}", spread(result.seconds), f"{each / base[0]:.2f}"]
        cells += [f"{memory / 1024:.0f}", f"{memory / base[1]:.2f}"]
        lines.append([model, str(size), *cells])
    header = ["net", "batch", "ms a sample", "spread", f"by batch {SIZES[0]}'s",
              "KiB a sample", f"by batch {SIZES[0]}'s"]  # fmt: skip
    text = "KiB: the peak beyond what a step of one sample left behind, by the number of samples."
    title = f"Cost by batch size: {OPTIONS.ops} kernels, {OPTIONS.threads} thread(s)"
    file = f"scaling_{OPTIONS.ops}_{OPTIONS.threads}t"
    publish(file, title, f"{table(header, lines)}\n\n{text}")


if __name__ == "__main__":
    main()
