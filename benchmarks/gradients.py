"""Gradients of an inner layer of ResNet-50 by the image, and what they have to cost.

A turn each, one after the other in every round, of: `net.gradients` of the last layer of a stage by
the image; a training step of a net that ends there, all of whose calls are timed, from which those
remain that such a gradient needs, without updates and gradients of parameters; and
torch.autograd.grad on a twin with the same inputs. Batch statistics are taken in all three.

    python benchmarks/gradients.py [--threads N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

OPTIONS = argparse.ArgumentParser(description=__doc__)
OPTIONS.add_argument("--threads", type=int, default=1)
THREADS = OPTIONS.parse_args().threads if __name__ == "__main__" else 1
# Libraries read them once, when they are loaded.
os.environ["SINGANET_OPS"] = "onednn"
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(THREADS)

import numpy as np  # noqa: E402
from report import publish, spread, table  # noqa: E402

import singanet  # noqa: E402
from singanet.loss import SquaredError  # noqa: E402
from singanet.optimizer import SGD  # noqa: E402

BATCH, ROUNDS = 4, 9
STAGES = (1, 2, 3)
FACTOR = "factor"
CLOCK = time.process_time
"""Processor seconds, since the machine may be busy; calls of programs are timed by it, too."""


def last_of(net: Any, stage: int) -> str:
    """The last layer of ``stage``."""
    return [
        step.name for step in net._execution_plan().steps if step.name.startswith(f"stage{stage}_")
    ][-1]


def truncated(stage: int) -> Any:
    """ResNet-50 up to the end of ``stage``, with a loss there, and a factor on the image.

    The factor is trained, so that a step has the gradient by the image among its calls.
    """
    net = singanet.models.build("resnet50", seed=0)
    config, last = net.to_config(), last_of(net, stage)
    image, *layers = config["layers"]
    names = [layer["name"] for layer in layers]
    factor = {"name": FACTOR, "class": "Scale", "arguments": {"name": FACTOR},
              "sources": [[image["name"], None]]}  # fmt: skip
    layers[0]["sources"] = [[FACTOR, None]]
    config["layers"] = [image, factor, *layers[: names.index(last) + 1]]
    config["outputs"] = [[last, 0]]
    made = singanet.FeedForwardNet.from_config(config, seed=0)
    made.loss, made.metric = SquaredError(), None
    return made


def needed(program: Any) -> float:
    """The seconds of the calls of the last step that the gradient by the image needs."""
    return sum(
        call["seconds"]
        for call in program.report().as_dict()["calls"]
        if call["phase"] in ("forward", "backward")
        and call["layer"] != FACTOR
        and call["name"] != "backward_weights"
    )


def theirs(net: Any, stage: int, x: np.ndarray, dy: np.ndarray) -> Callable[[], object]:
    """torch.autograd.grad on the twin, whose parameters ask for no gradients."""
    import torch
    import twins

    torch.set_num_threads(THREADS)
    twin = twins.build("resnet50")
    twins.copy_weights(net, twin)
    twin.requires_grad_(False).train()
    until = 4 + sum((3, 4, 6, 3)[:stage])
    part = twin[:until]
    image, start = torch.from_numpy(x).requires_grad_(), torch.from_numpy(dy)
    return lambda: torch.autograd.grad(part(image), image, start)


def row(stage: int) -> list[str]:
    """Times and memory for the end of one stage."""
    net, part = singanet.models.build("resnet50", seed=0), truncated(stage)
    last, rng = last_of(net, stage), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, 3, 224, 224)).astype(np.float32)
    dy = rng.standard_normal(part.forward(False, x).shape).astype(np.float32)
    program = part.record(x, dy, SGD(lr=0.0))
    peer = theirs(net, stage, x, dy)

    def ours() -> object:
        return net.gradients(last, "image", x, dy, train=True)

    total: list[float] = []

    def timed() -> None:
        with patch("time.perf_counter", CLOCK):
            program.run(x, dy, timed=True)
        # The report has means over all runs.
        total.append(needed(program) * (len(total) + 1))

    seconds: dict[str, list[float]] = {"ours": [], "needed": [], "theirs": []}
    for k in range(ROUNDS + 2):
        for name, run in (("ours", ours), ("needed", timed), ("theirs", peer)):
            start = CLOCK()
            run()
            took = CLOCK() - start
            if name == "needed":
                took = total[-1] - (total[-2] if k else 0.0)
            # The first two calls run by the layers and are recorded.
            if k > 1:
                seconds[name].append(took)
    (report,) = net.programs.reports()
    held = report.as_dict()
    weights = sum("weights" in call["name"] for call in held["calls"])
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["needed"], strict=True)]
    peers = [a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    middle = {name: 1e3 * statistics.median(took) for name, took in seconds.items()}
    return [
        last,
        f"{middle['ours']:,.0f}",
        f"{middle['needed']:,.0f}",
        f"**{statistics.median(ratios):.2f}** {spread(ratios)}",
        f"{middle['theirs']:,.0f}",
        f"{statistics.median(peers):.2f} {spread(peers)}",
        f"{held['bytes']['arena'] / 1e6:,.0f}",
        f"{program.report().as_dict()['bytes']['arena'] / 1e6:,.0f}",
        f"{weights}",
    ]


def main() -> None:
    """Publish the table of all stages."""
    header = ["gradient of", "gradients, ms", "its part of a step, ms", "ratio (spread)",
              "PyTorch, ms", "ratio (spread)", "arena MB", "of a step",
              "gradients of weights"]  # fmt: skip
    body = table(header, [row(stage) for stage in STAGES])
    text = (
        f"By the image, batch {BATCH}, {THREADS} thread(s), processor seconds, {ROUNDS} rounds."
        " Its part of a step: the calls of forward and backward in a recorded training step of a"
        " net that ends there, timed one by one, without updates and gradients of weights."
        " PyTorch: torch.autograd.grad, its parameters asking for no gradients."
        " Gradients of weights: how many calls of the program make one."
    )
    publish(f"gradients_{THREADS}t", "Gradients of inner layers of ResNet-50", f"{body}\n\n{text}")


if __name__ == "__main__":
    main()
