"""What stands in for the layers of a sealed net that one kernel does together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from singanet.layers.batch_normalization import BatchNormalization
from singanet.layers.context import Context
from singanet.layers.conv2d import Conv2D
from singanet.layers.dense import Dense
from singanet.layers.depthwise_conv2d import DepthwiseConv2D
from singanet.layers.joins import Add
from singanet.ops.interface import Ops
from singanet.ops.window import Window
from singanet.types import Array


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

    def run(self, ops: Ops, relu: bool = False, add: Array | None = None) -> Array:
        """The outputs."""
        given = (self.x, self.weight, self.bias, self.window, self.groups)
        return ops.conv2d_constant(*given, relu, add)


class ConvolutionPart:
    """A convolution; ``last`` says that it is done alone."""

    def __init__(self, layer: Conv2D | DepthwiseConv2D) -> None:
        self.layer = layer
        self.last = True

    def forward(self, ctx: Context, x: Array) -> Array | Pending:
        """The outputs, or the convolution to come."""
        layer, weight, channels = self.layer, ctx.params["weight"], x.shape[1]
        # A depthwise one has as many groups as channels.
        groups = layer.groups if isinstance(layer, Conv2D) else channels
        kernels = weight.reshape(len(weight), channels // groups, *layer.window.kernel)
        made = Pending(x, kernels, ctx.params.get("bias"), layer.window, groups)
        return made.run(ctx.ops) if self.last else made


class DensePart:
    """A fully connected layer."""

    def __init__(self, layer: Dense) -> None:
        self.layer = layer

    def forward(self, ctx: Context, x: Array) -> Array:
        """The outputs."""
        weight = ctx.params["weight"].T if self.layer.W_transpose else ctx.params["weight"]
        return ctx.ops.affine_constant(x, weight, ctx.params.get("bias"))


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
