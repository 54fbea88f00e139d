"""What the two comparisons with PyTorch share: options, rivals, table."""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
from collections.abc import Callable, Sequence

from apart import CLOCK

COMPILED = ("alexnet", "vgg11", "resnet20", "resnet50")
"""Where torch.compile paid when it was tried on every row; it takes minutes to compile them all."""

EAGER = ("NCHW", "channels-last")

AUTOCAST = ("NCHW autocast", "channels-last autocast")
"""PyTorch's own bfloat16, which takes part where singanet's does."""

PRECISION = "BENCHMARK_PRECISION"
"""The environment variable: "bfloat16" for kernels that multiply it."""


def options(text: str) -> argparse.Namespace:
    """The command line; kernels and threads go to the environment, which libraries read once."""
    return settled(parser_of(text))


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The options that the comparisons share."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ops", choices=("numpy", "llvm", "onednn"), default="onednn")
    parser.add_argument("--rows", default="", help="model or model:batch, with commas; else all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10, help="a row, after three rounds")
    parser.add_argument("--minutes", type=float, default=20, help="after which no row is begun")
    parser.add_argument("--compile", choices=("usual", "all", "never"), default="usual")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--profile", action="store_true", help="where singanet's time goes")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="see apart.py")
    return parser


def settled(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the command line says, told to the environment."""
    given = parser.parse_args()
    os.environ[CLOCK] = given.clock
    os.environ["SINGANET_OPS"] = given.ops
    os.environ[PRECISION] = given.precision
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(given.threads)
    # OpenBLAS goes by OpenMP's number then, unless oneDNN's kernels send its threads away.
    os.environ.pop("OPENBLAS_NUM_THREADS", None)
    return given


def compare(
    given: argparse.Namespace, make: Callable, imports: Callable, what: str, name: str
) -> None:
    """Print and keep the table of the rows that ``given`` names."""
    from apart import apart
    from cases import CASES, chosen
    from report import publish, table

    if importlib.util.find_spec("torch") is None:
        raise SystemExit("PyTorch is not installed: pip install '.[peers]'")
    rows = chosen(given.rows)
    rivals = ["singanet", *EAGER, *([] if given.compile == "never" else ["compiled"])]
    rivals += AUTOCAST if given.precision == "bfloat16" else ()
    whole = 60 * given.minutes
    measured = apart(make, rivals, rows, given.rounds, given.seconds, imports, whole)
    lines, ratios, notes = [], [], [left_out(rows[len(measured) :])]
    for row, taken in zip(rows, measured, strict=False):
        case = CASES[row]
        notes += [
            f"{case.name}, {rival}: {result.failure}."
            for rival, result in taken.items()
            if result.failure and result.failure != "not tried"
        ]
        if not taken["singanet"].seconds or all(taken[rival].failure for rival in rivals[1:]):
            continue
        _expect_equal_sizes(case.name, taken)
        line, ratio = _line(case, taken)
        lines.append(line)
        ratios.append(ratio)
    mean = statistics.geometric_mean(ratios)
    lines.append(["**geometric mean**", *[""] * 4, f"**{mean:.2f}**", *[""] * 3])
    header = ["net", "batch", "singanet, ms", "PyTorch's best, ms", "which", "ratio", "(spread)",
              "singanet, MiB", "PyTorch, MiB"]  # fmt: skip
    body = "\n".join([table(header, lines), "", *_explained(given), *notes])
    kind = "" if given.precision == "float32" else f"_{given.precision}"
    file = f"{name}_{given.ops}{kind}_{given.threads}t" + ("_part" if given.rows else "")
    title = (
        f"{what} against PyTorch: {given.ops} kernels, {given.precision}, {given.threads} thread(s)"
    )
    publish(file, title, body)


def left_out(rows: Sequence[int]) -> str:
    """What the table says of rows that were not begun."""
    from cases import CASES

    return f"No time was left for {', '.join(CASES[row].name for row in rows)}." if rows else ""


def _expect_equal_sizes(name: str, taken: dict) -> None:
    counts = {result.facts["parameters"] for result in taken.values() if result.facts}
    if len(counts) != 1:
        raise SystemExit(f"{name}: the rivals train {sorted(counts)} parameters")


def _line(case: object, taken: dict) -> tuple[list[str], float]:
    """The cells of a row, and the ratio in it."""
    middle = {
        rival: statistics.median(result.seconds)
        for rival, result in taken.items()
        if not result.failure
    }
    best = min((rival for rival in middle if rival != "singanet"), key=middle.__getitem__)
    pairs = zip(taken[best].seconds, taken["singanet"].seconds, strict=False)
    ratios = [theirs / ours for theirs, ours in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    eager = min((rival for rival in EAGER if rival in middle), key=middle.__getitem__)
    cells = [
        *(case.model, str(case.batch)),
        *(f"{1e3 * middle[rival]:.3g}" for rival in ("singanet", best)),
        *(best, f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"),
        *(f"{taken[rival].peak / 2**20:.0f}" for rival in ("singanet", eager)),
    ]
    return cells, ratio


def _explained(given: argparse.Namespace) -> Sequence[str]:
    import torch

    return [
        "Ratio: PyTorch's time by singanet's, above 1 where singanet is faster; median of the "
        f"rounds, each a pair of neighbours in time, and the quartiles. At most {given.rounds} "
        f"rounds, {given.seconds:.0f} s a row after three. MiB: peak of memory beyond the imports, "
        "from the fourth call on, PyTorch's in its faster eager form. PyTorch "
        f"{torch.__version__}, SGD fused; "
        f"torch.compile: {given.compile}; {given.clock} time. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    ]
