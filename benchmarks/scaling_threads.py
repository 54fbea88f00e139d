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
from apart import Entrant, apart, on_threads  # noqa: E402

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
    forms = (OURS, *(() if given.beside_busy and not given.peer else THEIRS))
    names = [f"{form} {threads}" for form in forms for threads in (1, most)]
    rows = chosen(given.rows)
    with neighbour(given.beside_busy):
        measured = apart(
            make, names, rows, given.rounds, given.seconds, imports, 60 * given.minutes
        )
    lines: list[list[str]] = []
    gains: dict[str, list[float]] = {"ours": [], "theirs": []}
    failures: list[str] = []
    for row, taken in zip(rows, measured, strict=False):
        case = CASES[row]
        cells = [case.model, str(case.batch)]
        for who, those in (("ours", [OURS]), ("theirs", [form for form in forms if form != OURS])):
            best = {
                threads: min(
                    (taken[f"{form} {threads}"].seconds for form in those
                     if taken[f"{form} {threads}"].seconds),
                    key=statistics.median, default=[],
                )
                for threads in (1, most)
            }  # fmt: skip
            if not all(best.values()):
                cells += ["", "", "", ""] if those else []
                continue
            low, middle, high = gain(best[1], best[most])
            gains[who].append(middle)
            cells += [f"{1e3 * statistics.median(best[k]):.3g}" for k in (1, most)]
            cells += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
        failures += [
            f"{case.name}, {name}: {result.failure}."
            for name, result in taken.items()
            if result.failure not in ("", "not tried")
        ]
        lines.append(cells)
    means = [statistics.geometric_mean(found) for found in gains.values() if found]
    lines.append(
        ["**geometric mean**", ""] + [c for m in means for c in ("", "", f"**{m:.2f}**", "")]
    )
    header = ["net", "batch"]
    for who in ("singanet", "PyTorch")[: len(means)]:
        header += [f"{who}, 1, ms", f"{most}, ms", "speed-up", "(spread)"]
    text = (
        "Speed-up: the time with one thread by that with "
        f"{most}; median of the rounds, and the quartiles. Of PyTorch the faster eager form with "
        f"each number. At most {given.rounds} rounds, {given.seconds:.0f} s a row after three. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    if given.beside_busy:
        text += (
            f" Another process is busy all the time; the rows' least is {min(gains['ours']):.2f}."
        )
    kind = "a training step" if what == "train" else "a prediction"
    beside = " beside a busy process" if given.beside_busy else ""
    file = f"scaling_threads_{what}_{given.ops}{'_busy' if given.beside_busy else ''}"
    title = f"What {most} threads gain in {kind}{beside}: {given.ops} kernels"
    publish(
        file + ("_part" if given.rows else ""),
        title,
        "\n".join([table(header, lines), "", text, "", *failures]),
    )


def gain(one: Sequence[float], several: Sequence[float]) -> list[float]:
    """The quartiles of the speed-up, round by round."""
    return statistics.quantiles([a / b for a, b in zip(one, several, strict=False)], n=4)


if __name__ == "__main__":
    for kind in ("train", "predict") if OPTIONS.what == "both" else (OPTIONS.what,):
        compared(OPTIONS, kind)
