"""Training steps on a CUDA device against PyTorch's: eager, compiled, and one captured graph.

Nets, batches, the optimizer (SGD with momentum) and the number of parameters are the same, and
both sides multiply float32 as it is (no TF32). All run in one process, round by round; a turn is
some steps whose losses are read, so the device is done when the clock stops. It needs CuPy, a
GPU and PyTorch's build for CUDA.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --rows mlp:128,char_rnn:32 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cupy
import torch
import twins
from cases import Case, batch_of, build, parameters
from report import introduction, publish, table
from rivals import LR, MOMENTUM
from torch.nn.functional import cross_entropy

import singanet
from singanet.device import cuda

ROWS = ("64-64-10:32", "mlp:128", "lenet:128", "char_rnn:32", "transformer:32", "resnet20:128",
        "resnet50:32")  # fmt: skip
STEPS = 10
"""Steps of a turn."""

Step = Callable[[], float]


def ours(case: Case) -> tuple[Step, int]:
    """A step of singanet, and how many numbers it trains."""
    net, (x, y) = build(case.model), batch_of(case.model, case.batch)
    net.to_device(cuda())
    x, y = net.device.put(x), net.device.put(y)
    sgd = singanet.optimizer.SGD(lr=LR, momentum=MOMENTUM)
    return lambda: net.step(x, y, sgd)[0], parameters(net)


def theirs(case: Case, form: str) -> tuple[Step, int]:
    """A step of PyTorch in that form, and how many numbers it trains."""
    torch.manual_seed(0)
    torch.compiler.reset()
    net, (x, y) = twins.build(case.model).cuda(), batch_of(case.model, case.batch)
    x, y = torch.from_numpy(x).cuda(), torch.from_numpy(y).flatten().cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=True)
    run = torch.compile(net) if form == "compiled" else net

    def step() -> torch.Tensor:
        sgd.zero_grad()
        loss = cross_entropy(run(x).flatten(0, -2), y)
        loss.backward()
        sgd.step()
        return loss

    count = sum(p.numel() for p in net.parameters())
    if form != "graph":
        return lambda: step().item(), count
    # As PyTorch asks for: some steps on a stream of their own before the capture.
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replayed(held: object = step) -> float:
        # A graph holds no tensor that it reads: net and batch live with ``held``.
        graph.replay()
        return loss.item()

    return replayed, count


def turn(step: Step) -> float:
    """Seconds of a step: the mean of some, each of whose losses is read."""
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - start) / STEPS


def row(case: Case, rounds: int) -> tuple[list[str], list[str]]:
    """The cells of a row, and what could not run."""
    makers: dict[str, Callable[[], tuple[Step, int]]] = {"singanet": lambda: ours(case)}
    for form in ("eager", "compiled", "graph"):
        makers[form] = lambda form=form: theirs(case, form)
    steps, counts, notes = {}, {}, []
    for name, make in makers.items():
        try:
            steps[name], counts[name] = make()
            turn(steps[name])  # compiles and fills pools
        except Exception as error:  # noqa: BLE001 - a rival that fails is told, and the others go on
            steps.pop(name, None)
            notes.append(f"{case.name}, {name}: {type(error).__name__}: {str(error)[:300]}")
    if len(set(counts.values())) > 1:
        raise SystemExit(f"{case.name}: the rivals train {counts} parameters")
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(turn(step))
    middle = {name: 1e3 * statistics.median(times) for name, times in taken.items()}
    own = taken.get("singanet")
    ratios = [
        f"{statistics.median(a / b for a, b in zip(taken[name], own, strict=True)):.2f}"
        if own and name in taken
        else "—"
        for name in ("eager", "compiled", "graph")
    ]
    return [
        case.name,
        *(f"{middle[n]:.3g}" if n in middle else "—" for n in makers),
        *ratios,
    ], notes


def main() -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no row is begun")
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    lines, notes, start = [], [], time.perf_counter()
    for name in given.rows.split(","):
        if time.perf_counter() - start > given.seconds:
            notes.append(f"No time was left for {name}.")
            continue
        model, _, batch = name.rpartition(":")
        line, told = row(Case(model, int(batch)), given.rounds)
        print(line, told, file=sys.stderr, flush=True)
        lines.append(line)
        notes += told
        cupy.get_default_memory_pool().free_all_blocks()
        torch.cuda.empty_cache()
    header = ["net:batch", "singanet, ms", "eager, ms", "compiled, ms", "graph, ms",
              "eager / ours", "compiled / ours", "graph / ours"]  # fmt: skip
    properties: Any = cupy.cuda.runtime.getDeviceProperties(0)
    about = (
        f"{properties['name'].decode()}, CuPy {cupy.__version__}, PyTorch {torch.__version__}. "
        f"Medians of {given.rounds} rounds of {STEPS} steps; ratios above 1 where singanet is "
        "faster."
    )
    body = "\n".join([introduction(__doc__), "", about, "", table(header, lines), "", *notes])
    publish("gpu", "Training steps on a GPU against PyTorch", body)


if __name__ == "__main__":
    main()
