"""Kernels of small convolution nets, layer by layer, beside PyTorch's and the processor's limit.

The nets are `cases.CONVNETS`. singanet's milliseconds are those of a recorded training step's
calls, PyTorch's those of the same operations by themselves, each the least of the rounds, NCHW or
channels last, whichever is faster. The limit of a convolution is its multiplications by the
definition at the pace of a large product of matrices; tiles need fewer, and can be below it. That
of the other layers is what they have to read and write, at the pace of a copy.

    python benchmarks/convnet_kernels.py --threads 1 --rounds 9
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


def options() -> argparse.Namespace:
    """The command line; the threads are set in the environment, which libraries read once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    os.environ["SINGANET_OPS"] = "onednn"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    return chosen


OPTIONS = options()

import numpy as np  # noqa: E402 - after the number of threads
import torch  # noqa: E402
from cases import CASES, CONVNETS, batch_of, build  # noqa: E402
from report import publish, table  # noqa: E402
from torch.nn import functional  # noqa: E402

import singanet  # noqa: E402

Rows = dict[tuple[str, str], float]
"""Seconds by layer and phase, an activation counted with the normalisation before it."""


def least(run: Callable[[], Any]) -> float:
    """The least seconds of the rounds."""
    taken = []
    for _ in range(OPTIONS.rounds + 1):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def ours(model: str, batch: int) -> Rows:
    """Of a recorded step."""
    net, (x, y) = build(model), batch_of(model, batch)
    # So small a rate leaves the numbers of a net at its start: none becomes subnormal.
    program = net.record(x, y, singanet.optimizer.SGD(lr=1e-6, momentum=0.9))
    calls: dict[int, list[dict]] = defaultdict(list)
    for _ in range(OPTIONS.rounds):
        program.run(x, y, timed=True)
        for number, call in enumerate(program.report().as_dict()["calls"]):
            calls[number].append(call)
    rows: Rows = defaultdict(float)
    for same in calls.values():
        layer, phase = same[0]["layer"].replace("relu", "bn"), same[0]["phase"]
        if phase in ("forward", "backward"):
            rows[layer, phase] += min(call["seconds"] for call in same)
    return rows


def theirs(model: str, batch: int, layout: torch.memory_format) -> Rows:
    """Of PyTorch's operations, on images in that layout."""
    rows: Rows = {}
    (channels, side, _), blocks = CONVNETS[model]

    def images(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).contiguous(memory_format=layout)

    for k, block in enumerate(blocks):
        x = images(batch, channels, side, side)
        if block is None:
            side //= 2
            given = x.requires_grad_()
            y, dy = functional.max_pool2d(given, 2), images(batch, channels, side, side)
            rows[f"pool{k}", "forward"] = least(lambda x=x: functional.max_pool2d(x.detach(), 2))
            rows[f"pool{k}", "backward"] = _backward(y, given, dy)
            continue
        outputs, size = block
        weight = images(outputs, channels, size, size)
        dy = images(batch, outputs, side, side)
        rows[f"conv{k}", "forward"] = least(
            lambda x=x, w=weight, p=size // 2: functional.conv2d(x, w, padding=p)
        )
        asked = [k > 0, True, False]
        pads = [size // 2] * 2
        rows[f"conv{k}", "backward"] = least(
            lambda x=x, w=weight, dy=dy, asked=asked, pads=pads: (
                torch.ops.aten.convolution_backward(
                    dy, x, w, None, [1, 1], pads, [1, 1], False, [0, 0], 1, asked
                )
            )
        )
        y = images(batch, outputs, side, side).requires_grad_()
        gamma, beta = torch.ones(outputs, requires_grad=True), torch.zeros(outputs)

        def normalised(y: torch.Tensor, gamma: Any = gamma, beta: Any = beta) -> torch.Tensor:
            return functional.relu(functional.batch_norm(y, None, None, gamma, beta, True))

        rows[f"bn{k}", "forward"] = least(lambda y=y, run=normalised: run(y.detach()))
        rows[f"bn{k}", "backward"] = _backward(normalised(y), y, dy)
        channels = outputs
    return rows


def _backward(y: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> float:
    return least(lambda: torch.autograd.grad(y, x, dy, retain_graph=True))


def limits(model: str, batch: int, product: float, copy: float) -> Rows:
    """By ``product`` multiplications and ``copy`` bytes a second."""
    rows: Rows = {}
    (channels, side, _), blocks = CONVNETS[model]
    for k, block in enumerate(blocks):
        pixels = batch * side * side
        if block is None:
            # Read once, a quarter written with a byte each for the place; back the same way.
            moved = 4 * channels * pixels * 1.25 + channels * pixels / 4
            rows[f"pool{k}", "forward"] = rows[f"pool{k}", "backward"] = moved / copy
            side //= 2
            continue
        outputs, size = block
        forward = pixels * channels * outputs * size * size / product
        rows[f"conv{k}", "forward"] = forward
        rows[f"conv{k}", "backward"] = forward * (2 if k else 1)
        array = 4 * outputs * pixels / copy
        rows[f"bn{k}", "forward"], rows[f"bn{k}", "backward"] = 3 * array, 5 * array
        channels = outputs
    return rows


def peaks() -> tuple[float, float]:
    """Multiplications a second of a product of matrices, bytes a second of a copy."""
    a = np.ones((1024, 1024), np.float32)
    source, target = np.ones(1 << 23, np.float32), np.ones(1 << 23, np.float32)
    product = 1024**3 / least(lambda: a @ a)
    return product, 2 * source.nbytes / least(lambda: np.copyto(target, source))


def main() -> None:
    """Print and keep the table."""
    torch.set_num_threads(OPTIONS.threads)
    product, copy = peaks()
    lines = []
    for case in CASES:
        if case.model not in CONVNETS:
            continue
        mine = ours(case.model, case.batch)
        layouts = torch.contiguous_format, torch.channels_last
        others = [theirs(case.model, case.batch, layout) for layout in layouts]
        bound = limits(case.model, case.batch, product, copy)
        totals = np.zeros(3)
        for key, limit in bound.items():
            row = np.array([mine[key], min(other[key] for other in others), limit])
            totals += row
            lines.append([case.model, *key, *_cells(row)])
        lines.append([f"**{case.model}**", "all", "", *_cells(totals)])
    header = ["net", "layer", "phase", "singanet, ms", "PyTorch, ms", "limit, ms",
              "PyTorch / singanet", "limit / singanet"]  # fmt: skip
    told = (
        f"Peaks: {2 * product / 1e9:.0f} GFLOP/s in a product of 1024 x 1024 matrices, "
        f"{copy / 1e9:.1f} GB/s in a copy of 32 MiB. Least of {OPTIONS.rounds} rounds. Batch "
        "normalisation with the relu after it."
    )
    title = f"Kernels of small convolution nets, {OPTIONS.threads} thread(s)"
    publish(f"convnet_kernels_{OPTIONS.threads}t", title, f"{table(header, lines)}\n\n{told}")


def _cells(row: np.ndarray) -> list[str]:
    mine, other, limit = row
    times = [f"{1000 * seconds:.2f}" for seconds in row]
    return [*times, f"{other / mine:.2f}", f"{limit / mine:.2f}"]


if __name__ == "__main__":
    main()
