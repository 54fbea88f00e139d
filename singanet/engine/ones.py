"""Feeds of ones, for steps that are run for their shapes and memory alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.device import Device
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError
from singanet.types import Shape


def ones(plan: Plan, batch: int, device: Device, extent: int | None) -> dict[str, Any]:
    """Ones for every input, but zeros for indices and whole lengths for lengths."""
    feed: dict[str, Any] = {}
    for name in plan.inputs:
        step = plan.by_name[name]
        if step.layer.traits.sparse:
            raise ArgumentError(
                f"net, layer {name!r}",
                expected="inputs whose shapes tell what a step computes",
                received="a sparse input: its work depends on the entries",
                advice="ask the net that reads arrays in its place: leave sparse out",
            )
        declared = step.layer.in_shapes or ()
        shapes = declared if isinstance(declared, list) else [declared]
        shapes = [_closed(step, shape, extent) for shape in shapes]
        value = 1
        if shapes in ([()], [(1,)]) and not step.integers:
            value = _steps_beside(plan, step, extent)
        arrays = [
            device.put(np.full((batch, *shape), value * (k not in step.integers), step.fed_type(k)))
            for k, shape in enumerate(shapes)
        ]
        feed[name] = arrays if isinstance(declared, list) else arrays[0]
    return feed


def _closed(step: NodeStep, shape: Shape, extent: int | None) -> Shape:
    if -1 in shape and extent is None:
        raise ArgumentError(
            f"net, layer {step.name!r}",
            expected="extent, since its input has an axis of any extent",
            received="a batch_size alone",
            advice="pass for example extent=100",
        )
    return tuple(extent if axis == -1 and extent is not None else axis for axis in shape)


def _steps_beside(plan: Plan, lengths: NodeStep, extent: int | None) -> int:
    """The number of steps of the sequences read together with ``lengths``; 1 for other numbers."""
    for step in plan.steps:
        if lengths.out_slots[0] in step.in_slots[1:]:
            first = plan.slot_shapes[step.in_slots[0]]
            if len(first) > 1:
                return extent or 1 if first[0] == -1 else int(first[0])
    return 1
