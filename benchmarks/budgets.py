"""Fits of ready nets within budgets: their peaks, and their losses beside those of the plain fit.

Each fit has a process of its own, with `Adam`, one thread, two epochs of two batches. Budgets are
parts of the peak that is predicted for the plain fit, and the smallest that is accepted. Measured
is the most resident memory beyond what the process held before the net was built; by then a small
net had been trained within a budget, so that modules, libraries and their threads were there. It
should not be above the budget by more than 1 %, and within 2 % + 2 MB of the prediction. Losses
are to be the same bits, and with micro-batches within 1e-6; of nets that draw random numbers
micro-batches draw others, which is marked.

    python benchmarks/budgets.py [--batch N] [--nets NET ...]

With ``--kinds`` it goes over nets by kind, by each kernel set, without a folder: within how much
of its budget each fit stays, what a step takes, the least budget that a refusal names and after how
many seconds, and the least that is accepted, found by halving.

    python benchmarks/budgets.py --kinds [numpy] [onednn] [--nets KIND ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from apart import begin, forget_peak, fresh, on_threads, peak, resident
from cases import llama
from memory_budget import batch_of, ready_nets
from report import introduction, publish, table

from singanet import FeedForwardNet
from singanet.base.heap import trim
from singanet.errors import ArgumentError
from singanet.layers import (
    GRU,
    Activation,
    Dense,
    Dropout,
    TimeDistributed,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.models import build
from singanet.optimizer import SGD, Adam
from singanet.training.callbacks import Callback

PARTS = (1.0, 0.8, 0.6, 0.4)
MB = 1e6


def _gru(size: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(GRU("gru0", 128, input_shape=(64, 32)))
    for k in (1, 2):
        net.add(GRU(f"gru{k}", 128))
    net.add(TimeDistributed("top", Dense("fc", 10)))
    x = rng.standard_normal((2 * size, 64, 32), np.float32)
    return net, x, rng.integers(0, 10, (2 * size, 64))


def _mlp(size: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("fc0", 256, input_shape=(128,)))
    for k in range(1, 12):
        net.add(Activation(f"relu{k}", "relu"))
        net.add(Dense(f"fc{k}", 256))
    net.add(Dense("top", 10))
    x = rng.standard_normal((2 * size, 128), np.float32)
    return net, x, rng.integers(0, 10, 2 * size)


def _unet(size: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    net = build("unet", (3, 64, 64), 4, seed=0, width=16, depth=3)
    x = rng.standard_normal((2 * size, 3, 64, 64), np.float32)
    return net, x, rng.integers(0, 4, (2 * size, 64, 64))


def _llama(size: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    net = llama(2, 192, 128, 1000, heads=6, kv_heads=6, units=512)
    return net, *(rng.integers(0, 1000, (2 * size, 128)) for _ in "xy")


KINDS: dict[str, tuple[int, Any]] = {
    "vit_tiny": (4, None),
    "transformer_lm": (8, None),
    "resnet20": (32, None),
    "mobilenet_v3_small": (4, None),
    "GRU stack": (32, _gru),
    "U-Net": (8, _unet),
    "MLP": (2048, _mlp),
    "Llama block": (8, _llama),
}
"""Nets by kind: samples of a batch, and what makes net and data where no ready net is meant."""


class Stopwatch(Callback):
    """Seconds of the last step."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_batch_begin(self, batch: int) -> None:
        self._start = time.perf_counter()

    def on_batch_end(self, batch: int, logs: Any) -> None:
        self.steps.append(time.perf_counter() - self._start)


def made(name: str, size: int) -> tuple[Any, Any, Any]:
    """A net, and samples for two batches."""
    _, maker = KINDS.get(name, (0, None))
    net, x, y = (build(name, seed=0), *batch_of(name, 2 * size)) if maker is None else maker(size)
    net.compile(Adam(lr=1e-3))
    return net, x, y


