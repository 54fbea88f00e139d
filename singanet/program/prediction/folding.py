"""Layers of constants folded into one another: a convolution does what follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.engine.fusion import FUSIONS, Fusion, fusions_of, is_relu, rewritten
from singanet.engine.plan import NodeStep, Plan
from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.context import Context
from singanet.layers.conv import Conv2D
from singanet.layers.dense import Dense
from singanet.layers.depthwise_conv import DepthwiseConv2D
from singanet.layers.joins import Add
from singanet.layers.layer import Layer
from singanet.layers.product import as_rows
from singanet.ops.window import Window
from singanet.params.param import Param
from singanet.program.prediction.constant import constant
from singanet.types import Array


class FoldedConvolution(Layer):
    """A convolution by one kernel with what follows it: the sum with another array, a relu.

    ``sum_layer`` is the `Add` that it does, whose other input comes second.
    """

    def __init__(
        self,
        name: str,
        window: Window,
        params: Mapping[str, Param],
        sum_layer: Add | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__(name)
        self.window = window
        self.params = dict(params)
        self.sum_layer, self.relu = sum_layer, relu

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
            made: Array = ctx.ops.conv2d_constant(*given, self.relu, other)
            return made
        # The sum has an error of its own for such.
        assert self.sum_layer is not None
        return self.sum_layer.forward(ctx, [ctx.ops.conv2d_constant(*given), other])


class ConstantDense(Layer):
    """A fully connected layer whose weight is laid out for the product, and a relu after it."""

    def __init__(
        self, name: str, transposed: bool, params: Mapping[str, Param], relu: bool
    ) -> None:
        super().__init__(name)
        self.transposed, self.relu = transposed, relu
        self.params = dict(params)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The outputs."""
        weight = ctx.params["weight"].T if self.transposed else ctx.params["weight"]
        bias = ctx.params.get("bias")
        y: Array = ctx.ops.affine_constant(as_rows(x), weight, bias, self.relu)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])


def foldable(plan: Plan) -> dict[str, str]:
    """The normalisations that may go into the weight of a convolution, with its name."""
    return {norm.name: conv.name for _, (conv, norm) in fusions_of(plan, [_NORMALISED])}


def fold_norms(plan: Plan, norms: Mapping[str, str]) -> Plan:
    """The plan with ``norms``, some of those that `foldable` tells, in their convolutions."""
    found = fusions_of(plan, [_NORMALISED])
    return rewritten(plan, [(fusion, row) for fusion, row in found if row[1].name in norms])


def for_constants(plan: Plan) -> Plan:
    """The plan with a sum of two and a relu after a convolution done by its kernel.

    Weights of convolutions and of products are laid out for these.
    """
    sparse = {slot for step in plan.steps if step.layer.traits.sparse for slot in step.out_slots}
    found = fusions_of(plan, CONSTANT_FUSIONS)
    return rewritten(plan, [(f, row) for f, row in found if sparse.isdisjoint(row[0].in_slots)])


def _is_sum_of_two(step: NodeStep) -> bool:
    """Whether the step adds two different arrays of one shape."""
    first, *others = step.layer.in_shapes if step.many_in else ((), ())  # type: ignore[misc]
    return _is_one_of(step, Add) and others == [first] and len(set(step.in_slots)) == 2


def _is_one_of(step: NodeStep, *kinds: type) -> bool:
    """Whether the layer is of one of these very classes."""
    return type(step.layer) in kinds


def _is_convolution(step: NodeStep) -> bool:
    """Whether one kernel does the layer: what pads otherwise than by zeros is two."""
    plain = getattr(step.layer, "padding_mode", "zeros") == "zeros"
    return plain and _is_one_of(step, Conv2D, DepthwiseConv2D) and not step.many_in


def _is_foldable_norm(step: NodeStep) -> bool:
    return _is_one_of(step, BatchNormalization) and step.layer.axis == 1  # type: ignore[attr-defined]


def _is_product(step: NodeStep) -> bool:
    return _is_one_of(step, Dense) and not step.many_in


def _is_prepared(step: NodeStep) -> bool:
    return _is_convolution(step) or type(step.layer) is FoldedConvolution


def _normalised(conv: NodeStep, norm: NodeStep) -> dict[str, Param]:
    """Weight and bias of a convolution with the normalisation in them, or room for both."""
    given, by = conv.layer.params, norm.layer.params
    name = f"{conv.name}+{norm.name}"
    shapes = {"weight": given["weight"].shape, "bias": by["mean"].shape}
    made = {key: constant(f"{name}/{key}", shape) for key, shape in shapes.items()}
    if not all(param.filled for param in (*given.values(), *by.values())):
        return made
    values = {key: param.value for key, param in by.items()}
    epsilon: float = norm.layer.epsilon  # type: ignore[attr-defined]
    scale = values.get("gamma", 1.0) / np.sqrt(values["var"] + epsilon)
    shift = values.get("beta", 0.0) - values["mean"] * scale
    found = {
        "weight": given["weight"].value * scale[:, None],
        "bias": given["bias"].value * scale + shift if "bias" in given else shift,
    }
    for key, array in found.items():
        made[key].retype(array.astype(given["weight"].value.dtype, copy=False))
    return made


def _with_norm(conv: NodeStep, norm: NodeStep) -> Layer:
    layer: Any = conv.layer
    return FoldedConvolution(conv.name, layer.window, _normalised(conv, norm))


def _convolution(conv: NodeStep, *after: NodeStep) -> Layer:
    layer: Any = conv.layer
    add = next((step.layer for step in after if isinstance(step.layer, Add)), None)
    relu = len(after) > (add is not None)
    return FoldedConvolution(conv.name, layer.window, layer.params, add, relu)


def _product(dense: NodeStep, *relu: NodeStep) -> Layer:
    layer: Any = dense.layer
    return ConstantDense(dense.name, layer.W_transpose, layer.params, bool(relu))


_NORMALISED = Fusion((_is_convolution, _is_foldable_norm), _with_norm)

CONSTANT_FUSIONS = (
    Fusion((_is_prepared, _is_sum_of_two, is_relu), _convolution),
    Fusion((_is_prepared, _is_sum_of_two), _convolution),
    Fusion((_is_prepared, is_relu), _convolution),
    Fusion((_is_prepared,), _convolution),
    Fusion((_is_product, is_relu), _product),
    Fusion((_is_product,), _product),
    *FUSIONS,
)
"""Fusions of predictors."""
