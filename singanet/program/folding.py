"""Layers of a sealed net that one kernel does: a convolution with what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from singanet.context import Context
from singanet.execution import Plan, Step
from singanet.layers.activation import Activation
from singanet.layers.add import Add
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.conv2d import Conv2D
from singanet.ops import NumpyOps
from singanet.ops.numpy.windows import Window
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.layers import TracedLayer


@dataclass(frozen=True)
class Pending:
    """A convolution that has not run yet, since a later layer may be done by the same kernel."""

    x: Array
    weight: Array
    bias: Array | None
    window: Window
    groups: int

    def scaled(self, scale: Array, shift: Array) -> Pending:
        """The convolution whose outputs are these times ``scale`` plus ``shift``, by channel."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return replace(self, weight=self.weight * scale[:, None, None, None], bias=bias)

    def run(self, ops: NumpyOps, relu: bool = False, add: Array | None = None) -> Array:
        """The outputs."""
        given = (self.x, self.weight, self.bias, self.window, self.groups)
        return ops.conv2d_constant(*given, relu, add)


class ConvolutionPart:
    """A convolution; ``last`` says that it is done alone."""

    def __init__(self, layer: Conv2D) -> None:
        self.layer = layer
        self.last = True

    def forward(self, ctx: Context, x: Array) -> Array | Pending:
        """The outputs, or the convolution to come."""
        layer = self.layer
        shape = (layer.nb_kernels, x.shape[1] // layer.groups, *layer.window.kernel)
        weight = ctx.params["weight"].reshape(shape)
        made = Pending(x, weight, ctx.params.get("bias"), layer.window, layer.groups)
        return made.run(ctx.ops) if self.last else made


class NormalisationPart:
    """A batch normalisation by the running statistics, in the weight of the convolution."""

    def __init__(self, layer: BatchNormalization) -> None:
        self.layer = layer
        self.last = True

    def forward(self, ctx: Context, x: Pending) -> Array | Pending:
        """The outputs, or the convolution to come."""
        params, xp = ctx.params, ctx.ops.xp
        scale = params["gamma"] / xp.sqrt(params["var"] + self.layer.epsilon)
        made = x.scaled(scale, params["beta"] - params["mean"] * scale)
        return made.run(ctx.ops, ctx.relu) if self.last else made


class ReluPart:
    """A relu after a convolution."""

    def forward(self, ctx: Context, x: Pending) -> Array:
        """The outputs."""
        return x.run(ctx.ops, relu=True)


class SumPart:
    """A sum of two, one of which is a convolution to come."""

    def __init__(self, layer: Add) -> None:
        self.layer = layer

    def forward(self, ctx: Context, x: Sequence[Array | Pending]) -> Array:
        """The outputs."""
        (pending,) = (part for part in x if isinstance(part, Pending))
        (other,) = (part for part in x if not isinstance(part, Pending))
        if len(other) == len(pending.x):
            return pending.run(ctx.ops, ctx.relu, other)
        # The layer's own error.
        return self.layer.forward(ctx, [pending.run(ctx.ops), other])


def fold_layers(plan: Plan) -> int:
    """Let convolutions of a traced plan in evaluation do what follows them; how many there are.

    A normalisation goes into the weight; the sum with another array and the relu are the kernel's.
    """
    readers: dict[int, list[Step]] = {}
    for step in plan.steps:
        for slot in step.in_slots:
            readers.setdefault(slot, []).append(step)

    def reader(step: Step, kind: type) -> Any:
        """The layer of that kind which alone reads what ``step`` makes."""
        found = readers.get(step.out_slots[0], [])
        if len(found) != 1 or step.name in plan.outputs or type(_layer(found[0])) is not kind:
            return None
        return found[0]

    count, sums = 0, set()
    for step in plan.steps:
        layer = _layer(step)
        if type(layer) is not Conv2D or step.many_in:
            continue
        count += 1
        part: Any = _set(step, ConvolutionPart(layer))
        end = step
        norm = reader(step, BatchNormalization)
        if norm is not None:
            part.last, end = False, norm
            part = _set(norm, NormalisationPart(_layer(norm)))
        after, relu = reader(end, Add), reader(end, Activation)
        if after is not None and after not in sums and _is_even(plan, after):
            part.last = False
            sums.add(after)
            _set(after, SumPart(_layer(after)))
        elif norm is None and relu is not None and _layer(relu).mode == "relu":
            part.last = False
            _set(relu, ReluPart())
    return count


def _is_even(plan: Plan, step: Step) -> bool:
    """Whether the step takes two different arrays of one shape."""
    slots = step.in_slots
    return len(slots) == len(set(slots)) == 2 and len({plan.slot_shapes[s] for s in slots}) == 1


def _layer(step: Step) -> Any:
    recorded: TracedLayer = step.layer  # type: ignore[assignment]
    return recorded.layer


def _set(step: Step, part: Any) -> Any:
    recorded: TracedLayer = step.layer  # type: ignore[assignment]
    recorded.stand_in = part
    return part
