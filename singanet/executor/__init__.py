"""Run named programs over one graph of symbols."""

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.executor.executor import Executor
from singanet.executor.symbols import GradientSymbol, from_loader, gradients

__all__ = ["Executor", "GradientSymbol", "from_loader", "gradients"]

if not TYPE_CHECKING:  # type checkers would accept any name otherwise
    __getattr__, __dir__ = names_of(__name__, __all__)
