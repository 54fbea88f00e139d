"""A training step with a look at what is held after every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.engine.backward import BackwardWalk
from singanet.engine.plan import Plan
from singanet.ops.interface import Ops
from singanet.params.param import Param
from singanet.summary.buffers import HeldBuffers, buffers
from singanet.types import Shape


@dataclass
class Trace:
    """Bytes beside parameters and inputs: ``moments`` in time, each ``at`` a layer.

    ``kept`` is by layer what its context holds and none before it, ``fed`` the inputs.
    """

    fed: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    moments: list[int] = field(default_factory=list)
    at: list[str] = field(default_factory=list)

    def note(self, name: str, held: HeldBuffers, base: int) -> None:
        """Write a moment down."""
        self.at.append(name)
        self.moments.append(held.total - base)


def trace(
    plan: Plan, feed: Mapping[str, Any], params: list[Param], ops: Ops
) -> tuple[Trace, dict[str, list[Shape]]]:
    """Trace a step on ``feed``; also the output sample shapes by name."""
    seen, held = Trace(), HeldBuffers()
    held.add(buffers([param.value for param in params]))
    seen.fed = held.add(buffers(feed))
    base = held.total
    names = [step.name for step in plan.steps]
    results, contexts = plan.forward(feed, names, ops, np.random.default_rng(0), True, ())
    saved = [buffers(ctx) for ctx in contexts]
    outputs = {name: results[name] for name in plan.outputs}
    shapes = {name: [part.shape[1:] for part in _parts(results[name])] for name in names}
    _forward(plan, seen, held, saved, results, base)
    results.clear()
    dy = _loss(plan, seen, held, outputs, base)
    outputs.clear()
    _backward(plan, seen, held, saved, BackwardWalk(plan, contexts, dy, ()), base)
    return seen, shapes


def _forward(
    plan: Plan, seen: Trace, held: HeldBuffers, saved: list[Any], results: dict[str, Any], base: int
) -> None:
    """The moments when each layer has run and its inputs are not yet let go."""
    live: dict[int, Any] = {}
    for step, context in zip(plan.steps, saved, strict=True):
        seen.kept[step.name] = held.add(context)
    for context in saved:
        held.drop(context)
    for step, frees, context in zip(plan.steps, plan.frees, saved, strict=True):
        held.add(context)
        for slot, part in zip(step.out_slots, _parts(results[step.name]), strict=True):
            live[slot] = buffers(part)
            held.add(live[slot])
        seen.note(step.name, held, base)
        for slot in frees:
            held.drop(live.pop(slot))
    for left in live.values():
        held.drop(left)


def _loss(
    plan: Plan, seen: Trace, held: HeldBuffers, outputs: dict[str, Any], base: int
) -> dict[int, Any]:
    """The gradient of every output; beside it the output itself is still there."""
    parts = {
        slot: part
        for name, value in outputs.items()
        for slot, part in zip(plan.by_name[name].out_slots, _parts(value), strict=True)
    }
    out = buffers(list(parts.values()))
    dy = {slot: part * 0 + 1 for slot, part in parts.items()}
    mine = buffers(dy)
    held.add(out)
    held.add(mine)
    seen.note(plan.outputs[-1], held, base)
    held.drop(out)
    held.drop(mine)
    return dy


def _backward(
    plan: Plan, seen: Trace, held: HeldBuffers, saved: list[Any], walk: BackwardWalk, base: int
) -> None:
    """The moments when each layer has run backward and its own context is not yet let go."""
    position = {step.name: i for i, step in enumerate(plan.steps)}
    arrived = buffers(walk.slot_grads)
    held.add(arrived)
    left = len(saved)
    for item in walk.run():
        i = position[item.layer]
        made = buffers(item.grads)
        passed = buffers([walk.slot_grads, walk.partial])
        held.add(made)
        held.add(passed)
        seen.note(item.layer, held, base)
        held.drop(made)
        held.drop(arrived)
        del item, made
        for context in saved[i:left]:
            held.drop(context)
        arrived, left = passed, i


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
