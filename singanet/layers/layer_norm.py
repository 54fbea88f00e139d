"""Normalisation of each sample, or step of a sequence, by itself."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from singanet.base.arguments import is_int, is_number
from singanet.errors import ArgumentError
from singanet.initializer import Constant
from singanet.layers.arguments import expect_one_input, expect_positive
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.layers.rms import rms_norm, rms_norm_backward
from singanet.ops import Ops
from singanet.types import Array, GivenShape, Shapes


class LayerNorm(Layer):
    """y = gamma (x - mean) / sqrt(var + epsilon) + beta over the axes from ``axis`` on.

    ``axis`` counts the batch axis; -1, the default, is the last one: the features of each step of
    a sequence (L, D). ``gamma`` and ``beta`` have the shape of these axes; ``center=False`` leaves
    beta out, ``scale=False`` gamma, ``affine=False`` both. The variance is the biased one.
    Ba, Kiros and Hinton, 2016.
    """

    traits = Traits(any_extent=True)
    _usual_gamma = 1.0

    def __init__(
        self,
        name: str,
        axis: int = -1,
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
        if not (is_int(axis) or (is_int(axis, -32) and axis < 0)):
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="an axis of the sample, from 1, or negative to count from the last",
                received=repr(axis),
                advice="axis 0 is the batch; use -1 for the last axis alone",
            )
        self.axis = int(axis)
        if axis == -1:
            self.traits = replace(self.traits, masks="keeps")
        self.epsilon = expect_positive(name, "epsilon", epsilon)
        self.affine = affine
        self.center, self.scale = bool(center and affine), bool(scale and affine)
        self.gamma_specs = gamma_specs
        self.beta_specs = beta_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape that has the axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        first = self._first(len(shape) + 1)
        if not 1 <= first <= len(shape) or min(shape[first - 1 :]) < 1:
            raise self.shape_error(
                f"samples of a known size from axis {self.axis} on, counted with the batch axis",
                f"sample shape {shape}",
                "use axis=-1 for the last axis alone",
            )
        if self.scale:
            self.add_param(
                "gamma", shape[first - 1 :], self.gamma_specs, default=Constant(self._usual_gamma)
            )
        if self.center:
            self.add_param("beta", shape[first - 1 :], self.beta_specs)
        return shape

    def _first(self, rank: int) -> int:
        """The first normalised axis of an array of ``rank`` axes."""
        return self.axis if self.axis > 0 else rank + self.axis

    def _rows(self, x: Array) -> Array:
        """Each set of elements that is normalised together as a row."""
        first = self._first(x.ndim)
        return x.reshape(prod(x.shape[:first]), prod(x.shape[first:]))

    def _factors(self, ctx: Context) -> tuple[Array | None, Array | None]:
        found = (ctx.params.get("gamma"), ctx.params.get("beta"))
        return scale_and_shift(ctx.ops, *(p if p is None else p.reshape(-1) for p in found))

    def forward(self, ctx: Context, x: Array) -> Array:
        """The normalised ``x``; x and two numbers a row are kept."""
        gamma, beta = self._factors(ctx)
        y, statistics = ctx.ops.layer_norm(self._rows(x), gamma, beta, self.epsilon)
        ctx.save(x=x, statistics=statistics)
        return y.reshape(x.shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x, gamma and beta."""
        x, statistics = ctx.saved["x"], ctx.saved["statistics"]
        dx, dgamma, dbeta = ctx.ops.layer_norm_backward(
            self._rows(dy), self._rows(x), self._factors(ctx)[0], statistics
        )
        named = {"gamma": dgamma, "beta": dbeta}
        shape = x.shape[self._first(x.ndim) :]
        grads = {
            key: g.reshape(shape) for key, g in named.items() if g is not None and key in ctx.params
        }
        return dx.reshape(x.shape), grads


def scale_and_shift(
    ops: Ops, gamma: Array | None, beta: Array | None, like: Array | None = None
) -> tuple[Array | None, Array | None]:
    """gamma and beta, ones or zeros for a missing one; without ``like`` both may stay None."""
    given = next((each for each in (gamma, beta, like) if each is not None), None)
    if given is None or (gamma is not None and beta is not None):
        return gamma, beta
    zeros = ops.zeros(given.shape, given)
    return ops.add(zeros, 1.0) if gamma is None else gamma, zeros if beta is None else beta


class RMSNorm(LayerNorm):
    """y = gamma x / sqrt(mean(x²) + epsilon) over the axes from ``axis`` on, as in `LayerNorm`.

    ``gamma`` has the shape of these axes and starts at 1; ``affine=False`` leaves it out. With an
    ``offset`` the factor is offset + gamma, and gamma starts at 1 - offset: Gemma's is 1. Zhang
    and Sennrich, 2019.
    """

    def __init__(
        self,
        name: str,
        axis: int = -1,
        epsilon: float = 1e-6,
        affine: bool = True,
        gamma_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        *,
        offset: float = 0.0,
    ) -> None:
        super().__init__(
            name, axis, epsilon, affine, gamma_specs, None, input_sample_shape, center=False
        )
        if not is_number(offset) or (offset and not affine):
            raise ArgumentError(
                f"layer {name!r}, argument offset",
                expected="a number, beside a gamma",
                received=f"offset={offset!r}, affine={affine!r}",
                advice="leave it out; Gemma's norms have offset=1.0",
            )
        self.offset = float(offset)
        self._usual_gamma = 1.0 - self.offset

    def forward(self, ctx: Context, x: Array) -> Array:
        """The normalised ``x``; the rows as unit vectors and a number each are kept."""
        gamma = self._gamma(ctx)
        y, unit, inverse = rms_norm(ctx.ops, self._rows(x), gamma, self.epsilon, self.offset)
        ctx.save(kept=(unit, inverse))
        return y.reshape(x.shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x and gamma."""
        gamma, rows = self._gamma(ctx), self._rows(dy)
        dx, dgamma = rms_norm_backward(ctx.ops, rows, gamma, ctx.saved["kept"], self.offset)
        shape = dy.shape[self._first(dy.ndim) :]
        return dx.reshape(dy.shape), {} if dgamma is None else {"gamma": dgamma.reshape(shape)}

    def _gamma(self, ctx: Context) -> Array | None:
        gamma = ctx.params.get("gamma")
        return None if gamma is None else gamma.reshape(-1)
