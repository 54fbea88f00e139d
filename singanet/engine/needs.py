"""Which parameters that are not in memory the layers of a plan need, in the order of a pass."""

from __future__ import annotations

from collections.abc import Iterator

from singanet.engine.plan import NodeStep, Plan
from singanet.params.param import Param


def away(step: NodeStep) -> list[Param]:
    """The parameters of ``step`` that come from elsewhere."""
    return [param for param in step.layer.params.values() if not param.storage.in_memory]


def forward_needs(plan: Plan) -> list[list[Param]]:
    """Those of each step, in the order of a forward."""
    return [away(step) for step in plan.steps]


def backward_order(plan: Plan) -> Iterator[int]:
    """The steps that a walk back from all outputs goes through, the last first."""
    return reversed(plan.backward(plan.slots_of(plan.outputs), ()).needs_context)
