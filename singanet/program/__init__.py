"""Recorded programs: the kernel calls of a step, with their memory planned.

`trace` records a step. `compile` makes a program of its calls (`ir`), with `cost`, `recompute`,
`join_lanes`, `narrow`, `layout` and `loads`. `lowering` and `lower_sweeps` make functions, and
`replay` runs them if the `guard` allows it. `programs` and `program` are the interfaces to users,
`report` and `memory` describe programs; `on_device`, `prediction`, `tangent` and `tuning` are other
uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked
from singanet.program.programs import Programs

if TYPE_CHECKING:  # else when they are asked for: every net imports this room
    from singanet.engine.timeline import PeakMemory
    from singanet.program import tuning as tuning
    from singanet.program.program import Program
    from singanet.program.report import ProgramReport

__all__ = ["PeakMemory", "Program", "ProgramReport", "Programs"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
