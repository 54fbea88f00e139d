"""Normalization over batches, groups, features and neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import is_int, is_number
from singanet.base.collectives import SharedBatch
from singanet.errors import ArgumentError, CallOrderError, DataError, brief
from singanet.initializer import Constant
from singanet.layers.context import Context
from singanet.layers.layer import (
    Layer,
    Name,
    ParamSpecs,
    expect_activation,
    expect_int,
    expect_one_input,
    expect_positive,
)
from singanet.layers.words import GammaAndBeta, GammaWords
from singanet.ops.interface import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack


class L2Norm(Layer):
    """A layer that computes y = x / sqrt(Σ x² + epsilon) along the last axis of each sample.

    Args:
        name: Name of the layer, a string.
        epsilon: Positive number, 1e-8 by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.L2Norm(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[3.0, 4.0]])).round(3)
        array([[0.6, 0.8]], dtype=float32)
    """

    def __init__(
        self,
        name: Name = None,
        *,
        epsilon: float = 1e-8,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.epsilon = expect_positive(name, "epsilon", epsilon)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape of at least one axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of at least one axis", f"sample shape {shape}", "use Reshape before it"
            )
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the scaled vectors; they and one number each are saved."""
        y, inverse = ctx.ops.l2_norm(x, self.epsilon)
        ctx.save(y=y, inverse=inverse)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """(dy - y Σ dy y) / sqrt(Σ x² + epsilon)."""
        return ctx.ops.l2_norm_backward(dy, ctx.saved["y"], ctx.saved["inverse"]), {}


class LRN(Layer):
    """A layer that computes y_c = x_c / (k + alpha Σ x²) ** beta, over the channels around c.

    This is SINGA's convention on the CPU: cuDNN, Caffe and PyTorch divide ``alpha`` by ``size``, so
    divide their value by it. Krizhevsky et al., 2012.

    Args:
        name: Name of the layer, a string.
        size: Odd int, the number of channels in the sum.
        alpha: Number, at least 0.
        beta: Number, the exponent.
        mode: Only 'cross_channel'.
        k: Positive number.
        input_shape: Sample shape (C, ...), to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.LRN(size=3)(x).shape
        (8, 10, 10)
    """

    def __init__(
        self,
        name: Name = None,
        size: int = 5,
        alpha: float = 1.0,
        beta: float = 0.75,
        *,
        mode: str = "cross_channel",
        k: float = 1.0,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        numbers = all(is_number(value) for value in (alpha, beta, k))
        odd = expect_int(name, "size", size) % 2 == 1
        if not odd or mode != "cross_channel" or not numbers or alpha < 0 or k <= 0:
            raise ArgumentError(
                f"layer {name!r}",
                expected="an odd size, mode='cross_channel', alpha at least 0, k above 0",
                received=f"size={size}, mode={mode!r}, alpha={alpha!r}, beta={beta!r}, k={k!r}",
                advice="pass an odd size: the window is centered on a channel",
            )
        self.size = size
        self.alpha = float(alpha)
        self.beta = float(beta)
        self.k = float(k)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (channels, ...)", f"sample shape {shape}", "add a channel axis"
            )
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the normalised ``x``; only x is saved, so backward sums over the windows again."""
        ctx.save(x=x)
        return ctx.ops.lrn(x, self.size, self.alpha, self.beta, self.k)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The gradient of x, through the windows as well."""
        x = ctx.saved["x"]
        return ctx.ops.lrn_backward(dy, x, self.size, self.alpha, self.beta, self.k), {}


Kept = tuple[Array, Array]
"""The rows as unit vectors, and one number for each."""


@partial(in_float32, exact=(2,))
def rms_norm(
    ops: Ops, rows: Array, gamma: Array | None, epsilon: float, offset: float = 0.0
) -> tuple[Array, Array, Array]:
    """Compute (offset + gamma) x / sqrt(mean(x²) + epsilon) of rows (R, D).

    Without gamma the factor is 1. The last two results are the arrays of `Kept`.
    """
    count = rows.shape[1]
    unit, inverse = ops.l2_norm(rows, epsilon * count)
    return ops.multiply(unit, _factor(ops, gamma, offset, count)), unit, inverse


