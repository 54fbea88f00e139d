"""Normalisation over groups of channels, and over each channel of a sample."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.initializer import Constant
from singanet.layers.arguments import expect_int, expect_one_input, expect_positive
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs
from singanet.layers.layer_norm import scale_and_shift
from singanet.types import Array, GivenShape, Shapes


class GroupNorm(Layer):
    """y = gamma (x - mean) / sqrt(var + epsilon) + beta over each group of channels of a sample.

    Samples are (C, ...); the C channels form ``groups`` groups, normalised over their channels
    and all positions. ``gamma`` and ``beta`` have shape (C,); ``center=False`` leaves beta out,
    ``scale=False`` gamma, ``affine=False`` both. The variance is the biased one. Wu and He, 2018.
    """

    def __init__(
        self,
        name: str,
        groups: int = 32,
        epsilon: float = 1e-5,
        affine: bool = True,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        *,
        center: bool = True,
        scale: bool = True,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.groups = expect_int(name, "groups", groups)
        self.epsilon = expect_positive(name, "epsilon", epsilon)
        self.affine = affine
        self.center, self.scale = bool(center and affine), bool(scale and affine)
        self.gamma_specs = gamma_specs
        self.beta_specs = beta_specs

    def groups_of(self, channels: int) -> int:
        """How many groups ``channels`` channels form."""
        return self.groups

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape or 0 in shape or shape[0] % self.groups_of(shape[0]):
            raise self.shape_error(
                f"samples whose channels form {self.groups} groups",
                f"sample shape {shape}",
                "choose groups that divides the channels",
            )
        groups = self.groups_of(shape[0])
        if prod(shape) == groups:
            raise self.shape_error(
                "more than one number in a group",
                f"sample shape {shape} in {groups} groups",
                "one number alone would always become 0; use LayerNorm",
            )
        if self.scale:
            self.add_param("gamma", shape[:1], self.gamma_specs, default=Constant(1.0))
        if self.center:
            self.add_param("beta", shape[:1], self.beta_specs)
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """The normalised ``x``; x and two numbers a group are kept."""
        gamma, beta = self._factors(ctx)
        groups = self.groups_of(x.shape[1])
        y, statistics = ctx.ops.group_norm(x, groups, gamma, beta, self.epsilon)
        ctx.save(x=x, statistics=statistics)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x, gamma and beta."""
        x, statistics = ctx.saved["x"], ctx.saved["statistics"]
        dx, dgamma, dbeta = ctx.ops.group_norm_backward(
            dy, x, self.groups_of(x.shape[1]), self._factors(ctx)[0], statistics
        )
        named = {"gamma": dgamma, "beta": dbeta}
        return dx, {k: g for k, g in named.items() if g is not None and k in ctx.params}

    def _factors(self, ctx: Context) -> tuple[Array | None, Array | None]:
        return scale_and_shift(ctx.ops, ctx.params.get("gamma"), ctx.params.get("beta"))


class InstanceNorm(GroupNorm):
    """Each channel of each sample normalised over its positions: a group for every channel.

    Samples are (C, positions...). Ulyanov et al., 2016.
    """

    def __init__(
        self,
        name: str,
        epsilon: float = 1e-5,
        affine: bool = True,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        *,
        center: bool = True,
        scale: bool = True,
    ) -> None:
        super().__init__(
            name,
            epsilon=epsilon,
            affine=affine,
            gamma_specs=gamma_specs,
            beta_specs=beta_specs,
            input_sample_shape=input_sample_shape,
            center=center,
            scale=scale,
        )

    def groups_of(self, channels: int) -> int:
        """One group a channel."""
        return channels

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, positions...), unchanged."""
        if isinstance(in_shapes, list) or prod(in_shapes[1:]) < 2 or 0 in in_shapes[:1]:
            raise self.shape_error(
                "one input of sample shape (channels, positions...), of several positions",
                str(in_shapes),
                "a channel of one number would always become 0; use LayerNorm",
            )
        return super().setup(in_shapes)
