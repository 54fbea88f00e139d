"""How close each way of planning an arena comes to the least possible, and how long it takes.

Training steps of ready nets, as recorded, and made-up ones. ``shared pieces`` is MXNet's rule.
Bytes do not depend on the machine; times are the best of three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from report import publish, table
from shared_pieces import share_pieces

import singanet
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import STRATEGIES, Layout, Strategy, plan_arena
from singanet.program.trace.recorder import Recorder

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.program.steps import at_random, chain, residual

Case = tuple[Sequence[Kernel], Sequence[Buffer]]
NETS = [
    ("mlp", 32),
    ("lenet", 1),
    ("lenet", 32),
    ("lenet", 128),
    ("resnet20", 32),
    ("googlenet", 2),
    ("resnet50", 2),
]


def recorded(name: str, batch: int) -> Case:
    """A training step with momentum."""
    net = singanet.models.build(name, seed=0)
    first = net.nodes()[0]
    x, y = np.zeros((batch, *first.layer.in_shapes), np.float32), np.zeros(batch, np.int64)
    recorder = Recorder(net)
    recorder.step({first.name: x}, y, None, singanet.optimizer.SGD(lr=0.1, momentum=0.9))
    recording = recorder.recording()
    return recording.kernels, recording.buffers


def cases() -> Iterator[tuple[str, Case]]:
    """By name."""
    for name, batch in NETS:
        yield f"{name}, batch {batch}", recorded(name, batch)
    yield "chain of 300 layers", chain(300)
    yield "bottlenecks, 4 × ResNet-152", residual((12, 32, 144, 12))
    yield "random reads", at_random(5000)


def timed(case: Case, tried: Mapping[str, Strategy] | None) -> tuple[float, Layout]:
    """Seconds of the best of three, and the layout."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        layout = plan_arena(*case, tried)
        best = min(best, time.perf_counter() - start)
    return best, layout


def main() -> None:
    """Print and write the table."""
    tried = {**STRATEGIES, "shared pieces": share_pieces}
    rows = []
    for name, case in cases():
        seconds, chosen = timed(case, None)
        row = [name, f"{len(case[0]):,}", f"{chosen.unplanned_bytes / chosen.nbytes:.1f}"]
        row += [f"{chosen.nbytes / chosen.lower_bound:.4f}", f"{1e3 * seconds:.0f} ms"]
        for title, strategy in tried.items():
            _, layout = timed(case, {title: strategy})
            row.append(f"{layout.nbytes / layout.lower_bound:.3f}")
        rows.append(row)
    head = ["step", "kernels", "unplanned ÷ planned", "planned ÷ least", "time", *tried]
    kernels = singanet.device.get_default_device().ops.name
    title = f"Planned arenas ÷ the least possible, kernels of {kernels}"
    publish(f"arena_{kernels}", title, table(head, rows))


if __name__ == "__main__":
    main()
