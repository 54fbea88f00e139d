"""Plans of a step within a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.base.described import checked_call
from singanet.base.kinds import bytes_text, text_table
from singanet.offload.offloaded import is_large, least_keep
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.reductions.sharded_states import Cut
from singanet.params.storage import SMALL
from singanet.program.memory import as_trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from singanet.engine.net import Net
    from singanet.engine.peak_memory import PeakMemory
    from singanet.optimizer import Optimizer, Wrapper
    from singanet.program.memory import PlannedStep
    from singanet.program.recompute import Recompute


_BARS = 40
"""Lines of a picture: so many parts of a step, of as many kernels each."""
_WIDTH = 50
"""Characters of its longest bar."""


@dataclass(frozen=True)
class Way:
    """One way to carry out a step: the ``measures`` it takes, and what they cost.

    ``memory`` is the predicted peak; ``slowdown`` is the predicted time over that of the step as it
    is. Batches are cut into parts of ``micro_batch`` samples; programs are recorded from
    the first step on, and recompute as `FeedForwardNet.record` says. With ``keep`` the net is
    offloaded, and so many bytes of what is in its folder are in memory: its steps run by the
    layers. ``optimizer`` takes the place of the given one, unless it is None.
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
        """Its bytes by what they are for."""
        return self.memory.parts

    @property
    def name(self) -> str:
        """Its measures in words."""
        return ", ".join(self.measures) or "as it is"


@dataclass(frozen=True)
class MemoryPlan:
    """The way chosen for steps of ``batch_size`` samples within ``memory_budget`` bytes.

    None for the budget is any. ``table`` has every way that was looked at, cheapest in time first;
    ``notes`` say which others are not open to this net, and why.
    """

    batch_size: int
    memory_budget: int | None
    chosen: Way
    table: tuple[Way, ...]
    notes: tuple[str, ...] = ()

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures taken, in order; none if the step runs as it is."""
        return self.chosen.measures

    @property
    def peak(self) -> int:
        """The predicted peak in bytes, above the imported interpreter."""
        return self.chosen.peak

    @property
    def slowdown(self) -> float:
        """The predicted time of a step over that of one without measures."""
        return self.chosen.slowdown

    def __str__(self) -> str:
        budget = self.memory_budget
        within = "" if budget is None else f" within {bytes_text(budget)}"
        rows = [
            [
                "->" if way is self.chosen else "",
                way.name,
                bytes_text(way.peak),
                bytes_text(way.parts["arena"]),
                f"{way.slowdown:.2f} x",
            ]
            for way in self.table
        ]
        return "\n".join(
            [
                f"batches of {self.batch_size}{within}: {self.chosen.name}",
                *text_table(["", "measures", "peak", "arena", "time"], rows, names=2),
                str(self.chosen.memory),
                *self.notes,
            ]
        )

    @checked_call
    def picture(self) -> str:
        """The memory over a step as bars of text, from its first kernel down to its last.

        That of an offloaded net, which no program plans, is the step as it would be recorded.
        """
        report = self.chosen.step.report
        live, kernels = report.live_bytes, report.kernels
        outside = max(0, self.peak - max(live, default=0))
        count = min(_BARS, len(live))
        marks = [k * len(live) // count for k in range(count + 1)] if count else [0]
        lines = []
        for start, end in pairwise(marks):
            # The moment of a part at which most is needed.
            at = max(range(start, end), key=live.__getitem__)
            size = outside + live[at]
            bar = "#" * max(1, round(_WIDTH * size / self.peak))
            kernel = kernels[at]
            named = f"{kernel.phase} {kernel.layer}".strip()
            lines.append(f"{bytes_text(size):>10}  {bar:<{_WIDTH}}  {named}")
        return "\n".join(lines)


_UNDER_WAY = 5
"""Sums that `parallel.Sharded` has under way at most by default, the one it waits for too."""


def of_one_rank(net: Net, optimizer: Any, ranks: int) -> dict[str, int]:
    """Bytes by purpose, for the one of ``ranks`` with most: what others keep is below 0.

    They train by `parallel.Sharded`. Errors: ``ranks`` that are no positive int.
    """
    count = checked_count("net.plan", "ranks", ranks, 1)
    if count == 1:
        return {}
    params = [*net._execution_plan().trained_params()]
    chain = UpdateChain(as_trained(net, optimizer))
    largest = nlargest(_UNDER_WAY, (param.nbytes for param in params))
    spared = Cut(SMALL).spared(params, chain, count)
    # What is sent, and what comes.
    return {"sums": 2 * sum(largest), "state of other ranks": -spared}


@dataclass(frozen=True)
class Offload:
    """Bytes of a net with its optimizer, by where they are while it is offloaded.

    ``params`` and ``state`` stay in memory; of the ``stored`` others ``least`` have to be there
    at a time. A step in ``n`` parts reads and writes ``n * per_part + per_step``; a part leaves
    ``gradients`` for the next.
    """

    params: int
    state: int
    stored: int
    least: int
    per_part: int
    per_step: int
    gradients: int


def offload_of(net: Net, optimizer: Any) -> Offload:
    """`Offload` of ``net`` and ``optimizer``, None for no state."""
    chain, params = UpdateChain(optimizer), net.params()
    small = [param for param in params if not is_large(param)]
    large = [param for param in params if is_large(param)]
    stored, moved = sum(param.nbytes for param in large), sum(map(chain.state_bytes, large))
    trained = [param for param in params if param.trainable]
    return Offload(
        sum(param.nbytes for param in small),
        sum(map(chain.state_bytes, small)),
        stored + moved,
        least_keep(net, chain)[0],
        # Once forward and once backward.
        2 * stored,
        sum(param.nbytes for param in large if param.trainable) + 2 * moved,
        sum(prod(param.shape) * chain.rule_type(param).itemsize for param in trained),
    )
