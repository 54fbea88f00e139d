"""Fits of ready nets within budgets: their peaks, and their losses beside those of the plain fit.

Each fit has a process of its own, with `Adam`, one thread, two epochs of two batches. Budgets are
parts of the peak that is predicted for the plain fit, and the smallest that is accepted. Measured
is the most resident memory beyond what the process held before the net was built; by then a small
net had been trained within a budget, so that modules, libraries and their threads were there. It
should not be above the budget by more than 1 %, and within 2 % + 2 MB of the prediction. Losses
are to be the same bits, and with micro-batches within 1e-6; of nets that draw random numbers
micro-batches draw others, which is marked.

    python benchmarks/budgets.py [--batch N] [NET ...]
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from apart import forget_peak, peak, resident
from memory_budget import batch_of
from report import publish, table

from singanet.errors import ArgumentError
from singanet.layers import Dropout
from singanet.models import build, entries
from singanet.optimizer import SGD, Adam
from singanet.program.heap import trim

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
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    call = [sys.executable, __file__, "--child", json.dumps([name, size, budget, folder])]
    done = subprocess.run(
        call, env={**os.environ, **threads}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"failed": done.stderr[-200:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
    size = 8
    if "--batch" in arguments:
        at = arguments.index("--batch")
        size = int(arguments[at + 1])
        arguments = arguments[:at] + arguments[at + 2 :]
    names = arguments or [entry.name for entry in entries() if entry.name != "rbm"]
    head = ["net", "budget", "MB", "predicted MB", "measured MB", "off MB", "losses", "", "how"]
    body = table(head, [row for name in names for row in rows(name, size)])
    load = os.getloadavg()[0]
    text = str(__doc__).partition("\n\n    python")[0].partition("\n\n")[2]
    note = f"Batches of {size}; of those that were run. Load of the machine at the end: {load:.1f}."
    publish("budgets", "Fits within budgets", f"{text}\n\n{note}\n\n{body}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(fitted(*json.loads(sys.argv[2]))))
    else:
        main(sys.argv[1:])
