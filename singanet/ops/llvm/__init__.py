"""Provide kernels by functions that LLVM compiles for this processor, from `ops.compiled`.

They need no other library. oneDNN's kernels have the same routes, and choose among more.
"""

from __future__ import annotations

from singanet.ops.kernel import in_order
from singanet.ops.llvm import (
    attend_blocks,
    depthwise,
    few,
    kernels,
    recurrent,
    sweeps,
    winograd,
)
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.numpy import (
    attending,
    attending_backward,
    conv,
    linear,
    normalise,
    pointwise,
    pool,
    scores,
)

__all__ = ["LlvmOps"]


class LlvmOps(PlannedOps):
    """`NumpyOps` with LLVM's routes for kernels that are faster."""

    name = "llvm"
    attend = in_order(attend_blocks.attend, last=attending.attend)
    attend_backward = in_order(
        attend_blocks.attend_backward, last=attending_backward.attend_backward
    )
    has_attention = attend_blocks.is_prepared
    attend_few = in_order(few.attend_few, last=attending.attend_few)
    further_attention = few.further_attention
    arithmetic = few.arithmetic
    joint_sweep = sweeps.joint_sweep
    matmul = in_order(few.matmul, last=linear.matmul)
    affine = in_order(few.affine, last=linear.affine)
    affine_constant = in_order(
        kernels.product, kernels.product_of_rows, last=linear.affine_constant
    )
    activation = in_order(few.silu, kernels.of_one, last=pointwise.activation)
    activation_backward = in_order(few.silu_backward, last=pointwise.activation_backward)
    multiplier = kernels.multiplier
    l2_norm = in_order(few.l2_norm, last=normalise.l2_norm)
    l2_norm_backward = in_order(few.l2_norm_backward, last=normalise.l2_norm_backward)
    softmax = in_order(few.softmax, last=scores.softmax)
    softmax_log_sum = in_order(few.softmax_log_sum, last=scores.softmax_log_sum)
    rotate = in_order(few.rotate, last=scores.rotate)
    combine = in_order(kernels.of_sum, last=pointwise.combine)
    max_pool = in_order(kernels.max_pool, last=pool.max_pool)
    batch_norm = in_order(kernels.batch_norm, last=normalise.batch_norm)
    batch_norm_train = in_order(kernels.batch_norm_train, last=normalise.batch_norm_train)
    batch_norm_backward = in_order(kernels.batch_norm_backward, last=normalise.batch_norm_backward)
    conv2d = in_order(winograd.conv2d, depthwise.groups, last=conv.conv2d)
    conv2d_backward_data = in_order(
        winograd.conv2d_backward_data, depthwise.groups_data, last=conv.conv2d_backward_data
    )
    conv2d_backward_weights = in_order(
        winograd.conv2d_backward_weights,
        depthwise.groups_weights,
        last=conv.conv2d_backward_weights,
    )
    conv2d_constant = in_order(winograd.conv2d_constant, last=conv.conv2d_constant)
    depthwise_conv2d = depthwise.conv2d
    depthwise_conv2d_backward_data = depthwise.conv2d_backward_data
    depthwise_conv2d_backward_weights = depthwise.conv2d_backward_weights
    lstm_layer = recurrent.lstm_layer
    lstm_layer_backward = recurrent.lstm_layer_backward
