"""Where singanet's time goes in a training step: `train_vs_torch.py --profile`.

Three processes run the same step: as it is; as a program whose kernels are timed; and, with oneDNN,
while the library reports the time of each of its primitives.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
from collections import Counter

from apart import Entrant, NoEntryError, Taken, apart
from cases import CASES, batch_of, build, chosen
from kernel_times import KINDS, by_kind
from rivals import LR, MOMENTUM, our_step
from rivals import imports as import_for

_RIVALS = ("singanet", "timed", "verbose")


def imports(_: str, row: int) -> None:
    """What singanet needs."""
    import_for("singanet", row)


def make(name: str, row: int) -> Entrant:
    """A step as it is, timed, or told by oneDNN."""
    if name == "singanet":
        return our_step(row)
    return _timed(row) if name == "timed" else _told(row)


def _timed(row: int) -> Entrant:
    """A program recorded by hand, whose kernels are timed."""
    import singanet

    case = CASES[row]
    net, (x, y) = build(case.model), batch_of(case.model, case.batch)
    sgd = singanet.optimizer.SGD(lr=LR, momentum=MOMENTUM)
    program = net.record(x, y, sgd)
    program.run(x, y)
    facts: dict = {}

    def step() -> None:
        program.run(x, y, timed=True)
        calls = program.report().as_dict()["calls"]
        facts.update(seconds=by_kind(net, calls), calls=len(calls))

    return Entrant(step, facts)


def _told(row: int) -> Entrant:
    """Seconds by primitive of a step; oneDNN prints them to the standard output."""
    if os.environ["SINGANET_OPS"] != "onednn":
        raise NoEntryError("NumPy's kernels")
    os.environ["ONEDNN_VERBOSE"] = "profile_exec"
    step = our_step(row).run
    facts: dict = {"steps": []}

    def told() -> None:
        with tempfile.TemporaryFile() as file:
            kept = os.dup(1)
            os.dup2(file.fileno(), 1)
            step()
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            facts["steps"].append(_by_primitive(file.read().decode()))

    return Entrant(told, facts)


def _by_primitive(text: str) -> dict[str, float]:
    seconds: Counter = Counter()
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 4 and fields[1] == "exec":
            seconds[fields[3]] += 1e-3 * float(fields[-1])
    return {"all": seconds.total(), **seconds}


def _middle(result: Taken, key: str) -> float:
    """The median over the steps, but for the first, which finds caches empty."""
    return statistics.median(step.get(key, 0.0) for step in result.facts["steps"][1:])


def show(given: argparse.Namespace) -> None:
    """Print and keep the shares of the rows that ``given`` names."""
    from report import publish, table

    rows = chosen(given.rows)
    whole = 60 * given.minutes
    measured = apart(make, _RIVALS, rows, given.rounds, given.seconds, imports, whole)
    lines = []
    for row, taken in zip(rows, measured, strict=False):
        case = CASES[row]
        timed = taken["timed"]
        if timed.failure:
            raise SystemExit(f"{case.name}: {timed.failure}")
        plain, seconds = statistics.median(taken["singanet"].seconds), timed.facts["seconds"]
        kernels, calls = sum(seconds.values()), timed.facts["calls"]
        told = taken["verbose"]
        inside = [
            "" if told.failure else f"{1e3 * _middle(told, key):.3g}" for key in ("all", "reorder")
        ]
        cells = [f"{1e3 * plain:.3g}", f"{1e3 * kernels:.3g}", str(calls), *inside]
        cells.append(f"{plain / kernels:.2f}")
        shares = [f"{100 * seconds[kind] / kernels:.0f}" for kind in KINDS]
        lines.append([case.model, str(case.batch), *cells, *shares])
    header = ["net", "batch", "step, ms", "kernels, ms", "calls", "primitives, ms", "reorders, ms"]
    header += ["gap", *(f"{kind}, %" for kind in KINDS)]
    text = (
        "kernels: the sum of the times of the recorded step's calls, each measured, and how many "
        "there are; the last columns share it out by kind of layer, the additions of gradients "
        "with the layer that made them. primitives: of that the time inside oneDNN, by its own "
        "count, and its reorders. gap: the step as it is, by the sum of its kernels; below 1 what "
        "measuring adds outweighs Python. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    file = f"profile_{given.ops}_{given.threads}t" + ("_part" if given.rows else "")
    title = f"Where a training step's time goes: {given.ops} kernels, {given.threads} thread(s)"
    publish(file, title, f"{table(header, lines)}\n\n{text}")
