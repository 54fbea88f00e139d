"""Memory of a training step by the layers, from two small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.backward import BackwardWalk
from singanet.engine.memory import arrays_in, roots_in
from singanet.engine.ones import ones
from singanet.engine.plan import Plan
from singanet.engine.recompute.units import Unit, Units
from singanet.ops.interface import Ops
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net

_BATCHES = (2, 3)
"""Not 1, at which kernels may view what they else copy."""


@dataclass(frozen=True)
class Footprint:
    """The memory of a training step for any batch size: it grows by equal amounts a sample.

    ``shapes`` are output sample shapes by name, every axis known; the steps are of 2 samples and 3.
    """

    shapes: dict[str, list[Shape]]
    small: _MeasuredStep
    large: _MeasuredStep

    def kept(self, name: str, batch_size: int = 1) -> int:
        """Bytes that ``name`` keeps for backward and no layer before it, nor the caller, holds."""
        return _line(self.small.kept[name], self.large.kept[name], batch_size)

    def all_kept(self, batch_size: int = 1) -> int:
        """The sum of `kept` over all layers."""
        return sum(self.kept(name, batch_size) for name in self.small.kept)

    def fed(self, batch_size: int) -> int:
        """Bytes of the inputs."""
        return _line(self.small.fed, self.large.fed, batch_size)

    def peak(self, batch_size: int) -> tuple[int, str]:
        """The most bytes at one moment beside parameters and inputs, and the layer at work then.

        Activations kept or still to be read, and gradients. Scratch of single kernels comes on
        top, and so does the state of the optimizer.
        """
        units, ops = self.small.units, self.small.units.kept()
        moments = zip(units.live(ops), self.large.units.live(ops), strict=True)
        sizes = [_line(low, high, batch_size) for low, high in moments]
        most = max(range(len(sizes)), key=sizes.__getitem__)
        return sizes[most], units.units[ops[most].unit].name


def measure(net: Net, extent: int | None = None) -> Footprint:
    """Run two training steps, of 2 and 3 samples of ones, and see what they hold.

    The net's generator and running state are as before at the end.
    ``extent`` stands in for axes of any extent. Errors: such axes and no ``extent``; what layers
    raise when they compute.
    """
    plan, device = net.execution_plan(), net.device
    params = roots_in([param.value for param in net.params()])
    feeds = [ones(plan, size, device, extent) for size in _BATCHES]
    with net.rehearsal(), device.scope(), np.errstate(all="ignore"):
        (small, shapes), (large, _) = (_measured(plan, feed, params, device.ops) for feed in feeds)
    return Footprint(shapes, small, large)


def _line(low: int, high: int, batch_size: int) -> int:
    return low + (high - low) * (batch_size - _BATCHES[0])


@dataclass(frozen=True)
class _MeasuredStep:
    """The ``units`` of a step, a layer each and the loss, and the bytes that are ``fed``."""

    units: Units
    fed: int

    @property
    def kept(self) -> dict[str, int]:
        """By layer the bytes that it keeps, and no layer before it."""
        found, before = {}, frozenset[int]()
        for unit in self.units.units[:-1]:
            found[unit.name] = self.units.bytes_of(unit.wants - before)
            before |= unit.wants
        return found


class _Values:
    """Numbers of the arrays that own memory, but of those ``outside``."""

    def __init__(self, outside: Mapping[int, Any]) -> None:
        self.outside = outside
        self._numbers: dict[int, int] = {}
        # Alive, so that no other array takes their identity.
        self._arrays: list[Any] = []

    @property
    def sizes(self) -> list[int]:
        """The bytes of each value."""
        return [int(array.nbytes) for array in self._arrays]

    def of(self, thing: Any) -> frozenset[int]:
        """The values that the arrays in ``thing`` lie in."""
        found = set()
        for key, array in roots_in(thing).items():
            if key not in self.outside:
                number = self._numbers.setdefault(key, len(self._arrays))
                self._arrays += [array] * (number == len(self._arrays))
                found.add(number)
        return frozenset(found)

    def beside(self, there: Mapping[int, Any], values: frozenset[int]) -> int:
        """The bytes of the arrays ``there`` that are none of ``values``."""
        new = (key for key in there if self._numbers.get(key) not in values)
        return sum(int(there[key].nbytes) for key in new if key not in self.outside)


def _measured(
    plan: Plan, feed: Mapping[str, Any], params: Mapping[int, Any], ops: Ops
) -> tuple[_MeasuredStep, dict[str, list[Shape]]]:
    """A step on ``feed``, and the output sample shapes by name."""
    fed = {key: array for key, array in roots_in(feed).items() if key not in params}
    values = _Values({**params, **fed})
    names = {step.name: i for i, step in enumerate(plan.steps)}
    results, contexts = plan.forward(feed, names, ops, np.random.default_rng(0), True, ())
    slots: dict[int, Any] = {}
    for step in plan.steps:
        slots |= zip(step.out_slots, arrays_in(results[step.name]), strict=True)
    shapes = {step.name: [slots[k].shape[1:] for k in step.out_slots] for step in plan.steps}
    read = {slot for step in plan.steps for slot in step.in_slots}
    made, waiting = frozenset[int](), [frozenset[int]()]
    units = []
    for step, context in zip(plan.steps, contexts, strict=True):
        wants = values.of(context)
        own = wants | values.of([slots[slot] for slot in step.out_slots])
        reads = values.of([slots[slot] for slot in step.in_slots])
        units.append(Unit(step.name, 0.0, reads, own - made, wants))
        made |= own
        waiting.append(waiting[-1] | wants)
    # What nobody reads is there until the last layer has run.
    units[-1] = units[-1]._replace(
        reads=units[-1].reads | values.of([slots[k] for k in slots.keys() - read])
    )
    outputs = {slot: slots[slot] for slot in plan.slots_of(plan.outputs)}
    dy = {slot: part * 0 + 1 for slot, part in outputs.items()}
    arrived = roots_in(dy)
    loss = Unit(
        plan.outputs[-1], 0.0, values.of(outputs), forward_bytes=values.beside(arrived, made)
    )
    walk = BackwardWalk(plan, contexts, dy, ())
    for item in walk.run():
        i = names[item.layer]
        passed = roots_in([walk.slot_grads, walk.partial])
        there = {**arrived, **roots_in(item.grads), **passed}
        units[i] = units[i]._replace(backward_bytes=values.beside(there, waiting[i + 1]))
        arrived = passed
        del item, there
    total = sum(int(array.nbytes) for array in fed.values())
    return _MeasuredStep(Units([*units, loss], values.sizes), total), shapes
