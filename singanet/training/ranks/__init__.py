"""The processes of a fit: a single one, data-parallel ranks, or the ranks of a pipeline."""

from __future__ import annotations

from singanet.training.ranks.process_group import ProcessGroup
from singanet.training.ranks.several import FitRanks, ranks_of

__all__ = ["FitRanks", "ProcessGroup", "ranks_of"]
