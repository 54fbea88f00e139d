"""Plans of a step within a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.base.described import checked_call
from singanet.base.kinds import bytes_text, text_table
from singanet.base.notebooks import Shown, html_table, short_note
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.reductions.sharded_states import Cut
from singanet.params.storage import SMALL
from singanet.program.memory import as_trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from singanet.engine.net import Net
    from singanet.engine.timeline import PeakMemory
    from singanet.optimizer import Optimizer, Wrapper
    from singanet.program.memory import PlannedStep
    from singanet.program.recompute import Recompute


_BARS = 40
"""The lines of a picture: parts of a step with equally many kernels."""
_WIDTH = 50
"""The characters of its longest bar."""
_TITLES = ("", "measures", "peak", "arena", "time")


@dataclass(frozen=True)
class Way:
    """One way to run a step: its ``measures`` to save memory, and their cost.

    ``memory`` is the predicted peak; ``slowdown`` is the predicted time relative to the unchanged
    step. Batches are cut into parts of ``micro_batch`` samples; programs are recorded from the
    first step, with ``recompute`` as in `FeedForwardNet.record`. With ``keep`` the net is
    offloaded, ``keep`` bytes of its folder stay in memory.
    ``optimizer`` replaces the given one, unless it is None.
    """

    measures: tuple[str, ...]
    micro_batch: int
    recompute: Recompute
    memory: PeakMemory
    slowdown: float
    step: PlannedStep = field(repr=False, compare=False)
    keep: int | None = None
    optimizer: Optimizer | Wrapper | None = field(default=None, repr=False, compare=False)

    @property
    def peak(self) -> int:
        """The predicted peak in bytes."""
        return self.memory.total

    @property
    def parts(self) -> Mapping[str, int]:
        """The bytes of the peak by purpose."""
        return self.memory.parts

    @property
    def name(self) -> str:
        """Its measures as text."""
        return ", ".join(self.measures) or "as it is"


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """The chosen way for steps of ``batch_size`` samples within ``memory_budget`` bytes.

    A budget of None has no limit. ``table`` has every way that was tried, fastest first; ``notes``
    explain which others are impossible for this net.
    """

    batch_size: int
    memory_budget: int | None
    chosen: Way
    table: tuple[Way, ...]
    notes: tuple[str, ...] = ()

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures of the chosen way, in order; empty for an unchanged step."""
        return self.chosen.measures

    @property
    def peak(self) -> int:
        """The predicted peak in bytes, above the imported interpreter."""
        return self.chosen.peak

    @property
    def slowdown(self) -> float:
        """The predicted time of a step relative to a step without measures."""
        return self.chosen.slowdown

    def __repr__(self) -> str:
        return short_note(f"MemoryPlan: {self._title()}, {bytes_text(self.peak)}")

    def __str__(self) -> str:
        table = text_table(_TITLES, self._rows(), names=2)
        return "\n".join([self._title(), *table, str(self.chosen.memory), *self.notes])

    def _repr_html_(self) -> str:
        """Return the table and the memory of the chosen way, for notebooks."""
        memory = self.chosen.memory._repr_html_()
        notes = "<br>".join(map(escape, self.notes))
        table = html_table(_TITLES, self._rows(), names=2)
        return f"<div><p>{escape(self._title())}</p>{table}{memory}<p>{notes}</p></div>"

    def _title(self) -> str:
        budget = self.memory_budget
        within = "" if budget is None else f" within {bytes_text(budget)}"
        return f"batches of {self.batch_size}{within}: {self.chosen.name}"

    def _rows(self) -> list[list[str]]:
        return [
            [
                "->" if way is self.chosen else "",
                way.name,
                bytes_text(way.peak),
                bytes_text(way.parts["arena"]),
                f"{way.slowdown:.2f} x",
            ]
            for way in self.table
        ]

    @checked_call
    def picture(self) -> Shown:
        """Draw the memory over a step as text bars, from its first kernel to its last."""
        report = self.chosen.step.report
        live, kernels = report.live_bytes, report.kernels
        outside = max(0, self.peak - max(live, default=0))
        count = min(_BARS, len(live))
        marks = [k * len(live) // count for k in range(count + 1)] if count else [0]
        lines = []
        for start, end in pairwise(marks):
            # The kernel of a part with the most memory.
            at = max(range(start, end), key=live.__getitem__)
            size = outside + live[at]
            bar = "#" * max(1, round(_WIDTH * size / self.peak))
            kernel = kernels[at]
            named = f"{kernel.phase} {kernel.layer}".strip()
            lines.append(f"{bytes_text(size):>10}  {bar:<{_WIDTH}}  {named}")
        text = "\n".join(lines)
        note = f"picture of {len(kernels):,} kernels' memory: print it"
        return Shown(text, note, f"<pre>{escape(text)}</pre>")


_UNDER_WAY = 5
"""The most sums that `parallel.Sharded` has in flight by default, including an awaited one."""


def of_one_rank(net: Net, optimizer: Any, ranks: int) -> dict[str, int]:
    """Return bytes by purpose, for the largest of ``ranks``; memory on other ranks is negative.

    The ranks train by `parallel.Sharded`. Errors: ``ranks`` that is not a positive int.
    """
    count = checked_count("net.plan", "ranks", ranks, 1)
    if count == 1:
        return {}
    params = [*net._execution_plan().trained_params()]
    chain = UpdateChain(as_trained(net, optimizer))
    largest = nlargest(_UNDER_WAY, (param.nbytes for param in params))
    spared = Cut(SMALL).spared(params, chain, count)
    # A buffer to send, and one to receive.
    return {"sums": 2 * sum(largest), "state of other ranks": -spared}