def fitted(name: str, size: int, budget: int | str, folder: str | None) -> dict[str, Any]:
    """Losses, plan and peak of a fit in this process, or what refused it."""
    x, y = made(name, size)[1:]
    small = build("lenet", seed=0)
    small.compile(SGD(lr=0.01))
    small.fit(*batch_of("lenet", 2), batch_size=2, memory_budget="1GB", verbose=False)
    del small
    gc.collect()
    trim()
    before = resident("RssAnon")
    forget_peak()
    net, watch = made(name, size)[0], Stopwatch()
    said, start = io.StringIO(), time.perf_counter()
    options: dict[str, Any] = {"memory_budget": budget, "offload_folder": folder}
    with contextlib.redirect_stderr(said):
        try:
            history = net.fit(x, y, size, 2, shuffle=False, callbacks=[watch], **options)
        except ArgumentError as error:
            seconds = time.perf_counter() - start
            return {"least": int(error.advice.split()[2].rstrip(",;")), "seconds": seconds}
        except Exception as error:  # noqa: BLE001 - the table tells it
            return {"failed": f"{type(error).__name__}: {error}"[:200]}
    taken = peak() - before
    lines = said.getvalue().splitlines()
    told = lines[0].partition(": ")[2]
    last = next(line for line in lines if line.startswith("memory: "))
    predicted = _bytes(last.partition("predicted ")[2].partition(" (")[0])
    random = any(isinstance(layer, Dropout) for layer in net.layers)
    return {
        "measures": told,
        "predicted": predicted,
        "measured": taken,
        "losses": history["loss"],
        "random": random,
        "step": min(watch.steps[1:]),
    }


def halved(name: str, size: int, named: int) -> float:
    """The least budget that a fit accepts, within a hundredth."""
    x, y = made(name, size)[1:]

    class Accepted(Exception):  # noqa: N818 - what is looked for
        pass

    class Stop(Callback):
        def on_train_begin(self) -> None:
            raise Accepted

    def accepts(budget: float) -> bool:
        net, options = made(name, size)[0], {"memory_budget": int(budget), "callbacks": [Stop()]}
        try:
            net.fit(x, y, size, 2, shuffle=False, verbose=False, **options)
        except ArgumentError:
            return False
        except Accepted:
            return True
        raise AssertionError("on_train_begin is called first")

    low, high = 0.5 * named, float(named)
    while high - low > 0.01 * named:
        middle = (low + high) / 2
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high


def _bytes(text: str) -> float:
    number, unit = text.replace(",", "").split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def child(name: str, size: int, budget: int | str, folder: str | None) -> dict[str, Any]:
    """`fitted` in a fresh process."""
    found = fresh(__file__, [name, size, budget, folder], **on_threads(1))
    return {"failed": found} if isinstance(found, str) else found


def rows(name: str, size: int) -> list[list[str]]:
    """The lines of one net."""
    plain = child(name, size, "1000GB", None)
    if "failed" in plain:
        return [[name, "100 %", *[""] * 6, plain["failed"]]]
    found = []
    budgets = [(f"{part:.0%}".replace("%", " %"), int(part * plain["predicted"])) for part in PARTS]
    for what, budget in [*budgets, ("least", 1)]:
        with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
            folder = str(Path(scratch) / "net")
            took = plain if what == "100 %" else child(name, size, budget, folder)
            if what == "least" and "least" in took:
                budget = took["least"]
                took = child(name, size, budget, folder)
        if "least" in took:
            least = f"refused: {took['least'] / MB:,.1f} MB at least"
            found.append([name, what, f"{budget / MB:,.1f}", *[""] * 5, least])
            continue
        if "failed" in took:
            found.append([name, what, f"{budget / MB:,.1f}", *[""] * 5, took["failed"]])
            continue
        off = took["predicted"] - took["measured"]
        kept = took["measured"] <= 1.01 * budget or what == "100 %"
        near = abs(off) <= 0.02 * took["measured"] + 2 * MB
        apart = float(np.max(np.abs(np.subtract(took["losses"], plain["losses"]))))
        apart /= float(np.max(np.abs(plain["losses"])))
        found.append(
            [
                name,
                what,
                f"{budget / MB:,.1f}",
                f"{took['predicted'] / MB:,.1f}",
                f"{took['measured'] / MB:,.1f}",
                f"{off / MB:+,.1f}",
                "the same" if not apart else f"{apart:.0e}" + " (draws)" * took["random"],
                " ".join([*(["above"] * (not kept)), *(["off"] * (not near))]),
                took["measures"],
            ]
        )
        print(found[-1], file=sys.stderr, flush=True)
    return found


