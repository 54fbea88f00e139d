"""Training within a given number of bytes: plans, their predicted cost, and their execution."""

from __future__ import annotations

from singanet.budget.fitting import fit_within
from singanet.budget.plans import MemoryPlan, Way, of_one_rank
from singanet.budget.search import plan_memory

__all__ = ["MemoryPlan", "Way", "fit_within", "of_one_rank", "plan_memory"]
