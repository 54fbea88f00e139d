"""Layers of a sealed net that one kernel does: a convolution with what follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singanet.engine.plan import Plan, Step
from singanet.layers.activation import Activation
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.conv2d import Conv2D
from singanet.layers.dense import Dense
from singanet.layers.depthwise_conv2d import DepthwiseConv2D
from singanet.layers.joins import Add
from singanet.program.recording.parts import (
    ConvolutionPart,
    DensePart,
    NormalisationPart,
    ReluPart,
    SumPart,
)

if TYPE_CHECKING:
    from singanet.program.recording.layers import TracedLayer


def fold_layers(plan: Plan) -> None:
    """Let convolutions of a traced plan do what follows them.

    A normalisation goes into the weight; the sum with another array and the relu are the kernel's.
    Products are those of constant matrices.
    """
    folds = _Folds(plan)
    for step in plan.steps:
        kind = type(_layer(step))
        if kind in (Conv2D, DepthwiseConv2D) and not step.many_in:
            folds.convolution(step)
        elif kind is Dense and not step.many_in:
            _set(step, DensePart(_layer(step)))


class _Folds:
    """The steps of a plan, by who reads what they make."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sums: set[Step] = set()
        self._readers: dict[int, list[Step]] = {}
        for step in plan.steps:
            for slot in step.in_slots:
                self._readers.setdefault(slot, []).append(step)

    def convolution(self, step: Step) -> None:
        """Let the convolution do a normalisation, and then a sum of two or a relu."""
        part: Any = _set(step, ConvolutionPart(_layer(step)))
        norm = self._reader(step, BatchNormalization)
        end = step
        if norm is not None:
            part.last, end = False, norm
            part = _set(norm, NormalisationPart(_layer(norm)))
        after = self._reader(end, Add)
        if after is not None and after not in self._sums and self._is_even(after):
            part.last = False
            self._sums.add(after)
            _set(after, SumPart(_layer(after)))
        elif norm is None:
            # A normalisation knows of the relu after it.
            part.last = not self._relu(end)

    def _relu(self, step: Step) -> bool:
        """Let a relu that alone reads what ``step`` makes be done there, if there is one."""
        relu = self._reader(step, Activation)
        if relu is None or _layer(relu).mode != "relu":
            return False
        _set(relu, ReluPart())
        return True

    def _reader(self, step: Step, kind: type) -> Step | None:
        """The step of a layer of that kind which alone reads what ``step`` makes."""
        found = self._readers.get(step.out_slots[0], [])
        if len(found) != 1 or step.name in self._plan.outputs:
            return None
        return found[0] if type(_layer(found[0])) is kind else None

    def _is_even(self, step: Step) -> bool:
        """Whether the step takes two different arrays of one shape."""
        slots, shapes = step.in_slots, self._plan.slot_shapes
        return len(slots) == len(set(slots)) == 2 and shapes[slots[0]] == shapes[slots[1]]


def _layer(step: Step) -> Any:
    recorded: TracedLayer = step.layer  # type: ignore[assignment]
    return recorded.layer


def _set(step: Step, part: Any) -> Any:
    recorded: TracedLayer = step.layer  # type: ignore[assignment]
    recorded.stand_in = part
    return part
