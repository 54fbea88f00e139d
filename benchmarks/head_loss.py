"""Head and softmax cross-entropy by blocks of rows against whole scores, and against PyTorch.

``python benchmarks/head_loss.py`` prints, for tokens of a vocabulary, the seconds of a step of
embedding, normalisation and head, and the most memory that it takes above the interpreter with its
libraries.
Each figure comes from a process of its own. Rows are by kernels (``--ops``) and whether the table
is tied; PyTorch's is the same net with `torch.optim.SGD`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SHAPES = [
    (512, 49152, 576),
    (512, 49152, 64),
    (256, 8192, 576),
    (2048, 49152, 64),
    (512, 151936, 896),
]
STEPS = 6


def resident(field: str) -> float:
    """``VmHWM`` or ``VmRSS`` in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def timed(step: Callable[[], float], before: float) -> dict[str, float]:
    """The least process seconds of some steps, and the peak above ``before``."""
    found = []
    for _ in range(STEPS):
        start = time.process_time()
        loss = step()
        found.append(time.process_time() - start)
    return {"seconds": min(found), "peak": resident("VmHWM") - before, "loss": float(loss)}


def ours(rows: int, words: int, width: int, tied: bool, whole: bool) -> dict[str, float]:
    """The step by singanet."""
    import numpy as np

    import singanet
    from singanet.layers import Dense, Embedding, Input, LayerNorm
    from singanet.loss import SoftmaxCrossEntropy, head_loss
    from singanet.optimizer import SGD

    if whole:
        head_loss.BLOCK = 1 << 50
    before = resident("VmRSS")
    ids = Input("ids", (rows,), "int64")
    table = Embedding("table", words, width)
    h = LayerNorm("norm")(table(ids))
    shared = {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    scores = Dense("fc", words, use_bias=False, **shared)(h)
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=0)
    net.programs.at_once = True
    x, y = np.random.default_rng(0).integers(0, words, (2, 1, rows))
    rule = SGD(lr=0.1)
    found = timed(lambda: net.step(x, y, rule)[0], before)
    return {**found, "planned": net.memory(1, rule).total / 1e6}


def theirs(rows: int, words: int, width: int, tied: bool, whole: bool) -> dict[str, float]:
    """The step by PyTorch."""
    import numpy as np
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    before = resident("VmRSS")
    table, norm = torch.nn.Embedding(words, width), torch.nn.LayerNorm(width)
    head = torch.nn.Linear(width, words, bias=False)
    if tied:
        head.weight = table.weight
    net = torch.nn.Sequential(table, norm, head)
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = map(torch.tensor, np.random.default_rng(0).integers(0, words, (2, rows)))

    def step() -> float:
        rule.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        rule.step()
        return loss.item()

    return timed(step, before)


def measured(side: str, ops: str, threads: int, *case: int) -> dict[str, float]:
    """One side's figures, from a process of its own."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads)), "SINGANET_OPS": ops}
    command = [sys.executable, __file__, "--side", json.dumps([side, *case])]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    """The table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--side", help=argparse.SUPPRESS)
    options.add_argument("--ops", nargs="*", default=["numpy", "onednn"])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--shapes", type=int, nargs="*", default=range(len(SHAPES)))
    given = options.parse_args()
    if given.side:
        side, *case = json.loads(given.side)
        print(json.dumps((theirs if side == "torch" else ours)(*case, side == "whole")))
        return
    print(
        "| tokens × words × width | table | kernels | whole s, MB | blocks s, MB (planned)"
        " | torch s, MB |"
    )
    print("|---|---|---|---|---|---|")
    for shape in (SHAPES[k] for k in given.shapes):
        for tied in (False, True):
            peer = measured("torch", "numpy", given.threads, *shape, tied)
            for ops in given.ops:
                whole, blocks = (
                    measured(s, ops, given.threads, *shape, tied) for s in ("whole", "blocks")
                )
                print(
                    f"| {' × '.join(f'{n:,}' for n in shape)} | {'tied' if tied else 'own'} | {ops}"
                    f" | {whole['seconds']:.3f}, {whole['peak']:.0f}"
                    f" | {blocks['seconds']:.3f}, {blocks['peak']:.0f} ({blocks['planned']:.0f})"
                    f" | {peer['seconds']:.3f}, {peer['peak']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
