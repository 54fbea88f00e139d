"""What `net.memory` predicts beside what the process takes, for every ready net.

Each figure comes from a process of its own: three steps with `SGD` and momentum, the first by the
layers, the second recorded, the third replayed. Measured is the most resident memory beyond what
the process held before the net was built; by then a small net had trained, so that modules,
libraries and their threads were there, and the batch was made. Off is the prediction less the
measurement; it should be within 2 % + 2 MB.

Nets of large vocabularies have a table of their own, by ``--words`` (`memory_words.py`).

    python benchmarks/memory_budget.py [--large] [--two-threads] [numpy] [onednn] [NET ...]
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import memory_words
import numpy as np
from apart import begin, forget_peak, fresh, on_threads, peak, resident
from report import introduction, publish, table

from singanet.models import build, entries, find
from singanet.optimizer import SGD

MB = 1e6
BATCHES = (1, 8, 32)
LARGE = 64 << 20
"""Values of all inputs and outputs of layers from which a batch is left to ``--large``."""


def batch_of(name: str, size: int) -> tuple[Any, Any]:
    """Random inputs and targets for the ready net ``name``, in its usual form."""
    entry, rng = find(name), np.random.default_rng(0)
    if entry.task == "text":
        ids = rng.integers(0, 90, (size, *entry.input_shape))
        return ids, ids
    if entry.task == "tabular":
        columns, numbers = entry.input_shape
        x = {
            "categorical": rng.integers(0, 2, (size, columns)),
            "numeric": rng.standard_normal((size, numbers), np.float32),
        }
        return x, rng.integers(0, 2, size)
    x = rng.standard_normal((size, *entry.input_shape), np.float32)
    if entry.task == "reconstruction":
        return x, x
    # A class for each pixel, or for the image.
    pixels = entry.input_shape[1:] if entry.task == "segmentation" else ()
    return x, rng.integers(0, entry.num_classes or 10, (size, *pixels))


def measured(name: str, size: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """The prediction, and the resident peak of this process, which has done nothing else yet."""
    x, y = batch_of(name, size)
    # Modules, libraries and threads, which no net takes along.
    small, optimizer = build("lenet", seed=0), SGD(lr=0.01, momentum=0.9)
    for _ in range(3):
        small.step(*batch_of("lenet", 2), optimizer)
    small.memory(1)
    small.compile(optimizer)
    small.fit(*batch_of("lenet", 2), verbose=False)
    del small, optimizer
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("RssAnon")
    forget_peak()
    net, optimizer = build(name, seed=0), SGD(lr=0.001, momentum=0.9)
    net.compile(optimizer)
    peaks = []
    for _ in range(3):
        net.step(x, y, optimizer)
        peaks.append(peak() - before)
        forget_peak()
    now = resident("RssAnon") - before
    # As it was before: parameters are yet to be filled, and the optimizer's state to be made.
    told = build(name, seed=0).memory(size, SGD(lr=0.001, momentum=0.9))
    return {"measured": max(peaks), "steps": peaks, "held": now, "told": told.total, **told.parts}


def child(kernels: str, threads: int, name: str, size: int) -> dict[str, Any] | str:
    """`measured` in a fresh process."""
    found: dict[str, Any] | str = fresh(
        __file__, [name, size], SINGANET_OPS=kernels, **on_threads(threads)
    )
    return found


def ready_nets() -> list[str]:
    """The names of those with targets."""
    return [entry.name for entry in entries()]


def rows(kernels: str, names: list[str], large: bool, threads: int) -> list[list[str]]:
    """The lines of one kind of kernels."""
    found = []
    for name in names:
        for size in BATCHES:
            why = _left_out(name, size, large)
            if why is not None:
                found.append([kernels, name, str(size), "", "", "", "", why])
                print(found[-1], file=sys.stderr, flush=True)
                continue
            took = child(kernels, threads, name, size)
            if isinstance(took, str):
                raise SystemExit(f"{name}, {size}: {took}")
            off = took["told"] - took["measured"]
            good = abs(off) <= 0.02 * took["measured"] + 2 * MB
            found.append(
                [
                    kernels,
                    name,
                    str(size),
                    f"{took['told'] / MB:,.1f}",
                    f"{took['measured'] / MB:,.1f}",
                    f"{off / MB:+,.1f}",
                    f"{off / took['measured']:+.1%}",
                    "" if good else "no",
                ]
            )
            print(found[-1], took, file=sys.stderr, flush=True)
    return found


def _left_out(name: str, size: int, large: bool) -> str | None:
    """Why a row is not measured, if so."""
    if size < _fewest(name):
        return f"takes {_fewest(name)} samples at least"
    if not large and _values(name) * size > LARGE:
        return "only with --large"
    return None


def _fewest(name: str) -> int:
    return max(
        step.layer.traits.fewest_samples for step in build(name, seed=0)._execution_plan().steps
    )


def _values(name: str) -> int:
    plan = build(name, seed=0)._execution_plan()
    return sum(int(np.prod(shape)) for shape in plan.slot_shapes if -1 not in shape)


def main(arguments: list[str]) -> None:
    """The table."""
    if "--words" in arguments:
        memory_words.main(arguments)
        return
    large, threads = "--large" in arguments, 1 + ("--two-threads" in arguments)
    kinds = [a for a in arguments if a in ("numpy", "onednn")] or ["numpy", "onednn"]
    named = [a for a in arguments if a not in (*kinds, "--large", "--two-threads")]
    names = named or ready_nets()
    head = ["kernels", "net", "batch", "predicted MB", "measured MB", "off MB", "off", "within"]
    lines = [row for kinds_ in kinds for row in rows(kinds_, names, large, threads)]
    body = table(head, lines)
    if named:
        print(body)
        return
    text = introduction(__doc__)
    publish(
        "memory_budget" + ("_2t" if threads > 1 else ""),
        "Memory as predicted and as measured",
        f"{text}\n\n{body}",
    )


if __name__ == "__main__":
    begin(measured, main)
