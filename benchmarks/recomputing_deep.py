"""ResNet-152 that recomputes within a part of its arena, and chains against exact schedules.

ResNet-152 at batch 8, 224×224, `SGD` with momentum, one thread. Every program and both steps of
PyTorch run in one process in turn; times are processor seconds a step, medians of two rounds on
a machine that did other work beside. Resident memory is
the peak over two steps beyond what a process of its own held before the net was built. PyTorch
runs with nothing, and with `torch.utils.checkpoint` around each block.

    python benchmarks/recomputing_deep.py [onednn] [numpy]
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recording import child, made, megabytes, status
from report import interleaved, publish, spread, table
from torch import nn
from torch.utils.checkpoint import checkpoint
from twins.residual import resnet152

from singanet.engine.recompute.cheapest_path import ChainStage, Option, Schedules

PARTS = (None, 0.4, 0.3)
"""Of the arena that is taken without; None for that itself."""
BATCH, ROUNDS = 8, 2
CHAINS = (10, 50, 100, 200)


class Checkpointed(nn.Module):
    """A sequence of which every bottleneck block runs again for its backward."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the sequence."""
        for part in self.inner:
            again = type(part).__name__ == "_Bottleneck"
            x = checkpoint(part, x, use_reentrant=False) if again else part(x)
        return x


def peer(kind: str) -> Callable[[], object]:
    """A training step of PyTorch, "plain" or "checkpoint"."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net: nn.Module = resnet152() if kind == "plain" else Checkpointed(resnet152())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(BATCH, 3, 224, 224), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def budget(plain: int, part: float | None) -> Any:
    """The level for a part of the arena."""
    return "none" if part is None else int(part * plain)


def times() -> dict[str, Any]:
    """Arena, planning time and seconds a step for every part, and the seconds of PyTorch."""
    net, optimizer, x, y = made("resnet152", BATCH, "none")
    runs: dict[str, Callable[[], object]] = {}
    found: dict[str, Any] = {}
    plain = planned = 0
    for part in PARTS:
        start = time.process_time()
        program = net.record(x, y, optimizer, recompute=budget(plain, part))
        took = time.process_time() - start
        report = program.report()
        plain, planned = plain or report.layout.nbytes, planned or took
        name = "program" if part is None else f"program, {part} of the arena"
        runs[name] = partial(program.run, x, y)
        found[name] = {
            "arena": report.layout.nbytes,
            "kernels": report.recomputed_kernels,
            "planning": took - planned,
        }
    for kind in ("plain", "checkpoint"):
        runs[f"PyTorch, {kind}"] = peer(kind)
        found[f"PyTorch, {kind}"] = {}
    seconds = interleaved(runs, ROUNDS, time.process_time)
    for name, figures in found.items():
        base = "PyTorch, plain" if name.startswith("PyTorch") else "program"
        ratios = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
        figures |= {
            "seconds": statistics.median(seconds[name]),
            "ratio": statistics.median(ratios),
            "spread": spread(ratios),
        }
    return found


def resident(name: str, part: float | None) -> int:
    """The peak of two steps, beyond what was held before the net."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    if name.startswith("PyTorch"):
        step = peer(name.partition(", ")[2])
    else:
        net, optimizer, x, y = made("resnet152", BATCH, "none")
        plain = 0 if part is None else net.memory(BATCH, optimizer).parts["arena"]
        gc.collect()
        program = net.record(x, y, optimizer, recompute=budget(plain, part))
        step = partial(program.run, x, y)
    step()
    step()
    return status("VmHWM") - before


def deep(ops: str) -> str:
    """ResNet-152 by kernels ``ops``, as a table."""
    found = child(ops, "times", script=__file__)
    plain, rows = found["program"]["arena"], []
    for name, figures in found.items():
        part = float(name.split()[1]) if "of the arena" in name else None
        arena = figures.get("arena")
        rows.append(
            [
                ops if arena else "",
                name,
                megabytes(arena) if arena else "",
                f"{arena / plain:.2f}" if arena else "",
                f"{figures['kernels']:,}" if arena else "",
                f"{figures['planning']:.1f}" if arena else "",
                megabytes(child(ops, "resident", name, part, script=__file__)),
                f"{1e3 * figures['seconds']:,.0f}",
                f"{figures['ratio']:.2f} {figures['spread']}",
            ]
        )
        print(rows[-1], file=sys.stderr)
    head = ["kernels", "step", "arena MB", "of plain", "again", "planning s", "resident MB", "ms",
            "ratio"]  # fmt: skip
    return table(head, rows)


def uneven(count: int) -> list[ChainStage]:
    """A chain whose stages take and keep different amounts."""
    draw, stages = random.Random(count), []
    for _ in range(count):
        output = draw.randint(1, 8)
        saved = output + draw.randint(0, 8)
        option = Option(saved, saved + draw.randint(0, 2), saved + output + draw.randint(0, 4))
        stages.append(ChainStage(float(draw.randint(1, 9)), output, output, (option,)))
    return stages


def chains() -> str:
    """How long schedules take to find, and what they cost."""
    rows = []
    for count in CHAINS:
        stages = uneven(count)
        whole = sum(stage.options[0].saved for stage in stages) + 20
        start = time.process_time()
        schedules = Schedules(stages, whole)
        took = time.process_time() - start
        once = sum(stage.time for stage in stages)
        least = schedules.least() or 0
        parts = [schedules.time(int(part * whole)) / once for part in (0.5, 0.3, 0.2)]
        rows.append(
            [
                str(count),
                f"{took:.2f}",
                f"{least / whole:.2f}",
                f"{schedules.time(least) / once:.2f}",
                *(f"{part:.2f}" if part < float("inf") else "none" for part in parts),
            ]
        )
    head = ["stages", "seconds to find", "least memory", "forwards then", "at 0.5", "at 0.3",
            "at 0.2"]  # fmt: skip
    return table(head, rows)


def main(backends: list[str]) -> None:
    """The tables."""
    body = [
        str(__doc__).partition("\n\n    python")[0].partition("\n\n")[2],
        *(deep(ops) for ops in backends),
        "The ratio is to the program without, and to PyTorch without. Again: kernels that run "
        "once more. Planning: beyond that of the program without.",
        "Chains of uneven stages: how much their forwards take in all, run once being 1, within "
        "parts of the memory that keeping all takes. That these times are the least is tested in "
        "`tests/engine/recompute/test_chain.py`.",
        chains(),
    ]
    publish("recomputing_deep", "Recomputing deep nets", "\n\n".join(body))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, *arguments = json.loads(sys.argv[2])
        modes: dict[str, Callable[..., Any]] = {"times": times, "resident": resident}
        print(json.dumps(modes[mode](*arguments)))
    else:
        main(sys.argv[1:] or ["onednn"])
