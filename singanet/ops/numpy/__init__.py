"""Provide kernels over an array module, which serve NumPy and CuPy alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.ops import workers
from singanet.ops.blas import product
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import Jobs
from singanet.ops.interface import Ops, Prepared
from singanet.ops.kernel import lift
from singanet.ops.narrow_products import prepared
from singanet.ops.numpy import (
    attending,
    attending_backward,
    conv,
    linear,
    normalise,
    pointwise,
    pool,
    recurrent,
    scores,
    windows,
)
from singanet.ops.threads import changes, default_threads
from singanet.ops.window import Attention
from singanet.types import Array, Parts, Shape, SweepSteps

__all__ = ["NumpyOps", "numpy_ops"]


class NumpyOps:
    """The kernels of `Ops` over ``xp`` (numpy or cupy): a table of functions."""

    name = "numpy"

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.prepared: Prepared | None = None
        # Bound once: a call costs no more than a call of the array module.
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
        return bool(self.xp.__name__ == "numpy")

    @property
    def sees_values(self) -> bool:
        return self.on_host

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        yield from linear.parts(samples, self.lane_count(samples, multiplications))

    def lane_count(self, samples: int, multiplications: int) -> int:
        """Return the number of lanes that the work is worth."""
        return linear.count(samples, multiplications) if self.on_host else 1

    def multiplier(self, weight: Array, rows: int) -> Callable[[Array, Array], Array]:
        """Return ``multiply(a, out)`` for products with ``weight``."""
        # A contiguous copy is read in longer runs by each product.
        held = self.xp.ascontiguousarray(weight)
        return lambda a, out: product(self.xp, a, held, out)

    def has_attention(self, q: Array, k: Array, v: Array, case: Attention) -> bool:
        """Return False: `attend` is a call for each block."""
        return False

    def rounds_rows(self) -> bool:
        """Return False: few rows are multiplied as they are."""
        return False

    def has_sweep(self, function: Any, size: int) -> bool:
        """Return False: NumPy has no other form."""
        return False

    def sweep(
        self, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
    ) -> Any:
        return None

    def joint_sweep(self, size: int, arrays: int, numbers: int, steps: SweepSteps) -> Any:
        return None

    def further_attention(
        self,
        q: Array,
        new: tuple[Array, Array] | None,
        groups: int,
        case: Attention,
        out: Array,
    ) -> Any:
        return None

    def arithmetic(self, function: Any, shape: Shape, other: str, number: float = 0.0) -> Any:
        return None

    def team(self) -> tuple[int, Callable[[Parts], None]]:
        return default_threads(), workers.side_by_side

    def jobs(self) -> Jobs | None:
        return None

    def settings(self) -> Hashable:
        """Return the number of changes of the thread count."""
        return changes()

    def trim(self, prepared: bool = False) -> None:
        """Do nothing: NumPy's kernels have no workspace."""

    def remarks(self) -> Mapping[str, Sequence[str]]:
        """Return the backends; LLVM multiplies narrow weights if there is a compiler."""
        compiled = {"llvm": ["multiplies weights in few bits"]}
        return {"numpy": [], **(compiled if self.xp is np and has_compiler() else {})}

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """Do nothing: no kernel ignores NaN."""

    def as_one(
        self,
        function: Callable[..., None],
        made: Sequence[Array],
        read: Sequence[Any],
        working: tuple[int, Any],
        adds: int,
    ) -> None:
        function(self, self.xp.empty(*working), *made, *read)

    empty = pointwise.empty
    zeros = pointwise.zeros
    sum = pointwise.total
    mean = pointwise.mean
    add_all = pointwise.add_all
    concat = pointwise.concat
    combine = pointwise.combine
    first_equal = pointwise.first_equal
    select = pointwise.select
    sum_to = pointwise.sum_to
    pad = pool.pad
    pad_backward = pool.pad_backward
    gather_rows = linear.table_gather_rows
    sum_rows = linear.sum_rows
    add_rows = linear.add_rows
    add_to_rows = linear.add_to_rows
    of_rows = linear.of_rows
    map_rows = linear.map_rows
    host = recurrent.host
    time_major = recurrent.time_major
    batch_major = recurrent.batch_major
    side_by_side = recurrent.side_by_side
    uniform = scores.uniform
    normal = scores.normal
    keep_mask = scores.keep_mask
    bernoulli = scores.bernoulli
    check = scores.check
    look_up = scores.look_up
    matmul = linear.matmul
    add_matmul = linear.add_matmul
    affine = linear.affine
    multiply_held = linear.multiply_held
    prepared_held = prepared
    affine_constant = linear.affine_constant
    column_sums = linear.column_sums
    attention_weights = scores.attention_weights
    attention_backward = scores.attention_backward
    attend_few = attending.attend_few
    attend = attending.attend
    attend_backward = attending_backward.attend_backward
    rotate = scores.rotate
    activation = pointwise.activation
    activation_backward = pointwise.activation_backward
    sigmoid = pointwise.sigmoid
    scale = pointwise.scale
    prelu = pointwise.prelu
    prelu_backward = pointwise.prelu_backward
    channel_total = pointwise.channel_total
    softmax = scores.softmax
    softmax_backward = scores.softmax_backward
    log_softmax = scores.log_softmax
    log_softmax_backward = scores.log_softmax_backward
    softmax_log_sum = scores.softmax_log_sum
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
    upsample_nearest = pool.upsample_nearest
    upsample_nearest_backward = pool.upsample_nearest_backward
    upsample_bilinear = pool.upsample_bilinear
    upsample_bilinear_backward = pool.upsample_bilinear_backward
    moved = normalise.moved
    batch_norm = normalise.batch_norm
    batch_norm_train = normalise.batch_norm_train
    batch_norm_backward = normalise.batch_norm_backward
    layer_norm = normalise.layer_norm
    layer_norm_backward = normalise.layer_norm_backward
    group_norm = normalise.group_norm
    group_norm_backward = normalise.group_norm_backward
    l2_norm = normalise.l2_norm
    l2_norm_backward = normalise.l2_norm_backward
    lrn = normalise.lrn
    lrn_backward = normalise.lrn_backward
    lstm_layer = recurrent.lstm_layer
    lstm_layer_backward = recurrent.lstm_layer_backward
    gru_layer = recurrent.gru_layer
    gru_layer_backward = recurrent.gru_layer_backward
    gru_before_layer = recurrent.gru_before_layer
    gru_before_layer_backward = recurrent.gru_before_layer_backward
    elman_layer = recurrent.elman_layer
    elman_layer_backward = recurrent.elman_layer_backward


lift(NumpyOps)

numpy_ops: Ops = NumpyOps(np)
"""The kernels over NumPy's own arrays."""
