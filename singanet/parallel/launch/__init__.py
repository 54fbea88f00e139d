"""The launcher of a job: it starts the processes, watches them, and ends them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.parallel.launch.job import JobOptions
    from singanet.parallel.launch.start import launch

__all__ = ["JobOptions", "launch"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
