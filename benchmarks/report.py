"""What the benchmarks share: interleaved timing, medians with spread, tables with a date."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run, one after the other in every round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if k:
                seconds[name].append(clock() - start)
    return seconds


def spread(values: Sequence[float]) -> str:
    """Half the distance between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"±{50 * (high - low) / middle:.0f} %"


def machine() -> str:
    """Processor and core count, in words."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def publish(name: str, title: str, body: str) -> None:
    """Print the result and keep it under ``results/`` with date and machine."""
    text = f"# {title}\n\n{date.today().isoformat()}, {machine()}\n\n{body}\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)


def introduction(doc: str | None) -> str:
    """What the docstring of a benchmark says between its first line and how it is called."""
    return str(doc).partition("\n\n    python")[0].partition("\n\n")[2]
