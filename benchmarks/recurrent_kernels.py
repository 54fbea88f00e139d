"""Recurrent layers by oneDNN's kernels against NumPy's steps around oneDNN's products.

Recorded training steps and evaluations of a net of one layer, one thread, in turn, round by round;
milliseconds of processor time. The last column is what singanet takes by itself.

    python benchmarks/recurrent_kernels.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402 - after the number of threads
from report import interleaved, publish, table  # noqa: E402

import singanet  # noqa: E402
from singanet.device import Device  # noqa: E402
from singanet.layers import RNN  # noqa: E402
from singanet.ops import NumpyOps  # noqa: E402
from singanet.ops.onednn import (  # noqa: E402
    OneDnnOps,
    find_library,
    recurrent,
)

# steps, batch, inputs, units
SIZES = [
    (20, 1, 64, 64),
    (60, 1, 128, 128),
    (50, 1, 256, 256),
    (20, 8, 32, 32),
    (60, 4, 256, 256),
    (20, 32, 64, 64),
    (50, 32, 128, 256),
    (50, 32, 512, 512),
    (50, 128, 64, 128),
]
KINDS = ["gru", "tanh"]
ROUNDS = 9
_LEAST = 2e-3


class NumpySteps(OneDnnOps):
    """Everything else by oneDNN."""

    gru_layer, gru_layer_backward = NumpyOps.gru_layer, NumpyOps.gru_layer_backward
    elman_layer, elman_layer_backward = NumpyOps.elman_layer, NumpyOps.elman_layer_backward


def runs(kind: str, sizes: tuple[int, ...], ops: OneDnnOps) -> list[Callable[[], object]]:
    """A training step and an evaluation."""
    steps, n, size, width = sizes
    shape = (steps, size)
    layer = RNN("r", width, kind, input_shape=shape)
    net = singanet.FeedForwardNet([layer], loss=singanet.loss.SquaredError(), seed=0)
    net.to_device(Device("cpu", ops))
    x = np.random.default_rng(0).standard_normal((n, *shape)).astype(np.float32)
    y = np.zeros((n, steps, width), np.float32)
    step, evaluation = net.record(x, y, singanet.optimizer.SGD(1e-3)), net.record(x)
    return [repeated(lambda: step.run(x, y)), repeated(lambda: evaluation.run(x))]


def repeated(run: Callable[[], object]) -> Callable[[], float]:
    """As many calls as the clock needs; it returns the seconds of one."""
    run()
    start = time.process_time()
    run()
    count = max(1, round(_LEAST / max(time.process_time() - start, 1e-6)))

    def several() -> float:
        start = time.process_time()
        for _ in range(count):
            run()
        return (time.process_time() - start) / count

    return several


def row(kind: str, sizes: tuple[int, ...]) -> list[str]:
    """A line of the table."""
    path = find_library()
    assert path is not None, "pip install onednn-cpu-gomp"
    taken: dict[str, list[float]] = {}
    entrants: dict[str, Callable[[], object]] = {}
    for name, kernels in (("numpy", NumpySteps), ("onednn", OneDnnOps)):
        pair = runs(kind, sizes, kernels(path, True))
        for what, run in zip(("step", "evaluation"), pair, strict=True):
            key = f"{what} {name}"
            taken[key] = []
            entrants[key] = lambda run=run, key=key: taken[key].append(run())  # type: ignore[misc]
    interleaved(entrants, ROUNDS)
    medians = {key: 1e3 * statistics.median(values) for key, values in taken.items()}
    cells = [kind, "×".join(map(str, sizes))]
    for what in ("step", "evaluation"):
        a, b = medians[f"{what} numpy"], medians[f"{what} onednn"]
        cells += [f"{a:.3f}", f"{b:.3f}", f"{a / b:.2f}"]
    return cells


def taken_by_itself(kind: str, sizes: tuple[int, ...]) -> bool:
    """Whether oneDNN's kernel is what singanet takes."""
    steps, n, _, width = sizes
    if kind == "gru":
        return n > 1 or width < recurrent._WIDE
    return steps >= recurrent._STEPS and n * width <= recurrent._STATE


if __name__ == "__main__":
    chosen = [(kind, sizes) for kind in KINDS for sizes in SIZES]
    marks = ["onednn" if taken_by_itself(*each) else "numpy" for each in chosen]
    recurrent._WIDE, recurrent._STEPS, recurrent._STATE = 1 << 30, 0, 1 << 60
    head = ["kind", "steps×batch×inputs×units", "step NumPy", "oneDNN", "ratio"]
    head += ["evaluation NumPy", "oneDNN", "ratio", "taken"]
    lines = [[*row(*each), mark] for each, mark in zip(chosen, marks, strict=True)]
    publish("recurrent_kernels_1t", "Recurrent kernels", table(head, lines))
