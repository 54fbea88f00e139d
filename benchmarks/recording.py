"""Recorded training steps against steps by the layers: memory, time, and what replaying costs.

Every figure comes from a process of its own, on one thread, with `SGD` and momentum. Resident
memory is the peak over two steps beyond what the process held before the net was built; planned
are arena, parameters, optimizer state and the batch. Times are processor seconds a step, medians
of interleaved runs. The overhead is that of a replay with each kernel timed: the run less its
kernels, by the number of kernels, two readings of the clock each included.

    python benchmarks/recording.py [numpy] [onednn] [chains]
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from report import interleaved, publish, spread, table

import singanet
from singanet.layers import BatchNormalization, Dense
from singanet.optimizer import SGD

CASES = [("mlp", 32, 40), ("lenet", 32, 20), ("resnet20", 32, 6), ("resnet50", 8, 3)]
"""Ready net, batch size, rounds."""
CHAINS = [(kind, layers) for kind in ("even", "uneven") for layers in (100, 1000, 10000)]
"""Kind and layers: narrow dense ones, or dense ones of many widths and normalisations by turns."""
MB = 1 << 20


def made(name: str, batch: int, level: str) -> tuple[Any, SGD, Any, Any]:
    """A net, its optimizer and a batch; ImageNet's size for ResNet-50."""
    net = singanet.models.build(name, seed=0)
    net.programs.enabled = level != "layers"
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, *net.nodes()[0].layer.in_shapes)).astype(np.float32)
    return net, SGD(lr=0.01, momentum=0.9), x, rng.integers(0, 10, batch)


def stepper(name: str, batch: int, level: str) -> tuple[Any, SGD, Callable[[], object]]:
    """A net, its optimizer, and what makes one step; a recorded one never ran by its layers."""
    net, optimizer, x, y = made(name, batch, level)
    if level == "layers":
        return net, optimizer, lambda: net.step(x, y, optimizer)
    program = net.record(x, y, optimizer, recompute=recompute(net, batch, level))
    return net, optimizer, lambda: program.run(x, y)


def recompute(net: Any, batch: int, level: str) -> Any:
    """What a net is to recompute: as named, or for "half" so many bytes."""
    if level != "half":
        return level
    return net.memory(batch, recompute="none").parts["arena"] // 2


def status(field: str) -> int:
    """Bytes that Linux counts for this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def resident(name: str, batch: int, level: str) -> dict[str, float]:
    """The resident peak of two steps, and the plan."""
    # Imports, libraries and their code for the kernels, which no net takes along.
    stepper(name, 1, "layers" if level == "layers" else "none")[2]()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    net, optimizer, step = stepper(name, batch, level)
    step()
    step()
    peak = status("VmHWM") - before
    sample = int(np.prod(net.nodes()[0].layer.in_shapes))
    wanted = "none" if level == "layers" else recompute(net, batch, level)
    planned = net.memory(batch, optimizer, recompute=wanted)
    return {"peak": peak, "planned": planned.total + 4 * sample * batch, **planned.parts}


def allocated(name: str, batch: int) -> dict[str, float]:
    """The peak of what NumPy allocates in a step by layers beyond what lives between steps."""
    net, optimizer, x, y = made(name, batch, "layers")
    net.step(x, y, optimizer)
    gc.collect()
    tracemalloc.start()
    net.step(x, y, optimizer)
    return {"peak": tracemalloc.get_traced_memory()[1]}


def times(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Processor seconds a step, both ways, and the overhead of a replay a kernel."""
    by_layers = stepper(name, batch, "layers")[2]
    net, optimizer, x, y = made(name, batch, "none")
    program = net.record(x, y, optimizer)
    runs = {"layers": by_layers, "recorded": lambda: program.run(x, y)}
    seconds = interleaved(runs, rounds, time.process_time)
    over, kernels, before = [], 0, 0.0
    for k in range(max(rounds, 5)):
        start = time.perf_counter()
        program.run(x, y, timed=True)
        whole = time.perf_counter() - start
        told = program.report().seconds or []
        kernels, total = len(told), (k + 1) * sum(told)
        over.append((whole - (total - before)) / kernels)
        before = total
    ratios = [a / b for a, b in zip(seconds["recorded"], seconds["layers"], strict=True)]
    return {
        "layers": statistics.median(seconds["layers"]),
        "recorded": statistics.median(seconds["recorded"]),
        "ratio": statistics.median(ratios),
        "spread": spread(ratios),
        "kernels": kernels,
        "overhead": statistics.median(over[1:]),
        "python": program.notes,
    }


def chain(kind: str, layers: int) -> tuple[Any, SGD, Any, Any]:
    """A chain that ran once by its layers, its optimizer and a batch."""
    net = singanet.FeedForwardNet(singanet.loss.SquaredError(), seed=0)
    widths = random.Random(0)
    for k in range(layers):
        if kind == "uneven" and k % 2:
            net.add(BatchNormalization(f"norm{k}"))
        else:
            width = 8 if kind == "even" else widths.randint(4, 96)
            net.add(Dense(f"fc{k}", width, **({} if k else {"input_sample_shape": (8,)})))
    optimizer, x = SGD(lr=1e-3), np.ones((4, 8), np.float32)
    y = np.zeros_like(net.forward(False, x))
    net.step(x, y, optimizer)
    return net, optimizer, x, y


