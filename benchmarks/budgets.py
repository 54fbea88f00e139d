"""Fits of ready nets within budgets: their peaks, and their losses beside those of the plain fit.

Each fit has a process of its own, with `Adam`, one thread, two epochs of two batches. Budgets are
parts of the peak that is predicted for the plain fit, and the smallest that is accepted. Measured
is the most resident memory beyond what the process held before the net was built; by then a small
net had been trained within a budget, so that modules, libraries and their threads were there. It
should not be above the budget by more than 1 %, and within 2 % + 2 MB of the prediction. Losses
are to be the same bits, and with micro-batches within 1e-6; of nets that draw random numbers
micro-batches draw others, which is marked.

    python benchmarks/budgets.py [--batch N] [--nets NET ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from apart import begin, forget_peak, fresh, on_threads, peak, resident
from memory_budget import batch_of, ready_nets
from report import introduction, publish, table

from singanet.base.heap import trim
from singanet.errors import ArgumentError
from singanet.layers import Dropout
from singanet.models import build
from singanet.optimizer import SGD, Adam

PARTS = (1.0, 0.8, 0.6, 0.4)
MB = 1e6


def fitted(name: str, size: int, budget: int | str, folder: str | None) -> dict[str, Any]:
    """Losses, plan and peak of a fit in this process, or what refused it."""
    x, y = batch_of(name, 2 * size)
    small = build("lenet", seed=0)
    small.compile(SGD(lr=0.01))
    small.fit(*batch_of("lenet", 2), batch_size=2, memory_budget="1GB", verbose=False)
    del small
    gc.collect()
    trim()
    before = resident("RssAnon")
    forget_peak()
    net = build(name, seed=0)
    net.compile(Adam(lr=1e-3))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            history = net.fit(
                x, y, size, 2, shuffle=False, memory_budget=budget, offload_folder=folder
            )
        except ArgumentError as error:
            return {"least": int(error.advice.split()[2].rstrip(",;"))}
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
    }


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


def main(arguments: list[str]) -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
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
    begin(fitted, main)
