"""Batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import is_number
from singanet.base.collectives import SharedBatch
from singanet.errors import ArgumentError, DataError
from singanet.initializer import Constant
from singanet.layers.context import Context
from singanet.layers.joint_statistics import JointStatistics
from singanet.layers.layer import Layer, ParamSpecs
from singanet.layers.layer_norm import scale_and_shift
from singanet.ops import Ops
from singanet.types import Array, GivenShape, Shape, Shapes


class BatchNormalization(Layer):
    """y = gamma (x - mean) / sqrt(var + epsilon) + beta for each channel of (D,) or (C, ...).

    The channels are the axis 1, counted with the batch axis, or with ``axis=-1`` the last one: the
    features of (T, D). ``scale=False`` leaves gamma out, ``center=False`` beta.

    Training uses the batch's statistics and moves the running ones, ``mean`` and ``var``:
    running ← (1 - momentum) running + momentum batch, so ``momentum`` is the weight of the new
    value, as in SINGA (Keras and others weight the old one). The running variance is the unbiased
    one. Evaluation uses the running statistics. Ioffe and Szegedy, 2015.

    A channel of one value in the whole batch has no variance: one sample of (D,) is refused in
    training. With the default momentum the running statistics are little more than those of the
    last batch: if that batch is small, leave it out (``fit(drop_last=True)``) or choose 0.1.

    Of several processes each has the statistics of its own part of a batch. With ``synchronized``
    they are those of the parts of all, and so are the gradients, as one process with the whole
    batch has them; it costs two exchanges a step, and a third of what the losses count.
    """

    synchronized: bool = False

    def __init__(
        self,
        name: str,
        momentum: float = 0.9,
        beta_specs: ParamSpecs = None,
        gamma_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
        *,
        epsilon: float = 1e-5,
        synchronized: bool = False,
        axis: int = 1,
        center: bool = True,
        scale: bool = True,
    ) -> None:
        super().__init__(name, input_sample_shape)
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
                received=repr(axis),
                advice="put Permute around it for another axis",
            )
        self.axis, self.center, self.scale = axis, bool(center), bool(scale)
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
        # Samples of one value a channel need company, though maybe in other processes.
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
        """Statistics over the whole batch of all processes; None for a process alone."""
        if not self.synchronized or self.shared is None or self.shared.comm.size == 1:
            return None
        return JointStatistics.of(self.shared, ops, x)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The normalised ``x``."""
        return self._normalised(ctx, x, relu=False)

    def forward_relu(self, ctx: Context, x: Array) -> Array:
        """The relu of the normalised ``x``."""
        return self._normalised(ctx, x, relu=True)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x, gamma and beta."""
        return self._gradients(ctx, dy, ctx.ops.batch_norm_backward)

    def backward_relu(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients of x, gamma and beta, from that of the relu's output."""
        return self._gradients(ctx, dy, ctx.ops.batch_norm_relu_backward)

    def _normalised(self, ctx: Context, x: Array, relu: bool) -> Array:
        params, ops, shape = ctx.params, ctx.ops, x.shape
        x = self._for_kernels(x)
        gamma, beta = self._factors(ctx)
        joint = self._joint(ops, x) if ctx.train else None
        count = x.size // x.shape[1] if joint is None else joint.count
        evaluate = ops.batch_norm_relu if relu else ops.batch_norm
        if ctx.train and count:
            if count == 1:
                raise DataError(
                    f"layer {self.name!r}",
                    expected="more than one value a channel in a training batch",
                    received=f"a batch of shape {x.shape}",
                    advice="leave out a last batch of one sample, fit(drop_last=True), use another "
                    "batch_size, or freeze the layer",
                )
            if joint is None:
                kernel = ops.batch_norm_relu_train if relu else ops.batch_norm_train
                y, mean, var, inverse, *mask = kernel(x, gamma, beta, self.epsilon)
            else:
                mean, var = joint.mean, joint.var
                y, inverse, *mask = evaluate(x, gamma, beta, mean, var, self.epsilon)
            unbiased = ops.multiply(var, count / (count - 1))
            ctx.update_state("mean", ops.moved(params["mean"], mean, self.momentum))
            ctx.update_state("var", ops.moved(params["var"], unbiased, self.momentum))
        else:
            # A copy, since a later training forward changes the running values in place.
            mean, var = params["mean"].copy(), params["var"]
            y, inverse, *mask = evaluate(x, gamma, beta, mean, var, self.epsilon)
        fixed = not ctx.train or joint is not None
        ctx.save(x=x, mean=mean, inverse=inverse, fixed=fixed, mask=mask, joint=joint)
        return y if y.shape == shape else y.reshape(shape)

    def _gradients(
        self, ctx: Context, dy: Array, kernel: Callable[..., tuple[Array, Array, Array]]
    ) -> tuple[Array, dict[str, Array]]:
        saved, ops = ctx.saved, ctx.ops
        x, inverse, joint = saved["x"], saved["inverse"], saved["joint"]
        gamma, shape = self._factors(ctx)[0], dy.shape
        given = (x, gamma, saved["mean"], inverse, saved["fixed"])
        dx, dgamma, dbeta = kernel(self._for_kernels(dy), *given, *saved["mask"])
        if joint is not None:
            dx = joint.corrected(ops, dx, x, gamma * inverse, inverse, dbeta, dgamma)
        named = {"gamma": dgamma, "beta": dbeta}
        grads = {suffix: grad for suffix, grad in named.items() if suffix in ctx.params}
        return dx if dx.shape == shape else dx.reshape(shape), grads

    def _for_kernels(self, x: Array) -> Array:
        """``x`` as (N, C) or (N, C, H, W): a view, where its axes lie in order."""
        if x.ndim == 2 or (x.ndim == 4 and self.axis == 1):
            return x
        if self.axis == -1:
            return x.reshape(prod(x.shape[:-1]), x.shape[-1])
        return x.reshape(*x.shape[:2], prod(x.shape[2:-1]), x.shape[-1])

    def _factors(self, ctx: Context) -> Any:
        """gamma and beta; ones and zeros for what is left out."""
        params = ctx.params
        return scale_and_shift(ctx.ops, params.get("gamma"), params.get("beta"), params["mean"])

    def share(self, batch: SharedBatch) -> None:
        if self.synchronized and self.shared is not batch:
            self.shared = batch

    def merged_state(self, states: Mapping[str, Array], shares: Array) -> dict[str, Array]:
        """As `Layer`: the mean, and the variance of all about it, not the mean of variances."""
        merged = super().merged_state(states, shares)
        merged["var"] += np.tensordot(shares, (states["mean"] - merged["mean"]) ** 2, 1)
        return merged