@in_float32
def rms_norm_backward(
    ops: Ops, drows: Array, gamma: Array | None, kept: Kept, offset: float = 0.0
) -> tuple[Array, Array | None]:
    """Return the gradients of the rows and of gamma, given the gradient of the output."""
    unit, inverse = kept
    count = drows.shape[1]
    dunit = ops.multiply(drows, _factor(ops, gamma, offset, count))
    dx = ops.l2_norm_backward(dunit, unit, inverse)
    if gamma is None:
        return dx, None
    dgamma = ops.column_sums(ops.multiply(drows, unit))
    return dx, ops.multiply(dgamma, count**0.5, out=dgamma)


def _factor(ops: Ops, gamma: Array | None, offset: float, count: int) -> Any:
    """Return the factor of unit vectors of ``count`` elements."""
    if gamma is None:
        return count**0.5
    gain = ops.add(gamma, offset) if offset else gamma
    return ops.multiply(gain, count**0.5)


class LayerNorm(Layer):
    """A layer that computes y = gamma (x - mean) / sqrt(var + epsilon) + beta over the last axes.

    ``gamma`` and ``beta`` have the shape of the normalised axes. The variance is the biased one.
    Ba, Kiros and Hinton, 2016.

    Args:
        name: Name of the layer, a string.
        axis: Int, the first normalised axis, counting the batch axis; -1, the default, for the last
            one: the features of each step of a sequence (L, D).
        epsilon: Positive number, 1e-5 by default (Keras: 1e-3).
        affine: False for neither gamma nor beta.
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        activation: Name of an activation, a layer, or None for none.
        gamma_specs: Dict with the settings of gamma, or a `Param` of another layer to share.
        beta_specs: The same for beta.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``gamma_initializer``, ``beta_regularizer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.LayerNorm(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[3.0, 1.0]])).round(3)
        array([[ 1., -1.]], dtype=float32)
    """

    traits = Traits(any_extent=True)
    _usual_gamma = 1.0

    def __init__(
        self,
        name: Name = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        *,
        affine: bool = True,
        center: bool = True,
        scale: bool = True,
        activation: str | Layer | None = None,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaAndBeta],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.activation = expect_activation(name, activation)
        if not (is_int(axis) or (is_int(axis, -32) and axis < 0)):
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="an axis of the sample, from 1, or negative to count from the last",
                received=brief(axis),
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
        """Return the first normalised axis of an array of ``rank`` axes."""
        return self.axis if self.axis > 0 else rank + self.axis

    def _rows(self, x: Array) -> Array:
        """Return each set of elements that is normalised together as a row."""
        first = self._first(x.ndim)
        return x.reshape(prod(x.shape[:first]), prod(x.shape[first:]))

    def _factors(self, ctx: Context) -> tuple[Array | None, Array | None]:
        found = (ctx.params.get("gamma"), ctx.params.get("beta"))
        return scale_and_shift(ctx.ops, *(p if p is None else p.reshape(-1) for p in found))

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the normalised ``x``; x and two numbers for each row are saved."""
        gamma, beta = self._factors(ctx)
        y, statistics = ctx.ops.layer_norm(self._rows(x), gamma, beta, self.epsilon)
        ctx.save(x=x, statistics=statistics)
        return y.reshape(x.shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x, gamma and beta."""
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
    """Return gamma and beta, ones or zeros for a missing one; without ``like`` both may be None."""
    given = next((each for each in (gamma, beta, like) if each is not None), None)
    if given is None or (gamma is not None and beta is not None):
        return gamma, beta
    zeros = ops.zeros(given.shape, given)
    return ops.add(zeros, 1.0) if gamma is None else gamma, zeros if beta is None else beta


