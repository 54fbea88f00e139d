"""What the reductions send a step, and what they cost in accuracy: two processes, real MPI.

    mpirun -n 2 --bind-to none python -m mpi4py benchmarks/parallel_methods.py [mlp lenet ...]

With names of nets it prints only. Each net is trained from several seeds, by each method from the
same ones; accuracies are means over them. Bytes are those that one rank sends a step, by the
communicator's own count, without the values that rank 0 tells the others before the first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from report import publish, table

import singanet
from singanet import models, parallel
from singanet.data import ArrayLoader
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

METHODS: dict[str, Callable[[float], Any]] = {
    "AllReduce": lambda lr: parallel.AllReduce(SGD(lr, 0.9)),
    "AllReduce, float16": lambda lr: parallel.AllReduce(SGD(lr, 0.9), dtype="float16"),
    "SparseAllReduce, 1 %": lambda lr: parallel.SparseAllReduce(SGD(lr, 0.9), ratio=0.01),
    "SparseAllReduce, 0.1 %": lambda lr: parallel.SparseAllReduce(SGD(lr, 0.9), ratio=0.001),
    "… without error feedback": lambda lr: parallel.SparseAllReduce(
        SGD(lr, 0.9), ratio=0.001, error_feedback=False
    ),
    "… momentum 0.9, warm-up 88": lambda lr: parallel.SparseAllReduce(
        SGD(lr), ratio=0.001, momentum=0.9, warm_up=88
    ),
    "PowerSGD, rank 4": lambda lr: parallel.PowerSGD(SGD(lr, 0.9)),
    "… rank 1": lambda lr: parallel.PowerSGD(SGD(lr, 0.9), rank=1),
    "PartialUpdate, 8": lambda lr: parallel.PartialUpdate(SGD(lr, 0.9)),
    "LocalSGD, every 8": lambda lr: parallel.LocalSGD(SGD(lr, 0.9)),
}


@dataclass(frozen=True)
class Case:
    """How a net is trained: 32 samples a rank and step."""

    epochs: int
    lr: float
    seeds: int


CASES = {"mlp": Case(30, 0.05, 3), "lenet": Case(20, 0.02, 2), "resnet20": Case(20, 0.05, 1)}


def trained(name: str, optimizer: Any, case: Case, seed: int) -> tuple[float, float]:
    """Test accuracy, and bytes that this rank sent a step."""
    comm = optimizer.comm
    digits = singanet.data.digits()
    net = models.build(name, digits.x_train.shape[1:], 10, seed=seed)
    net.compile(optimizer, metrics=["accuracy"])
    loader = ArrayLoader(
        digits.x_train, digits.y_train, 32, seed=seed, rank=comm.rank, world_size=comm.size
    )
    optimizer.meet(net)
    before, steps = comm.exchanged, comm.step
    net.fit(loader, epochs=case.epochs, verbose=False)
    sent = comm.exchanged.since(before).sent / (comm.step - steps)
    optimizer.unify(net)
    scores = net.forward(False, digits.x_test)
    accuracy = float((scores.argmax(axis=1) == digits.y_test).mean())
    return accuracy, sent


def rows_of(name: str) -> list[list[str]]:
    """A line a method for one net."""
    case, rows = CASES[name], []
    dense = (0.0, 0.0)
    for method, make in METHODS.items():
        start = time.perf_counter()
        made = [trained(name, make(case.lr), case, seed) for seed in range(case.seeds)]
        accuracy, sent = (float(np.mean(each)) for each in zip(*made, strict=True))
        if method == "AllReduce":
            dense = accuracy, sent
        rows.append(
            [
                name,
                method,
                f"{accuracy:.4f}",
                f"{100 * (accuracy - dense[0]):+.2f}",
                f"{sent:,.0f}",
                f"{dense[1] / sent:.1f}",
            ]
        )
        if parallel.init().rank == 0:
            print(*rows[-1], f"{time.perf_counter() - start:.0f} s", sep="  ", flush=True)
    return rows


def wide_rows() -> list[list[str]]:
    """Bytes alone, of an MLP of 8 layers of 2048²: a mean over 8 steps after the first."""
    comm, rows, dense = parallel.init(), [], 0.0
    rng = np.random.default_rng(comm.rank)
    x, y = rng.standard_normal((8, 2048), np.float32), rng.integers(0, 2048, 8)
    for method, make in METHODS.items():
        layers: list[Any] = [Dense("fc0", 2048, input_shape=(2048,))]
        for k in range(1, 8):
            layers += [Activation(f"relu{k}"), Dense(f"fc{k}", 2048)]
        net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
        optimizer, sent = make(0.01), []
        if "warm-up" in method:
            continue
        for _ in range(9):
            net.step(x, y, optimizer)
            sent.append(optimizer.exchanged.sent)
        mean = float(np.mean(sent[1:]))
        dense = dense or mean
        rows.append(["MLP 8 x 2048²", method, "", "", f"{mean:,.0f}", f"{dense / mean:.1f}"])
        if comm.rank == 0:
            print(*rows[-1], sep="  ", flush=True)
    return rows


def main(names: list[str]) -> None:
    """Run the ``names``, or all; rank 0 writes the file."""
    rows = []
    for name in names or [*CASES, "wide"]:
        rows += wide_rows() if name == "wide" else rows_of(name)
    if parallel.init().rank:
        return
    header = ("net", "method", "test accuracy", "points", "bytes sent a step", "fewer")
    seeds = ", ".join(f"{name} {case.seeds}" for name, case in CASES.items())
    epochs = ", ".join(f"{name} {case.epochs} at {case.lr}" for name, case in CASES.items())
    body = table(header, rows) + (
        f"\n\nDigits, {parallel.init().size} processes by MPI, 32 samples each a step, SGD with "
        f"momentum 0.9; epochs and rate: {epochs}; means over seeds: {seeds}. One test image is "
        f"0.28 points. Bytes: what one rank sends, announcements and lengths of gradients with it; "
        "of the nets that are trained a mean over all steps, in which `PartialUpdate` and "
        "`LocalSGD` also send all values once an epoch of 22 steps, of the wide one the mean of 8 "
        "steps after the first. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    if names:
        print(body)
    else:
        publish("parallel_methods", "Reductions: bytes and accuracy", body)


if __name__ == "__main__":
    main(sys.argv[1:])
