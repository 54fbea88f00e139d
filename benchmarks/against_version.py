"""Rows of the benchmarks against the same rows at another commit, interleaved in one run.

The commit is checked out beside the checkout for as long as the run takes. Each row runs in a
process a version, both alive at the same time and asked in turn for one turn's time, so that a
machine that drifts hits both alike; who is first changes from round to round. Several pairs of
processes a row, since where memory lies makes one process faster than its like.

    python benchmarks/against_version.py c3326db small_step 'train/resnet20:*' --threads 2
    python benchmarks/against_version.py HEAD small_step --quick

The rows, ``group/name``, are in `version_rows.py`. What is wanted is a group or a pattern; the
ratio is the other commit's figure by this checkout's, above 1 where this one is better.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from apart import CLOCK, REST
from report import publish, table

ROOT = Path(__file__).resolve().parent.parent
ROWS = Path(__file__).resolve().with_name("version_rows.py")
BEFORE, NOW = "before", "now"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("rows", nargs="+", help="groups, or patterns of group/name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", choices=("numpy", "onednn"), default="onednn")
    parser.add_argument("--pairs", type=int, default=3, help="of processes, a row")
    parser.add_argument("--rounds", type=int, default=40, help="a pair")
    parser.add_argument("--seconds", type=float, default=6, help="a pair, after three rounds")
    parser.add_argument("--minutes", type=float, default=120, help="after which no row is begun")
    parser.add_argument("--quick", action="store_true", help="one pair, ten rounds")
    parser.add_argument("--clock", choices=("wall", "cpu"), help="cpu where there is one thread")
    parser.add_argument("--name", help="of the file under results/")
    given = parser.parse_args()
    if given.quick:
        given.pairs, given.rounds = 1, 10
    given.clock = given.clock or ("cpu" if given.threads == 1 else "wall")
    return given


def git(*arguments: str) -> str:
    """What git says in this checkout. Errors: it refuses, and says why."""
    call = ["git", "-C", str(ROOT), *arguments]
    run = subprocess.run(call, check=False, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr.strip())
    return run.stdout.strip()


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of ``commit`` in ``folder`` until the end of the block."""
    place = folder / "before"
    try:
        git("worktree", "add", "--detach", str(place), commit)
        yield place
    finally:
        # It may not be there yet where the run is ended early.
        with suppress(SystemExit):
            git("worktree", "remove", "--force", str(place))


def environment(given: argparse.Namespace, root: Path, folder: Path) -> dict[str, str]:
    """Of a process that runs the version at ``root``, the same for both but for where it lies."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # OpenBLAS goes by OpenMP's number, unless oneDNN's kernels send its threads away.
    env.pop("OPENBLAS_NUM_THREADS", None)
    env |= {f"{name}_NUM_THREADS": str(given.threads) for name in ("OMP", "MKL")}
    env |= {
        "PYTHONPATH": str(root),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "SINGANET_OPS": given.kernels,
        # Routes that were measured with one version are no rows of the other.
        "SINGANET_ROUTES": "off",
        CLOCK: given.clock,
    }
    return env


def chosen(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The rows that any of ``wanted`` means, each once, in the order of the table."""
    found: set[str] = set()
    for word in wanted:
        pattern = word if "/" in word else f"{word}/*"
        meant = {name for name in names if fnmatchcase(name, pattern)}
        if not meant:
            groups = sorted({name.partition("/")[0] for name in names})
            raise SystemExit(f"no row is meant by {word!r}; groups: {', '.join(groups)}")
        found |= meant
    return [name for name in names if name in found]