class RMSNorm(LayerNorm):
    """A layer that computes y = gamma x / sqrt(mean(x²) + epsilon) over the last axes.

    ``gamma`` has the shape of these axes and starts at 1. Zhang and Sennrich, 2019.

    Args:
        name: Name of the layer, a string.
        axis: Int, the first normalised axis, counting the batch axis; -1, the default, for the last
            one: the features of each step of a sequence (L, D).
        epsilon: Positive number, 1e-6 by default (PyTorch: the resolution of the type).
        affine: False for no gamma.
        offset: Number; the factor is offset + gamma, and gamma starts at 1 - offset. Gemma has 1.
        activation: Name of an activation, a layer, or None for none.
        gamma_specs: Dict with the settings of gamma, or a `Param` of another layer to share.
        input_shape: Sample shape, to create the parameter at once.
        words: Keras' ``gamma_initializer``, ``gamma_regularizer`` and ``gamma_constraint``.

    Examples:
        >>> layer = singanet.layers.RMSNorm(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[2.0, 2.0]])).round(3)
        array([[1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        name: Name = None,
        axis: int = -1,
        epsilon: float = 1e-6,
        *,
        affine: bool = True,
        offset: float = 0.0,
        activation: str | Layer | None = None,
        gamma_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaWords],
    ) -> None:
        given: dict[str, Any] = {"gamma_specs": gamma_specs, "input_shape": input_shape, **words}
        given |= {"activation": activation, "affine": affine, "center": False}
        super().__init__(name, axis, epsilon, **given)
        if not is_number(offset) or (offset and not affine):
            raise ArgumentError(
                f"layer {name!r}, argument offset",
                expected="a number, with affine=True unless it is 0",
                received=f"offset={offset!r}, affine={affine!r}",
                advice="omit it; Gemma's norms have offset=1.0",
            )
        self.offset = float(offset)
        self._usual_gamma = 1.0 - self.offset

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the normalised ``x``; the unit vectors and one number for each are saved."""
        gamma = self._gamma(ctx)
        y, unit, inverse = rms_norm(ctx.ops, self._rows(x), gamma, self.epsilon, self.offset)
        ctx.save(kept=(unit, inverse))
        return y.reshape(x.shape)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x and gamma."""
        gamma, rows = self._gamma(ctx), self._rows(dy)
        dx, dgamma = rms_norm_backward(ctx.ops, rows, gamma, ctx.saved["kept"], self.offset)
        shape = dy.shape[self._first(dy.ndim) :]
        return dx.reshape(dy.shape), {} if dgamma is None else {"gamma": dgamma.reshape(shape)}

    def _gamma(self, ctx: Context) -> Array | None:
        gamma = ctx.params.get("gamma")
        return None if gamma is None else gamma.reshape(-1)


class GroupNorm(Layer):
    """A layer that computes y = gamma (x - mean) / sqrt(var + epsilon) + beta by channel groups.

    Samples are (C, ...). Each group is normalised over its channels and all positions. ``gamma``
    and ``beta`` have shape (C,). The variance is the biased one. Wu and He, 2018.

    Args:
        name: Name of the layer, a string.
        groups: Positive int that divides the channels, the number of groups; 32 by default.
        epsilon: Positive number, 1e-5 by default (Keras: 1e-3).
        affine: False for neither gamma nor beta.
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        activation: Name of an activation, a layer, or None for none.
        gamma_specs: Dict with the settings of gamma, or a `Param` of another layer to share.
        beta_specs: The same for beta.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``gamma_initializer``, ``beta_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.GroupNorm(groups=4)(x).shape
        (8, 10, 10)
    """

    _units_axis = 1

    def __init__(
        self,
        name: Name = None,
        groups: int = 32,
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
        center: bool = True,
        scale: bool = True,
        activation: str | Layer | None = None,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaAndBeta],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.activation = expect_activation(name, activation)
        self.groups = expect_int(name, "groups", groups)
        self.epsilon = expect_positive(name, "epsilon", epsilon)
        self.affine = affine
        self.center, self.scale = bool(center and affine), bool(scale and affine)
        self.gamma_specs = gamma_specs
        self.beta_specs = beta_specs

    def _groups_of(self, channels: int) -> int:
        """Return the number of groups for ``channels`` channels."""
        return self.groups

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape or 0 in shape or shape[0] % self._groups_of(shape[0]):
            raise self.shape_error(
                f"samples whose channels form {self.groups} groups",
                f"sample shape {shape}",
                "choose groups that divides the channels",
            )
        groups = self._groups_of(shape[0])
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
        """Return the normalised ``x``; x and two numbers for each group are saved."""
        gamma, beta = self._factors(ctx)
        groups = self._groups_of(x.shape[1])
        y, statistics = ctx.ops.group_norm(x, groups, gamma, beta, self.epsilon)
        ctx.save(x=x, statistics=statistics)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x, gamma and beta."""
        x, statistics = ctx.saved["x"], ctx.saved["statistics"]
        dx, dgamma, dbeta = ctx.ops.group_norm_backward(
            dy, x, self._groups_of(x.shape[1]), self._factors(ctx)[0], statistics
        )
        named = {"gamma": dgamma, "beta": dbeta}
        return dx, {k: g for k, g in named.items() if g is not None and k in ctx.params}

    def _factors(self, ctx: Context) -> tuple[Array | None, Array | None]:
        return scale_and_shift(ctx.ops, ctx.params.get("gamma"), ctx.params.get("beta"))


