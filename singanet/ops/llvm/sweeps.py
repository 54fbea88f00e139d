"""Run the arithmetic of an optimizer's rule by one function compiled with LLVM.

Each array is read and written once, whatever the number of steps.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import LANES, SWEPT
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import CompiledPlan, Crew
from singanet.ops.workers import shared
from singanet.types import SweepSteps

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction


def joint_sweep(
    ops: PlannedOps, size: int, arrays: int, numbers: int, steps: SweepSteps
) -> CompiledPlan | None:
    if not has_compiler() or any(name not in SWEPT for name, _, _ in steps):
        return None
    runtime, key = ops.runtime(), (size, arrays, numbers, steps)
    plan: CompiledPlan | None = runtime and runtime.plan(_of_steps, key, size * len(steps))
    return plan


def _of_steps(crew: Crew, size: int, arrays: int, numbers: int, steps: SweepSteps) -> CompiledPlan:
    """Operands: the arrays, and the numbers."""
    written = {out for _, out, _ in steps if out < arrays}
    return CompiledPlan(
        crew,
        _function(arrays, numbers, steps),
        shared((size,), (-(-size // LANES),), crew.threads),
        reads=tuple(range(arrays + numbers)),
        writes=tuple(sorted(written)),
    )


@cache
def _function(arrays: int, numbers: int, steps: SweepSteps) -> CompiledFunction:
    from singanet.ops.compiled import engine
    from singanet.ops.compiled import steps as of_steps

    return engine.known(of_steps.joint_sweep, arrays, numbers, steps)