class Worker:
    """A process that runs one row by one version."""

    def __init__(self, row: str, env: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            [sys.executable, str(ROWS), "serve", row],
            env=env,
            cwd=tempfile.gettempdir(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        self.ready = self._answer()
        package = self.ready.get("package", "")
        if package and not Path(package).is_relative_to(env["PYTHONPATH"]):
            self.ready = {"failure": f"it ran {package}"}

    def asked(self, question: str) -> dict[str, Any]:
        """The answer; one with a ``failure`` where there is none."""
        # Where the process has ended, the answer tells.
        with suppress(OSError):
            print(question, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:] or [""]
        return {"failure": f"its process ended with status {status} {last[0][:300]}".strip()}

    def end(self) -> None:
        """Let the process end, and wait for it."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Taken:
    """What both versions took for a row: by the label of a figure, pairs of before and now."""

    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)
    unit: str = ""


def measured(row: str, envs: dict[str, dict[str, str]], given: argparse.Namespace) -> Taken:
    """The row in as many pairs of processes as asked for; no more of them once one has failed."""
    taken = Taken()
    for number in range(given.pairs):
        # Who comes first changes with the pair, too: it is set up beside an idle machine.
        order = [BEFORE, NOW] if number % 2 else [NOW, BEFORE]
        workers: dict[str, Worker] = {}
        try:
            for version in order:
                workers[version] = Worker(row, envs[version])
            settled = _pair(workers, given, taken)
        finally:
            for worker in workers.values():
                worker.end()
        if settled or taken.failures:
            break
    return taken


def _pair(workers: dict[str, Worker], given: argparse.Namespace, taken: Taken) -> bool:
    """One pair of processes, round by round; whether another pair would tell the same."""
    for version, worker in workers.items():
        _note(taken, version, worker.ready)
    if taken.failures:
        return False
    ready = workers[NOW].ready
    taken.unit = ready["unit"]
    order, start = list(workers), time.monotonic()
    for number in range(1 if ready["settled"] else given.rounds):
        if number >= 3 and time.monotonic() - start > given.seconds:
            break
        answers = {}
        for version in order:
            # Threads of the other one may still spin; a single one does not.
            time.sleep(REST if given.threads > 1 else 0)
            answers[version] = _note(taken, version, workers[version].asked("turn"))
        if taken.failures:
            return False
        for label, before in answers[BEFORE]["values"].items():
            taken.pairs[label].append((before, answers[NOW]["values"][label]))
        order.reverse()
    if ready["memory"]:
        for version, worker in workers.items():
            taken.memory[version].append(worker.asked("memory").get("memory", 0))
    return bool(ready["settled"])


def _note(taken: Taken, version: str, answer: dict[str, Any]) -> dict[str, Any]:
    if "failure" in answer:
        taken.failures[version] = answer["failure"]
    return answer


@dataclass
class Figure:
    """A figure of a row by both versions."""

    cells: list[str]
    ratio: float


def figures_of(row: str, taken: Taken) -> Iterator[tuple[str, Figure]]:
    """The figures of a row by name."""
    for label, pairs in taken.pairs.items():
        ratios = [_ratio(before, now) for before, now in pairs]
        ratio = statistics.median(ratios)
        middle = [statistics.median(values) for values in zip(*pairs, strict=True)]
        memory = [
            f"{statistics.median(taken.memory[version]) / 2**20:.0f}" if taken.memory else ""
            for version in (BEFORE, NOW)
        ]
        shown = [_shown(value, taken.unit) for value in middle]
        cells = [*shown, f"{ratio:.3f}", _doubt(ratios), str(len(ratios))]
        yield row + label, Figure([row + label, *cells, *memory], ratio)


def _doubt(ratios: Sequence[float]) -> str:
    """Half the width of the notch around a median, about 95 % (McGill, Tukey, Larsen 1978)."""
    if len(ratios) < 3:
        return ""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"±{1.57 * (high - low) / math.sqrt(len(ratios)):.3f}"


def _ratio(before: float, now: float) -> float:
    return 1.0 if before == now else before / max(now, 1e-12)


def _shown(value: float, unit: str) -> str:
    if unit == "s":
        scale, name = next(
            (s, n) for s, n in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * s >= 1 or n == "µs"
        )
        return f"{value * scale:.4g} {name}"
    return f"{value / 2**20:,.1f} MiB" if unit == "B" else f"{value:.0f} {unit}"


def summary(figures: dict[str, Figure]) -> str:
    """Geometric mean and least ratio of each group, and of all."""
    groups: dict[str, dict[str, Figure]] = defaultdict(dict)
    for name, figure in figures.items():
        groups[name.partition("/")[0]][name] = figure
    parts = groups if len(groups) == 1 else {**groups, "**all**": figures}
    rows = []
    for name, of in parts.items():
        worst = min(of, key=lambda name: of[name].ratio)
        mean = statistics.geometric_mean(figure.ratio for figure in of.values())
        rows.append([name, str(len(of)), f"{mean:.3f}", f"{of[worst].ratio:.3f}", worst])
    return table(["group", "figures", "geometric mean", "minimum", "which"], rows)


def explained(given: argparse.Namespace, commit: str) -> str:
    """What was compared, and how."""
    changed = " with changes of its files" if git("status", "--porcelain", "--", "singanet") else ""
    return (
        f"Before: {commit}, {git('log', '-1', '--format=%s', commit)!r}. Now: "
        f"{git('rev-parse', '--short', 'HEAD')}{changed}. Figures are medians, less is better. "
        "Ratio: the median over rounds of before by now, each round a pair of neighbours in time; "
        "doubt: half its interval of 95 %. "
        f"At most {given.pairs} pairs of processes a row with {given.rounds} rounds each, "
        f"{given.seconds:g} s a pair after three; {given.clock} time. MiB: peak beyond the "
        "imports from the fourth call on. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )


def compare(given: argparse.Namespace, folder: Path) -> bool:
    """Print and keep the table of the rows; whether all that ran before runs now."""
    commit = git("rev-parse", "--short", "--verify", f"{given.ref}^{{commit}}")
    now = environment(given, ROOT, folder)
    listed = subprocess.run(
        [sys.executable, str(ROWS), "names"], env=now, check=True, stdout=subprocess.PIPE
    )
    rows = chosen(given.rows, json.loads(listed.stdout))
    figures: dict[str, Figure] = {}
    notes: list[str] = []
    broken, left = False, list(rows)
    try:
        with checked_out(commit, folder) as place:
            envs = {BEFORE: environment(given, place, folder), NOW: now}
            start = time.monotonic()
            while left and time.monotonic() - start < 60 * given.minutes:
                taken = measured(left[0], envs, given)
                row = left.pop(0)
                for version, failure in taken.failures.items():
                    broken = broken or (version == NOW and BEFORE not in taken.failures)
                    notes.append(f"* {row} failed {version}: {failure}")
                    print(notes[-1], file=sys.stderr)
                # Rounds before a failure are no figure of a row.
                for name, figure in () if taken.failures else figures_of(row, taken):
                    print(*figure.cells, sep="  ", file=sys.stderr)
                    figures[name] = figure
    except KeyboardInterrupt:
        print("interrupted: what was measured is kept", file=sys.stderr)
    if left:
        notes.append(f"* Not measured, the run was over: {', '.join(left)}.")
    header = ["row", f"at {commit}", "now", "ratio", "doubt", "rounds",
              "MiB before", "MiB now"]  # fmt: skip
    lines = [figure.cells for figure in figures.values()]
    parts = [table(header, lines), summary(figures)] if lines else []
    body = "\n\n".join([*parts, explained(given, commit), *(["\n".join(notes)] if notes else [])])
    mark = re.sub(r"[^a-z0-9]+", "_", "-".join(given.rows).lower()).strip("_")[:40]
    name = given.name or f"against_{commit}_{mark}_{given.kernels}_{given.threads}t"
    title = f"Against {commit}: {given.kernels} kernels, {given.threads} thread(s)"
    publish(name, title, body)
    return not broken


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory() as made:
        succeeded = compare(options(), Path(made).resolve())
    raise SystemExit(not succeeded)