class InstanceNorm(GroupNorm):
    """A layer that normalises each channel of each sample over its positions.

    It is a `GroupNorm` with one group for each channel of samples (C, positions...). Ulyanov et
    al., 2016.

    Args:
        name: Name of the layer, a string.
        epsilon: Positive number, 1e-5 by default.
        affine: False for neither gamma nor beta; True by default (PyTorch: False).
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        activation: Name of an activation, a layer, or None for none.
        gamma_specs: Dict with the settings of gamma, or a `Param` of another layer to share.
        beta_specs: The same for beta.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``gamma_initializer``, ``beta_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.InstanceNorm()(x).shape
        (8, 10, 10)
    """

    def __init__(
        self,
        name: Name = None,
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
        center: bool = True,
        scale: bool = True,
        activation: str | Layer | None = None,
        gamma_specs: ParamSpecs = None,
        beta_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaAndBeta],
    ) -> None:
        super().__init__(
            name,
            epsilon=epsilon,
            affine=affine,
            center=center,
            scale=scale,
            activation=activation,
            gamma_specs=gamma_specs,
            beta_specs=beta_specs,
            input_shape=input_shape,
            **words,
        )

    def _groups_of(self, channels: int) -> int:
        """Return one group for each channel."""
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


@dataclass(frozen=True, slots=True)
class JointStatistics:
    """``mean`` and biased ``var`` (C,) of the ``count`` values of each channel on all ranks."""

    shared: SharedBatch
    count: float
    mean: Array
    var: Array

    @classmethod
    def of(cls, shared: SharedBatch, ops: Ops, x: Array) -> JointStatistics:
        """Compute the statistics of the parts ``x`` (B, C, ...), some of which may be empty.

        Each rank sends count, mean and variance about its own mean, in float64: Chan, Golub and
        LeVeque, 1979.
        """
        axes, channels = tuple(axis for axis in range(x.ndim) if axis != 1), x.shape[1]
        own = np.zeros((3, channels))
        if len(x):
            own[0] = x.size // channels
            own[1] = ops.host(x.mean(axis=axes, dtype="float64"))
            own[2] = ops.host(x.var(axis=axes, dtype="float64"))
        parts = shared.comm.all_gather(own[None], "the statistics of a batch")
        counts, means, spreads = np.concatenate(parts).transpose(1, 0, 2)
        count = counts.sum(axis=0)
        share = counts / np.maximum(count, 1)
        mean = (share * means).sum(axis=0)
        var = (share * (spreads + (means - mean) ** 2)).sum(axis=0)
        put, kind = ops.xp.asarray, np.promote_types(x.dtype, np.float32)
        return cls(shared, float(count[0]), put(mean, kind), put(var, kind))

    def corrected(
        self, ops: Ops, dx: Array, x: Array, scale: Array, inverse: Array, *sums: Array
    ) -> Array:
        """Return the input gradient through the statistics, given ``dx`` for fixed statistics.

        dx = scale (dy - mean(dy) - x̂ mean(dy x̂)); the means are over all ranks, of gradients of
        the total loss. ``scale`` = gamma inverse; ``sums`` = Σ dy, Σ dy x̂ of this rank, for its
        own loss.
        """
        weight = 1.0 if self.shared.weight is None else self.shared.weight
        own = np.stack([np.asarray(ops.host(each), np.float64) for each in sums]) * weight
        total = self.shared.comm.all_reduce(own, what="the gradients of a batch's statistics")
        if not len(x):
            return dx
        if not weight and total.any():
            raise CallOrderError(
                "synchronized statistics",
                expected="a weight above 0, as other ranks' losses depend on these samples",
                received="0, as no label of this rank counts",
                advice="multiply the gradient of the loss by optimizer.shares(len(x), counts), and "
                "call optimizer.begin(len(x))",
            )
        means = ops.xp.asarray(total / ((weight or 1.0) * self.count), self.mean.dtype)
        wide = (1, -1, *[1] * (x.ndim - 2))
        by_x = scale * inverse * means[1]
        constant = scale * means[0] - by_x * self.mean
        corrected: Array = dx - constant.reshape(wide) - x * by_x.reshape(wide)
        return corrected.astype(dx.dtype, copy=False)