def recorded(net: Any, optimizer: SGD, x: Any, y: Any) -> float:
    """Processor seconds to record a step, plan it, and replay it the first time."""
    start = time.process_time()
    net.record(x, y, optimizer).run(x, y)
    return time.process_time() - start


def times_of_chain(kind: str, layers: int) -> dict[str, float]:
    """Seconds to record a chain, after one of a tenth of the layers to warm up."""
    recorded(*chain(kind, layers // 10))
    return {"seconds": recorded(*chain(kind, layers))}


MODES: dict[str, Callable[..., dict[str, Any]]] = {
    "resident": resident,
    "allocated": allocated,
    "times": times,
    "times_of_chain": times_of_chain,
}


def child(ops: str, mode: str, *arguments: object, script: str = __file__) -> dict[str, Any]:
    """What a process of its own measures."""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS")}
    # Freed memory goes back to the system, so that what is resident is what is held.
    env = {**os.environ, **one, "SINGANET_OPS": ops, "MALLOC_MMAP_THRESHOLD_": "65536"}
    if mode.startswith("times"):
        del env["MALLOC_MMAP_THRESHOLD_"]
    asked = json.dumps([mode, *arguments])
    call = [sys.executable, script, "--child", asked]
    run = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def megabytes(size: float) -> str:
    """In MB with a digit."""
    return f"{size / MB:,.1f}"


def rows(ops: str) -> tuple[list[list[str]], list[list[str]]]:
    """Memory and times of every case."""
    memory, speed = [], []
    for name, batch, rounds in CASES:
        title = [ops, f"{name}, {batch}"]
        replayed = child(ops, "resident", name, batch, "none")
        layers = child(ops, "resident", name, batch, "layers")
        beyond = child(ops, "allocated", name, batch)["peak"]
        memory.append(
            [
                *title,
                megabytes(replayed["planned"]),
                megabytes(replayed["peak"]),
                f"{100 * (replayed['peak'] / replayed['planned'] - 1):+.1f} %",
                megabytes(layers["peak"]),
                f"{100 * (1 - replayed['peak'] / layers['peak']):.0f} %",
                megabytes(replayed["arena"]),
                megabytes(beyond),
                f"{100 * (1 - replayed['arena'] / beyond):.0f} %",
            ]
        )
        took = child(ops, "times", name, batch, rounds)
        speed.append(
            [
                *title,
                f"{1e3 * took['layers']:,.2f}",
                f"{1e3 * took['recorded']:,.2f}",
                f"{took['ratio']:.2f} {took['spread']}",
                f"{took['kernels']:,}",
                f"{1e6 * took['overhead']:.2f}",
                f"{len(took['python'])}",
            ]
        )
        print(memory[-1], speed[-1], file=sys.stderr)
    return memory, speed


def chains(backends: list[str]) -> None:
    """The table of what it takes to record long chains."""
    found = []
    for ops, (kind, layers) in product(backends, CHAINS):
        seconds = child(ops, "times_of_chain", kind, layers)["seconds"]
        each = f"{1e6 * seconds / layers:.0f}"
        found.append([ops, kind, f"{layers:,}", f"{seconds:.2f}", each])
        print(found[-1], file=sys.stderr)
    text = (
        "Processor seconds to record a step, plan it and replay it once. Even: narrow dense "
        "layers; uneven: dense layers of many widths and normalisations by turns. What a layer "
        "takes should not depend on how many there are."
    )
    body = table(["kernels", "chain", "layers", "s", "µs a layer"], found)
    publish("recording_chains", "Recording long chains", f"{text}\n\n{body}")


def main(backends: list[str]) -> None:
    """Both tables."""
    memory: list[list[str]] = []
    speed: list[list[str]] = []
    for ops in backends:
        for table_rows, new in zip((memory, speed), rows(ops), strict=True):
            table_rows += new
    head = ["kernels", "net, batch"]
    held = ["planned MB", "resident MB", "off by", "by layers MB", "less",
            "arena MB", "allocated by layers MB", "less"]  # fmt: skip
    took = ["by layers ms", "recorded ms", "ratio", "kernels", "overhead µs", "Python steps"]
    body = "\n\n".join(
        [
            str(__doc__).partition("\n\n    python")[0].partition("\n\n")[2],
            "## Memory",
            table([*head, *held], memory),
            "Allocated by layers: what `tracemalloc` sees of a step by the layers beyond what "
            "lives between steps; kernels' own scratch is in resident memory alone.",
            "## Time",
            table([*head, *took], speed),
        ]
    )
    publish("recording", "Recorded training steps and steps by the layers", body)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, *arguments = json.loads(sys.argv[2])
        print(json.dumps(MODES[mode](*arguments)))
    else:
        words = sys.argv[1:]
        named = [word for word in words if word != "chains"] or ["numpy", "onednn"]
        if "chains" not in words:
            main(named)
        chains(named)
