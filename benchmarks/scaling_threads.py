"""What a second thread gains, and PyTorch's beside it: the speed-up of steps and predictions.

Each rival, at each number of threads, is a process of its own; they take turns round by round.
``--rows``, ``--rounds``, ``--seconds`` and ``--ops`` as in `train_vs_torch.py`; ``--threads`` is
the larger number. With ``--beside-busy`` another process keeps one core busy all the time, and
PyTorch is left out unless ``--peer`` is given.

    python benchmarks/scaling_threads.py --threads 2 --rows lenet,mlp:128
    python benchmarks/scaling_threads.py --threads 2 --what predict --beside-busy
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from versus import EAGER, parser_of, settled

PARSER = parser_of(__doc__)
PARSER.set_defaults(threads=2, seconds=4)
PARSER.add_argument("--what", choices=("train", "predict", "both"), default="train")
PARSER.add_argument("--beside-busy", action="store_true", help="a core is another process's")
PARSER.add_argument("--peer", action="store_true", help="PyTorch, beside a busy process too")
OPTIONS = settled(PARSER)

# Libraries read the number of threads when they are loaded, each rival's its own.
from apart import Entrant, Taken, apart, on_threads  # noqa: E402

OURS, THEIRS = "singanet", EAGER
_BUSY = "while True: pass"


def _on(name: str) -> str:
    """What the rival ``name`` runs, with its threads told to the libraries."""
    form, _, threads = name.rpartition(" ")
    os.environ.update(on_threads(int(threads)), MKL_NUM_THREADS=threads)
    if os.environ["SINGANET_OPS"] == "onednn" or form != OURS:
        # OpenBLAS goes by OpenMP's number then, unless oneDNN's kernels send its threads away.
        del os.environ["OPENBLAS_NUM_THREADS"]
    return form


def imports(name: str, row: int) -> None:
    """Load what the rival needs, told how many threads it has."""
    form = _on(name)
    from rivals import imports as loaded

    loaded(form, row)


def make_step(name: str, row: int) -> Entrant:
    """A step of the rival."""
    from rivals import our_step, their_step

    form = name.rpartition(" ")[0]
    return our_step(row) if form == OURS else their_step(form, row)


def make_prediction(name: str, row: int) -> Entrant:
    """A prediction of the rival."""
    from rivals import our_prediction, their_prediction

    form = name.rpartition(" ")[0]
    return our_prediction(row) if form == OURS else their_prediction(form, row)


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Another process that is busy all the time."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY]) if wanted else None
    try:
        yield
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()


def compared(given: argparse.Namespace, what: str) -> None:
    """Print and keep one table."""
    from cases import CASES, chosen
    from report import publish, table

    most, make = given.threads, make_step if what == "train" else make_prediction
    sides = {"singanet": [OURS]}
    if given.peer or not given.beside_busy:
        sides["PyTorch"] = [*THEIRS]
    names = [f"{form} {count}" for forms in sides.values() for form in forms for count in (1, most)]
    rows, whole = chosen(given.rows), 60 * given.minutes
    with neighbour(given.beside_busy):
        measured = apart(make, names, rows, given.rounds, given.seconds, imports, whole)
    header, lines, notes = ["net", "batch"], [], []
    gains: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides:
        header += [f"{side}, 1, ms", f"{most}, ms", "speed-up", "(spread)"]
    for row, taken in zip(rows, measured, strict=False):
        case = CASES[row]
        cells = [case.model, str(case.batch)]
        for side, forms in sides.items():
            one, several = (_fastest(taken, forms, count) for count in (1, most))
            cells += _cells(one, several, gains[side]) if one and several else [""] * 4
        failed = {name: each.failure for name, each in taken.items() if each.failure}
        notes += [f"{case.name}, {k}: {v}." for k, v in failed.items() if v != "not tried"]
        lines.append(cells)
    last = ["**geometric mean**", ""]
    for found in gains.values():
        last += ["", "", f"**{statistics.geometric_mean(found):.2f}**" if found else "", ""]
    text = (
        f"Speed-up: the time with one thread by that with {most}; median of the rounds, and the "
        "quartiles. Of PyTorch the faster eager form with each number. The least of singanet's: "
        f"{min(gains['singanet'], default=0):.2f}. At most {given.rounds} rounds, "
        f"{given.seconds:.0f} s a row after three. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    beside, mark = (" beside a busy process", "_busy") if given.beside_busy else ("", "")
    kind = "a training step" if what == "train" else "a prediction"
    file = f"scaling_threads_{what}_{given.ops}{mark}" + ("_part" if given.rows else "")
    title = f"What {most} threads gain in {kind}{beside}: {given.ops} kernels"
    publish(file, title, "\n".join([table(header, [*lines, last]), "", text, "", *notes]))


def _fastest(taken: dict[str, Taken], forms: Sequence[str], threads: int) -> list[float]:
    """The rounds of the form that is the fastest with so many threads; none where all failed."""
    rounds = [taken[f"{form} {threads}"].seconds for form in forms]
    return min(filter(None, rounds), key=statistics.median, default=[])


def _cells(one: Sequence[float], several: Sequence[float], gains: list[float]) -> list[str]:
    ratios = [a / b for a, b in zip(one, several, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    gains.append(middle)
    times = [f"{1e3 * statistics.median(each):.3g}" for each in (one, several)]
    return [*times, f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]


if __name__ == "__main__":
    for kind in ("train", "predict") if OPTIONS.what == "both" else (OPTIONS.what,):
        compared(OPTIONS, kind)
