"""Named programs over one graph of symbols."""

from singanet.executor.executor import Executor
from singanet.executor.symbols import GradientSymbol, from_loader, gradients

__all__ = ["Executor", "GradientSymbol", "from_loader", "gradients"]
