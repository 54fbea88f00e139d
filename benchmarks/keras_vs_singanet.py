"""The same LeNet and MLP trained by Keras 3 and by singanet, each with its own `fit`.

singanet with NumPy's kernels, and with oneDNN's where its library is found. Seconds from the start
of the interpreter to the end of the first step, seconds an epoch, and the peak of resident memory.
Each side is a process of its own; all take their epochs in turn, round by round. Keras is tried
with every backend that is found; others are named with the interpreter that has them:

    python benchmarks/keras_vs_singanet.py --threads 1
    python benchmarks/keras_vs_singanet.py --python jax=VENV/bin/python tensorflow=VENV/bin/python
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from report import publish, spread, table

from singanet.ops.onednn.library import find_library

SIDE = Path(__file__).with_name("keras_side.py")
FORMS = {
    "torch": ("channels_first", "channels_last"),
    "jax": ("channels_last", "channels_first"),
    "tensorflow": ("channels_last",),  # it has no kernels for the other on a CPU
}
NETS = "lenet,mlp"
OURS = ("singanet:numpy", "singanet:onednn")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
           "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # fmt: skip


@dataclass
class Side:
    """What a side took."""

    name: str
    process: subprocess.Popen
    first: float = 0.0
    parameters: int = 0
    epochs: list[float] = field(default_factory=list)
    peak: int = 0

    def answer(self) -> float:
        """The next number that it says. Errors: it ended, and said why before."""
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return float(line)

    def ask(self, text: str) -> float:
        """Send a line and read the answer."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.answer()


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--forms", type=int, default=2, help="data formats a backend")
    parser.add_argument("--nets", default=NETS)
    parser.add_argument("--python", nargs="*", default=[], metavar="BACKEND=PATH")
    return parser.parse_args()


def started(name: str, python: str, net: str, given: argparse.Namespace) -> Side:
    """A side whose first step is done."""
    threads = dict.fromkeys(THREADS, str(given.threads))
    if given.threads == 1:
        threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, str(SIDE), name, net, str(given.samples), str(given.batch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads, "SINGANET_OPS": name.partition(":")[2]},
    )
    side = Side(name, process)
    side.parameters = int(side.answer())
    side.first = time.perf_counter() - start
    return side


def pythons(given: argparse.Namespace) -> dict[str, str]:
    """The interpreter of each backend of Keras that is there."""
    named = dict(pair.split("=", 1) for pair in given.python)
    found = {}
    for backend in FORMS:
        python = named.get(backend, sys.executable)
        # Asked for without imports, which take TensorFlow many seconds.
        code = f"import importlib.util as u; assert all(map(u.find_spec, ('keras', {backend!r})))"
        env = {**os.environ, "KERAS_BACKEND": backend}
        done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True)
        if done.returncode == 0:
            found[backend] = python
        else:
            print(f"{backend}: {done.stderr.strip().splitlines()[-1]}")
    if not found:
        raise SystemExit("Keras is not installed: pip install '.[peers]'")
    return found


def measured(net: str, found: dict[str, str], given: argparse.Namespace) -> list[Side]:
    """All sides on ``net``, singanet first."""
    wanted = [(name, sys.executable) for name in OURS[: 1 + (find_library() is not None)]]
    wanted += [
        (f"{name}:{form}", found[name]) for name in found for form in FORMS[name][: given.forms]
    ]
    firsts: dict[str, list[float]] = {}
    for _ in range(given.starts - 1):  # the first start reads files from the disk
        for name, python in wanted:
            side = started(name, python, net, given)
            side.ask("")
            firsts.setdefault(name, []).append(side.first)
    sides = [started(name, python, net, given) for name, python in wanted]
    for round_ in range(given.rounds + 1):
        for side in sides:
            seconds = side.ask("epoch")
            if round_:  # the first compiles and warms up
                side.epochs.append(seconds)
    for side in sides:
        side.peak = int(side.ask(""))
        side.first = statistics.median([side.first, *firsts.get(side.name, [])])
    return sides


def rows(net: str, sides: list[Side]) -> list[list[str]]:
    """Lines of the table; ratios are a side's figure by singanet's, with each of its kernels."""
    own = [side for side in sides if side.name in OURS]
    lines = []
    for side in sides:
        if side.parameters != own[0].parameters:
            raise SystemExit(f"{side.name} trains {side.parameters} of {own[0].parameters}")
        ratios = ["", ""]
        for k, mine in enumerate(own):
            pairs = zip(side.epochs, mine.epochs, strict=True)
            ratios[k] = f"{statistics.median(theirs / ours for theirs, ours in pairs):.2f}"
        lines.append(
            [
                net,
                ("" if side in own else "Keras, ") + side.name.replace(":", ", "),
                f"{statistics.median(side.epochs):.3f}",
                spread(side.epochs),
                *ratios,
                f"{side.first:.2f}",
                f"{side.first / own[0].first:.1f}",
                f"{side.peak / 2**20:.0f}",
                f"{side.peak / own[0].peak:.1f}",
            ]
        )
    return lines


def main() -> None:
    """Print and keep the table."""
    given = options()
    found = pythons(given)
    lines = [
        line for net in given.nets.split(",") for line in rows(net, measured(net, found, given))
    ]
    header = ["net", "side", "s an epoch", "spread", "by NumPy's", "by oneDNN's",
              "s to the first step", "ratio", "peak MiB", "ratio"]  # fmt: skip
    missing = [backend for backend in FORMS if backend not in found]
    notes = (
        f"{given.samples} samples of 28 × 28, batch {given.batch}, SGD with momentum, accuracy, "
        f"{given.rounds} epochs after one to warm up, {given.threads} thread(s). By NumPy's, by "
        "oneDNN's: the side's time by that of singanet with such kernels, above 1 where singanet "
        "needs less, the median over rounds; the other ratios are to singanet's with NumPy's. The "
        "first step is counted from the start of the interpreter, its import included. Peak: "
        "resident memory of the whole process. Load of the machine at the end: "
        f"{os.getloadavg()[0]:.1f}."
    )
    if missing:
        notes += f" Backends of Keras that were not there: {', '.join(missing)}."
    body = f"{table(header, lines)}\n\n{notes}"
    some = "" if given.nets == NETS else "_" + given.nets.replace(",", "_")
    publish(f"keras_vs_singanet_{given.threads}t{some}", "Keras 3 and singanet side by side", body)


if __name__ == "__main__":
    main()
