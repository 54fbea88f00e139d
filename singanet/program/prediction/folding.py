"""Layers of constants folded into one another: a convolution does what follows it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.engine.plan import NodeStep, Plan
from singanet.layers.activation import Activation
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.context import Context
from singanet.layers.conv import Conv2D
from singanet.layers.dense import Dense, as_rows
from singanet.layers.depthwise_conv import DepthwiseConv2D
from singanet.layers.dummy import Dummy
from singanet.layers.joins import Add
from singanet.layers.layer import Layer
from singanet.ops.window import Window
from singanet.params.param import Param, ParamSpec
from singanet.program.prediction.constant import ConstantParam
from singanet.types import Array

_CONVOLUTIONS = (Conv2D, DepthwiseConv2D)


class FoldedConvolution(Layer):
    """A convolution by one kernel with what follows it: the sum with another array, a relu.

    ``sum_layer`` is the `Add` that it does, whose other input comes second.
    """

    def __init__(self, name: str, window: Window, params: Mapping[str, Param]) -> None:
        super().__init__(name)
        self.window = window
        self.params = dict(params)
        self.sum_layer: Add | None = None
        self.relu = False

    def forward(self, ctx: Context, x: Any) -> Array:
        """The outputs."""
        x, other = (x, None) if self.sum_layer is None else x
        weight, bias = ctx.params["weight"], ctx.params.get("bias")
        channels = x.shape[1]
        # One array serves both kinds, and with a normalisation in it or without.
        size = self.window.kernel[0] * self.window.kernel[1]
        per_group = weight.size // (len(weight) * size)
        kernels = weight.reshape(len(weight), per_group, *self.window.kernel)
        given = x, kernels, bias, self.window, channels // per_group
        if other is None or len(other) == len(x):
            made: Array = ctx.ops.conv2d_constant(*given, self.relu or ctx.relu, other)
            return made
        # The sum has an error of its own for such.
        assert self.sum_layer is not None
        return self.sum_layer.forward(ctx, [ctx.ops.conv2d_constant(*given), other])


class ConstantDense(Layer):
    """A fully connected layer whose weight is laid out for the product, and a relu after it."""

    def __init__(self, name: str, transposed: bool, params: Mapping[str, Param]) -> None:
        super().__init__(name)
        self.transposed = transposed
        self.params = dict(params)
        self.relu = False

    def forward(self, ctx: Context, x: Array) -> Array:
        """The outputs."""
        weight = ctx.params["weight"].T if self.transposed else ctx.params["weight"]
        bias = ctx.params.get("bias")
        y: Array = ctx.ops.affine_constant(as_rows(x), weight, bias, self.relu)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])


def foldable(plan: Plan) -> dict[str, str]:
    """The normalisations that may go into the weight of a convolution, with its name."""
    readers = _Readers(plan)
    found = {}
    for step in plan.steps:
        if _is_convolution(step):
            norm = readers.only(step, BatchNormalization)
            if norm is not None and norm.layer.axis == 1:  # type: ignore[attr-defined]
                found[norm.name] = step.name
    return found


def fold_norms(plan: Plan, norms: Mapping[str, str]) -> Plan:
    """The plan with ``norms``, some of those that `foldable` tells, in their convolutions."""
    made = _Rewriting(plan)
    for norm, conv in norms.items():
        step, after = plan.by_name[conv], plan.by_name[norm]
        layer: Any = step.layer
        folded = FoldedConvolution(conv, layer.window, _normalised(step, after))
        made.put([step, after], folded)
    return made.plan()


def fuse(plan: Plan) -> Plan:
    """The plan with a sum of two and a relu after a convolution done by its kernel.

    Weights of convolutions and of products are laid out for these.
    """
    made, readers, sums = _Rewriting(plan), _Readers(plan), set[NodeStep]()
    sparse = {slot for step in plan.steps if step.layer.sparse for slot in step.out_slots}
    for step in plan.steps:
        layer: Any = step.layer
        if _is_one_of(step, Dense) and not step.many_in and sparse.isdisjoint(step.in_slots):
            dense = ConstantDense(step.name, layer.W_transpose, layer.params)
            made.put(_with_relu(readers, [step], dense), dense)
        elif _is_convolution(step, FoldedConvolution):
            members, folded = [step], FoldedConvolution(step.name, layer.window, layer.params)
            after = readers.only(step, Add)
            if after is not None and after not in sums and _is_even(plan, after):
                folded.sum_layer = after.layer  # type: ignore[assignment]
                sums.add(after)
                members.append(after)
            made.put(_with_relu(readers, members, folded), folded)
    return made.plan()


def _with_relu(
    readers: _Readers, members: list[NodeStep], layer: FoldedConvolution | ConstantDense
) -> list[NodeStep]:
    """``members`` with the relu after them, which ``layer`` then does as well."""
    after = readers.only(members[-1], Activation)
    if after is None or after.layer.mode != "relu":  # type: ignore[attr-defined]
        return members
    layer.relu = True
    return [*members, after]


class _Readers:
    """Who reads what the steps of a plan make."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._readers: dict[int, list[NodeStep]] = {}
        for step in plan.steps:
            for slot in step.in_slots:
                self._readers.setdefault(slot, []).append(step)

    def only(self, step: NodeStep, kind: type) -> NodeStep | None:
        """The step of a layer of that kind which alone reads what ``step`` makes."""
        found = self._readers.get(step.out_slots[0], [])
        if len(found) != 1 or step.name in self._plan.outputs:
            return None
        return found[0] if _is_one_of(found[0], kind) else None


