"""Kernels written over an array module, so that they serve NumPy and CuPy alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from singanet.ops import workers
from singanet.ops.compiler import has_compiler
from singanet.ops.interface import Ops, Prepared
from singanet.ops.kernel import lift
from singanet.ops.narrow_products import prepared
from singanet.ops.numpy import (
    activations,
    attending,
    attention,
    channelwise,
    combining,
    conv,
    elementwise,
    held,
    lanes,
    linear,
    local_response,
    normalise,
    padding,
    pool,
    random,
    scores,
    standardise,
    table,
    upsample,
    windows,
)
from singanet.ops.numpy.recurrent import elman, gru, lstm, sequences
from singanet.ops.threads import changes, default_threads
from singanet.types import Array, Parts

__all__ = ["NumpyOps", "numpy_ops"]


class NumpyOps:
    """The kernels of `Ops` over ``xp`` (numpy or cupy): a table of functions."""

    name = "numpy"

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.prepared: Prepared | None = None
        # Bound once: calling them costs no more than calling the array module itself.
        self.add, self.subtract = xp.add, xp.subtract
        self.multiply, self.divide = xp.multiply, xp.divide
        self.maximum, self.minimum = xp.maximum, xp.minimum
        self.exp, self.log, self.log1p = xp.exp, xp.log, xp.log1p
        self.sqrt, self.square, self.tanh = xp.sqrt, xp.square, xp.tanh
        self.absolute, self.negative, self.sign = xp.abs, xp.negative, xp.sign
        self.power, self.greater, self.where = xp.power, xp.greater, xp.where
        self.copyto = xp.copyto

    def __init_subclass__(cls) -> None:
        lift(cls)

    @property
    def on_host(self) -> bool:
        """See `Ops`."""
        return bool(self.xp.__name__ == "numpy")

    @property
    def sees_values(self) -> bool:
        """See `Ops`."""
        return self.on_host

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        """See `Ops`."""
        yield from lanes.parts(samples, self.lane_count(samples, multiplications))

    def lane_count(self, samples: int, multiplications: int) -> int:
        """How many lanes so much work is worth."""
        return lanes.count(samples, multiplications) if self.on_host else 1

    def has_sweep(self, function: Any, size: int) -> bool:
        """See `Ops`: NumPy has no other form."""
        return False

    def sweep(
        self, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
    ) -> Any:
        """See `Ops`."""
        return None

    def team(self) -> tuple[int, Callable[[Parts], None]]:
        """See `Ops`."""
        return default_threads(), workers.side_by_side

    def settings(self) -> Hashable:
        """See `Ops`: the number of threads may have been set anew."""
        return changes()

    def trim(self, prepared: bool = False) -> None:
        """See `Ops`: none is held."""

    def remarks(self) -> list[str]:
        """See `Ops`: whether there is a compiler."""
        return ["compiles products of weights in few bits"] * (self.xp is np and has_compiler())

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """See `Ops`: no kernel passes over NaN."""

    def as_one(
        self,
        function: Callable[..., None],
        made: Sequence[Array],
        read: Sequence[Any],
        working: tuple[int, Any],
        adds: int,
    ) -> None:
        """See `Ops`."""
        function(self, self.xp.empty(*working), *made, *read)

    empty = elementwise.empty
    zeros = elementwise.zeros
    sum = elementwise.total
    mean = elementwise.mean
    add_all = elementwise.add_all
    concat = elementwise.concat
    combine = combining.combine
    first_equal = combining.first_equal
    select = combining.select
    sum_to = combining.sum_to
    pad = padding.pad
    pad_backward = padding.pad_backward
    gather_rows = table.gather_rows
    sum_rows = table.sum_rows
    add_rows = table.add_rows
    add_to_rows = table.add_to_rows
    of_rows = table.of_rows
    map_rows = table.map_rows
    host = sequences.host
    time_major = sequences.time_major
    batch_major = sequences.batch_major
    side_by_side = sequences.side_by_side
    uniform = random.uniform
    normal = random.normal
    keep_mask = random.keep_mask
    bernoulli = random.bernoulli
    check = random.check
    look_up = random.look_up
    matmul = linear.matmul
    add_matmul = linear.add_matmul
    affine = linear.affine
    multiply_held = held.multiply_held
    prepared_held = prepared
    affine_constant = linear.affine_constant
    column_sums = linear.column_sums
    attention_weights = attention.attention_weights
    attention_backward = attention.attention_backward
    attend = attending.attend
    attend_backward = attending.attend_backward
    rotate = attention.rotate
    activation = activations.activation
    activation_backward = activations.activation_backward
    sigmoid = activations.sigmoid
    scale = channelwise.scale
    prelu = channelwise.prelu
    prelu_backward = channelwise.prelu_backward
    channel_total = channelwise.channel_total
    softmax = scores.softmax
    softmax_backward = scores.softmax_backward
    log_softmax = scores.log_softmax
    log_softmax_backward = scores.log_softmax_backward
    softmax_cross_entropy = scores.softmax_cross_entropy
    softmax_cross_entropy_backward = scores.softmax_cross_entropy_backward
    softmax_cross_entropy_soft = scores.softmax_cross_entropy_soft
    sigmoid_cross_entropy = scores.sigmoid_cross_entropy
    conv2d = conv.conv2d
    conv2d_constant = conv.conv2d_constant
    conv2d_backward_data = conv.conv2d_backward_data
    conv2d_backward_weights = conv.conv2d_backward_weights
    channel_sum = conv.channel_sum
    depthwise_conv2d = conv.depthwise_conv2d
    depthwise_conv2d_backward_data = conv.depthwise_conv2d_backward_data
    depthwise_conv2d_backward_weights = conv.depthwise_conv2d_backward_weights
    channels_last = windows.channels_last
    max_pool = pool.max_pool
    max_pool_backward = pool.max_pool_backward
    avg_pool = pool.avg_pool
    avg_pool_backward = pool.avg_pool_backward
    global_avg_pool = pool.global_avg_pool
    global_avg_pool_backward = pool.global_avg_pool_backward
    global_max_pool = pool.global_max_pool
    global_max_pool_backward = pool.global_max_pool_backward
    upsample_nearest = upsample.upsample_nearest
    upsample_nearest_backward = upsample.upsample_nearest_backward
    upsample_bilinear = upsample.upsample_bilinear
    upsample_bilinear_backward = upsample.upsample_bilinear_backward
    moved = normalise.moved
    batch_norm = normalise.batch_norm
    batch_norm_train = normalise.batch_norm_train
    batch_norm_backward = normalise.batch_norm_backward
    batch_norm_relu_train = normalise.batch_norm_relu_train
    batch_norm_relu = normalise.batch_norm_relu
    batch_norm_relu_backward = normalise.batch_norm_relu_backward
    layer_norm = standardise.layer_norm
    layer_norm_backward = standardise.layer_norm_backward
    group_norm = standardise.group_norm
    group_norm_backward = standardise.group_norm_backward
    l2_norm = standardise.l2_norm
    l2_norm_backward = standardise.l2_norm_backward
    lrn = local_response.lrn
    lrn_backward = local_response.lrn_backward
    lstm_layer = lstm.lstm_layer
    lstm_layer_backward = lstm.lstm_layer_backward
    gru_layer = gru.gru_layer
    gru_layer_backward = gru.gru_layer_backward
    elman_layer = elman.elman_layer
    elman_layer_backward = elman.elman_layer_backward


lift(NumpyOps)

numpy_ops: Ops = NumpyOps(np)
"""The kernels over NumPy's own arrays."""
