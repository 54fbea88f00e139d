"""Which processes train a net together."""

from __future__ import annotations

from typing import Any

from singanet.engine.model import makes_passes_together, placed_by
from singanet.errors import RankError
from singanet.training.ranks.several import FitRanks, evaluates_by_itself, waiting
from singanet.training.ranks.staged import StagedRanks
from singanet.training.ranks.world import World


def ranks_of(net: Any, *optimizers: Any) -> World:
    """The ranks that share ``net``, or the ranks that ``optimizers`` reduce with.

    This process alone if there are no others, and in hooks that only rank 0 runs.
    """
    stages = [stage for optimizer in optimizers for stage in waiting(optimizer)]
    stages, placed = list(dict.fromkeys(stages)), placed_by(net)
    if evaluates_by_itself():
        if makes_passes_together(net):
            raise RankError(
                "a callback with first_rank_only",
                expected="all ranks in every pass of a net whose parameters are in slices",
                received="rank 0 alone",
                advice="leave first_rank_only out, so that all ranks run it",
            )
        return World()
    if placed is not None and placed.comm.size > 1:
        return StagedRanks(stages, placed)
    return FitRanks(stages, stages[0].comm) if stages else World()