class _Rewriting:
    """A plan in the making, in which single steps stand for several of another plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._slot_shapes = list(plan.slot_shapes)
        self._places: dict[NodeStep, list[NodeStep]] = {}

    def put(self, members: list[NodeStep], layer: Layer) -> None:
        """Let ``layer`` do what ``members`` do, each of which reads the one before it."""
        first, last = members[0], members[-1]
        layer.in_shapes = first.layer.in_shapes
        made = copy.copy(last)
        made.layer, made.relu_of, made.fed = layer, "", first.fed
        made.in_slots = list(first.in_slots)
        for before, member in pairwise(members):
            made.in_slots += [s for s in member.in_slots if s not in before.out_slots]
        self._places.update({member: [] for member in members})
        if first.fed and last is not first:
            given = self._given(first)
            made.in_slots, made.fed = [*given.out_slots, *made.in_slots], False
            self._places[first] = [given]
        made.many_in = len(made.in_slots) > 1
        self._places[last] = [*self._places[last], made]

    def plan(self) -> Plan:
        """The plan with what was put, each where the last of its members was."""
        steps = [new for step in self._plan.steps for new in self._places.get(step, [step])]
        return self._plan.of_steps(steps, self._slot_shapes)

    def _given(self, step: NodeStep) -> NodeStep:
        """What is fed to a layer that begins the net, under its name."""
        given = copy.copy(step)
        given.layer = Dummy(step.name)
        given.layer.in_shapes = step.layer.in_shapes
        given.out_slots, given.relu = [len(self._slot_shapes)], False
        self._slot_shapes.append(step.layer.in_shapes)
        return given


def _is_even(plan: Plan, step: NodeStep) -> bool:
    """Whether the step takes two different arrays of one shape."""
    slots, shapes = step.in_slots, plan.slot_shapes
    return len(slots) == len(set(slots)) == 2 and shapes[slots[0]] == shapes[slots[1]]


def _is_one_of(step: NodeStep, *kinds: type) -> bool:
    """Whether the layer is of one of these very classes, and runs as they do."""
    return type(step.layer) in kinds and "forward" not in vars(step.layer)


def _is_convolution(step: NodeStep, *more: type) -> bool:
    """Whether one kernel does the layer: what pads otherwise than by zeros is two."""
    plain = getattr(step.layer, "padding_mode", "zeros") == "zeros"
    return plain and _is_one_of(step, *_CONVOLUTIONS, *more) and not step.many_in


def _normalised(conv: NodeStep, norm: NodeStep) -> dict[str, Param]:
    """Weight and bias of a convolution with the normalisation in them, or room for both."""
    given, by = conv.layer.params, norm.layer.params
    name = f"{conv.name}+{norm.name}"
    shapes = {"weight": given["weight"].shape, "bias": by["mean"].shape}
    made = {key: ConstantParam(ParamSpec(f"{name}/{key}"), shape) for key, shape in shapes.items()}
    if not all(param.filled for param in (*given.values(), *by.values())):
        return dict(made)
    values = {key: param.value for key, param in by.items()}
    epsilon: float = norm.layer.epsilon  # type: ignore[attr-defined]
    scale = values.get("gamma", 1.0) / np.sqrt(values["var"] + epsilon)
    shift = values.get("beta", 0.0) - values["mean"] * scale
    made["weight"].fill(given["weight"].value * scale[:, None])
    made["bias"].fill(given["bias"].value * scale + shift if "bias" in given else shift)
    return dict(made)
