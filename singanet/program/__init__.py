"""Recorded programs: the kernel calls of a step, with their memory planned."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet.program.programs import Programs

if TYPE_CHECKING:
    from singanet.program.peak import PeakMemory
    from singanet.program.program import Program
    from singanet.program.report.report import ProgramReport

__all__ = ["PeakMemory", "Program", "ProgramReport", "Programs"]

_WHERE = {"PeakMemory": "peak", "Program": "program", "ProgramReport": "report.report"}


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for: every net imports this room."""
    if name in _WHERE:
        return getattr(import_module(f"singanet.program.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'singanet.program' has no attribute {name!r}")
