"""The result of measuring routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from singanet.ops.onednn.cases import ROUTES, Case


@dataclass(frozen=True)
class RouteTimes:
    """A convolution kernel that is called ``calls`` times a step, and its seconds by route.

    ``estimate`` is the route taken without measuring, ``chosen`` the route taken now.
    """

    case: Case
    calls: int
    seconds: Mapping[str, float]
    estimate: str
    chosen: str


@dataclass(frozen=True)
class TuningReport:
    """The cases measured with ``threads``; ``known`` ones were measured before.

    ``path`` is the file with the choices.
    """

    rows: tuple[RouteTimes, ...]
    known: int
    threads: int
    path: Path

    @property
    def estimated_seconds(self) -> float:
        """Of all calls of the measured cases, by the routes of the estimates."""
        return sum(row.calls * row.seconds[row.estimate] for row in self.rows)

    @property
    def chosen_seconds(self) -> float:
        """The same by the routes that were chosen."""
        return sum(row.calls * row.seconds[row.chosen] for row in self.rows)

    def __str__(self) -> str:
        """A line a case with milliseconds, those of the chosen route marked, and the sums."""
        from singanet.base.text import text_table

        head = ["kernel", "images", "weight", "stride", "groups", "calls", *ROUTES, "estimate"]
        lines = text_table(head, [_cells(row) for row in self.rows], names=3) if self.rows else []
        changed = sum(row.chosen != row.estimate for row in self.rows)
        return "\n".join(
            [
                *lines,
                f"{len(self.rows)} convolution kernels measured with {self.threads} threads, "
                f"{self.known} known before; {changed} go another way than estimated",
                f"a step of them: {1e3 * self.estimated_seconds:.2f} ms as estimated, "
                f"{1e3 * self.chosen_seconds:.2f} ms as chosen; kept in {self.path}",
            ]
        )


def _cells(row: RouteTimes) -> list[str]:
    case = row.case
    times = []
    for route in ROUTES:
        taken = row.seconds.get(route)
        mark = "*" if route == row.chosen else ""
        times.append("" if taken is None else f"{mark}{1e3 * taken:.3f}")
    shapes = ["x".join(map(str, shape)) for shape in (case.x, case.weight, case.window.stride)]
    return [case.kernel, *shapes, str(case.groups), str(row.calls), *times, row.estimate]