class BatchNormalization(Layer):
    """A layer that normalises each channel: y = gamma (x - mean) / sqrt(var + epsilon) + beta.

    Samples are (D,) or (C, ...). Training uses the statistics of the batch and updates the running
    ones, ``mean`` and ``var``: running ← (1 - momentum) running + momentum batch. The running
    variance is the unbiased one. Evaluation uses the running statistics. Ioffe and Szegedy, 2015.

    A channel with one value in the whole batch has no variance, so training refuses one sample of
    (D,). With the default momentum the running statistics are close to the statistics of the last
    batch: if that batch is small, leave it out (``fit(drop_last=True)``) or use a momentum of 0.1.

    With several processes each normalises by the statistics of its part of the batch. With
    ``synchronized`` the statistics and gradients are over the whole batch, as in one process; this
    costs two exchanges a step, and a third to count the samples of the losses.

    Args:
        name: Name of the layer, a string.
        axis: The axis of the channels, counting the batch axis: 1 by default, or -1 for the last
            one, the features of (T, D) (Keras: -1).
        momentum: Weight of the new value from 0 to 1, 0.9 by default, as in SINGA (Keras: weight of
            the old value, 0.99).
        epsilon: Positive number, 1e-5 by default (Keras: 1e-3).
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        synchronized: Whether to use the statistics of all processes.
        activation: Name of an activation, a layer, or None for none.
        beta_specs: Dict with the settings of beta, or a `Param` of another layer to share.
        gamma_specs: The same for gamma.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``gamma_initializer``, ``beta_regularizer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.BatchNormalization(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, -1.0]])).round(3)
        array([[ 1., -1.]], dtype=float32)
    """

    synchronized: bool = False

    def __init__(
        self,
        name: Name = None,
        *,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        synchronized: bool = False,
        activation: str | Layer | None = None,
        beta_specs: ParamSpecs = None,
        gamma_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[GammaAndBeta],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.activation = expect_activation(name, activation)
        numbers = is_number(momentum) and is_number(epsilon)
        if not numbers or not 0.0 <= momentum <= 1.0 or epsilon <= 0.0:
            raise ArgumentError(
                f"layer {name!r}",
                expected="momentum from 0 to 1 and a positive epsilon",
                received=f"momentum={momentum}, epsilon={epsilon}",
                advice="momentum weights the new value: Keras' 0.99 is 0.01 here",
            )
        if axis not in (1, -1):
            raise ArgumentError(
                f"layer {name!r}, argument axis",
                expected="1 for the channels, -1 for the last axis",
                received=brief(axis),
                advice="put Permute around it for another axis",
            )
        self.axis, self.center, self.scale = axis, bool(center), bool(scale)
        self._units_axis = axis
        self.momentum = momentum
        self.beta_specs = beta_specs
        self.gamma_specs = gamma_specs
        self.epsilon = epsilon
        self.synchronized = bool(synchronized)

    @property
    def _channel_axis(self) -> int:
        return 0 if self.axis == 1 else -1

    def setup(self, in_shapes: Any) -> Shapes:
        """(D,), (C, ...) or with ``axis=-1`` (..., D), unchanged."""
        if isinstance(in_shapes, list) or not in_shapes:
            raise self.shape_error(
                "one input of sample shape (features,) or (channels, positions...)",
                str(in_shapes),
                "join inputs, or reshape the samples",
            )
        shape: Shape = in_shapes
        # If samples have one value a channel, training needs two, maybe in two processes.
        alone = prod(shape) == shape[self._channel_axis] and not self.synchronized
        self.traits = replace(self.traits, fewest_samples=2 if alone else 1)
        channels = (shape[self._channel_axis],)
        if self.scale:
            self.add_param("gamma", channels, self.gamma_specs, default=Constant(1.0))
        if self.center:
            self.add_param("beta", channels, self.beta_specs)
        self.add_state("mean", channels)
        self.add_state("var", channels, value=1.0)
        return shape

    def _joint(self, ops: Ops, x: Array) -> JointStatistics | None:
        """Return the statistics over the batch of all processes, or None for a single process."""
        if not self.synchronized or self.shared is None or self.shared.comm.size == 1:
            return None
        return JointStatistics.of(self.shared, ops, x)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the normalised ``x``."""
        return self._normalised(ctx, x, relu=False)

    def forward_relu(self, ctx: Context, x: Array) -> Array:
        """Return the relu of the normalised ``x``; ``ctx`` saves the arrays for backward."""
        return self._normalised(ctx, x, relu=True)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x, gamma and beta."""
        saved, ops = ctx.saved, ctx.ops
        x, inverse, joint = saved["x"], saved["inverse"], saved["joint"]
        gamma, shape = self._factors(ctx)[0], dy.shape
        given = (x, gamma, saved["mean"], inverse, saved["fixed"], *saved["mask"])
        dx, dgamma, dbeta = ops.batch_norm_backward(self._for_kernels(dy), *given)
        if joint is not None:
            dx = joint.corrected(ops, dx, x, gamma * inverse, inverse, dbeta, dgamma)
        named = {"gamma": dgamma, "beta": dbeta}
        grads = {suffix: grad for suffix, grad in named.items() if suffix in ctx.params}
        return dx if dx.shape == shape else dx.reshape(shape), grads

    def backward_relu(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x, gamma and beta in the call ``ctx``, given the relu's output's.

        ``dy`` is the gradient of the relu's output.
        """
        return self.backward(ctx, dy)

    def _normalised(self, ctx: Context, x: Array, relu: bool) -> Array:
        params, ops, shape = ctx.params, ctx.ops, x.shape
        x = self._for_kernels(x)
        gamma, beta = self._factors(ctx)
        joint = self._joint(ops, x) if ctx.train else None
        count = x.size // x.shape[1] if joint is None else joint.count
        if ctx.train and count:
            if count == 1:
                raise DataError(
                    f"layer {self.name!r}",
                    expected="more than one value per channel in a training batch",
                    received=f"a batch of shape {x.shape}",
                    advice="omit a last batch of one sample by fit(drop_last=True), use another "
                    "batch_size, or freeze the layer",
                )
            if joint is None:
                made = ops.batch_norm_train(x, gamma, beta, self.epsilon, relu)
                y, mean, var, inverse, *mask = made
            else:
                mean, var = joint.mean, joint.var
                y, inverse, *mask = ops.batch_norm(x, gamma, beta, mean, var, self.epsilon, relu)
            unbiased = ops.multiply(var, count / (count - 1))
            ctx.update_state("mean", ops.moved(params["mean"], mean, self.momentum))
            ctx.update_state("var", ops.moved(params["var"], unbiased, self.momentum))
        else:
            # A copy, since a later training forward changes the running values in place.
            mean, var = params["mean"].copy(), params["var"]
            y, inverse, *mask = ops.batch_norm(x, gamma, beta, mean, var, self.epsilon, relu)
        fixed = not ctx.train or joint is not None
        ctx.save(x=x, mean=mean, inverse=inverse, fixed=fixed, mask=mask, joint=joint)
        return y if y.shape == shape else y.reshape(shape)

    def _for_kernels(self, x: Array) -> Array:
        """Return ``x`` as (N, C) or (N, C, H, W), if possible as a view."""
        if x.ndim == 2 or (x.ndim == 4 and self.axis == 1):
            return x
        if self.axis == -1:
            return x.reshape(prod(x.shape[:-1]), x.shape[-1])
        return x.reshape(*x.shape[:2], prod(x.shape[2:-1]), x.shape[-1])

    def _factors(self, ctx: Context) -> Any:
        """Return gamma and beta, with ones and zeros if they are disabled."""
        params = ctx.params
        return scale_and_shift(ctx.ops, params.get("gamma"), params.get("beta"), params["mean"])

    def share(self, batch: SharedBatch) -> None:
        if self.synchronized and self.shared is not batch:
            self.shared = batch

    def merged_state(self, states: Mapping[str, Array], shares: Array) -> dict[str, Array]:
        """Merge as `Layer` does, but compute the variance about the common mean."""
        merged = super().merged_state(states, shares)
        merged["var"] += np.tensordot(shares, (states["mean"] - merged["mean"]) ** 2, 1)
        return merged
