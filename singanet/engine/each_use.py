"""Steps that update a shared parameter by each of its uses, and hold the gradient of none."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from singanet.engine.plan import NodeStep, Plan, remember
from singanet.params.param import Param

if TYPE_CHECKING:
    from singanet.optimizer.chain import UpdateChain


def by_each_use(plan: Plan, chain: UpdateChain) -> Plan:
    """``plan``, or one whose walks back yield some shared parameters at their first use already.

    Those are parameters that ``chain`` updates so, and whose other uses look rows up: they read no
    value on the way back.
    """
    uses: dict[int, tuple[Param, list[NodeStep]]] = {}
    for step, trained in zip(plan.steps, plan.settings().trained, strict=True):
        for param in step.layer.params.values() if trained else ():
            uses.setdefault(id(param), (param, []))[1].append(step)
    apart = {}
    for key, (param, steps) in uses.items():
        *others, last = steps
        looked_up = all(step.layer.traits.looks_up and not step.foreign for step in others)
        reads = bool(others) and looked_up and not last.layer.traits.looks_up
        trained = param.trainable and param.storage.in_memory
        if reads and trained and chain.updates_by_each_use(param):
            apart[key] = last.name
    if not apart:
        return plan
    known = "each use", *apart.items()
    made: Plan | None = plan.fused.get(known)
    if made is None:
        made = copy.copy(plan)
        made.apart, made.fused, made.headed = apart, {}, {}
        remember(plan.fused, known, made)
    return made