def of_kind(kernels: str, name: str) -> list[list[str]]:
    """The lines of one of `KINDS` by one kernel set."""
    size, _ = KINDS[name]
    environment = {"SINGANET_OPS": kernels, **on_threads(1)}

    def child(*given: Any) -> Any:
        found = fresh(__file__, given, **environment)
        if isinstance(found, str):
            raise SystemExit(f"{name}: {found}")
        return found

    told = child(name, size, "1000GB", None)["predicted"]
    refused = child(name, size, 1, None)
    least = child("halved", name, size, refused["least"])
    note = f"named after {refused['seconds']:.1f} s; {least / MB:,.1f} accepted"
    budgets = [(f"{part:.0%}".replace("%", " %"), int(part * told)) for part in PARTS]
    found = []
    for what, budget in [*budgets, ("least", refused["least"])]:
        took = child(name, size, budget, None)
        row = [kernels, name, what, f"{budget / MB:,.1f}"]
        if "least" in took:
            why = f"refused after {took['seconds']:.1f} s: {took['least'] / MB:,.1f} MB at least"
            found.append([*row, *[""] * 5, why])
        elif "failed" in took:
            found.append([*row, *[""] * 5, took["failed"]])
        else:
            taken = took["measured"]
            marks = ["above"] * (taken > 1.01 * budget and what != "100 %")
            row += [f"{took['predicted'] / MB:,.1f}", f"{taken / MB:,.1f}"]
            row += [f"{1 - taken / budget:.0%}".replace("%", " %"), f"{1e3 * took['step']:,.0f}"]
            how = took["measures"] + (f" ({note})" if what == "least" else "")
            found.append([*row, " ".join(marks), how])
        print(found[-1], file=sys.stderr, flush=True)
    return found


def by_kind(kernels: list[str], names: list[str]) -> None:
    """The table of nets by kind."""
    head = ["kernels", "net", "budget", "MB", "told MB", "taken MB", "unused", "step ms", "", "how"]
    found = [row for each in kernels for name in names for row in of_kind(each, name)]
    sizes = ", ".join(f"{name} {size}" for name, (size, _) in KINDS.items())
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    note = f"Samples of a batch: {sizes}. Load of the machine: {os.getloadavg()[0]:.1f}."
    note += f" As on a processor with {isa}." if isa else ""
    body = f"{introduction(__doc__)}\n\n{note}\n\n{table(head, found)}"
    publish("budgets_by_kind" + f"_{isa.lower()}" * bool(isa), "Fits within budgets", body)


def main(arguments: list[str]) -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kinds", nargs="*", choices=["numpy", "onednn"])
    if "--kinds" in arguments:
        parser.add_argument("--nets", nargs="+", default=[*KINDS], choices=[*KINDS])
        given = parser.parse_args(arguments)
        by_kind(given.kinds or ["numpy", "onednn"], given.nets)
        return
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--nets", nargs="+", default=ready_nets(), metavar="NET")
    given = parser.parse_args(arguments)
    head = ["net", "budget", "MB", "predicted MB", "measured MB", "off MB", "losses", "", "how"]
    found, loads = [], [os.getloadavg()[0]]
    for name in given.nets:
        found += rows(name, given.batch)
        loads.append(os.getloadavg()[0])
    note = f"Batches of {given.batch}. Load of the machine: {min(loads):.1f} to {max(loads):.1f}."
    left = [name for name in ready_nets() if name not in given.nets]
    if left:
        note += f" Left out, since they take minutes each: {', '.join(left)}."
    text = introduction(__doc__)
    publish("budgets", "Fits within budgets", f"{text}\n\n{note}\n\n{table(head, found)}")


if __name__ == "__main__":
    begin(lambda *given: halved(*given[1:]) if given[0] == "halved" else fitted(*given), main)
