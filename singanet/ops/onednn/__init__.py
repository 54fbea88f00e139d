"""Provide kernels by the oneDNN library, through its C interface."""

from __future__ import annotations

from singanet.ops.llvm import attend_blocks, few, sweeps
from singanet.ops.onednn import attending, conv, eltwise, normalise, pool, products, recurrent
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.calibration import measured
from singanet.ops.onednn.library import Library, find_library, load_library
from singanet.ops.onednn.recurrent import written
from singanet.ops.threads import set_threads

__all__ = ["Library", "OneDnnOps", "find_library", "load_library", "set_threads"]


class OneDnnOps(OneDnnBase):
    """`NumpyOps` with oneDNN's routes for kernels that are faster.

    Arrays stay plain NumPy arrays in channels-last memory: no layout of oneDNN's own passes between
    kernels. float64, empty and tiny arrays, small matrix products and skipped steps use NumPy's
    kernels.
    """

    calibrate = staticmethod(measured)
    written = written
    add_all = eltwise.add_all
    sweep = eltwise.sweep
    has_sweep = eltwise.has_sweep
    combine = eltwise.combine
    matmul = products.matmul
    add_matmul = products.add_matmul
    affine = products.affine
    affine_constant = products.affine_constant
    multiply_held = products.multiply_held
    prepared_held = products.prepared_held
    activation = eltwise.activation
    activation_backward = eltwise.activation_backward
    sigmoid = eltwise.sigmoid
    attention_weights = attending.attention_weights
    attend = attending.attend
    has_attention = attend_blocks.is_prepared
    attend_few = attending.attend_few
    further_attention = few.further_attention
    arithmetic = few.arithmetic
    joint_sweep = sweeps.joint_sweep
    rotate = attending.rotate
    attend_backward = attending.attend_backward
    softmax = attending.softmax
    softmax_log_sum = attending.softmax_log_sum
    softmax_backward = attending.softmax_backward
    conv2d = conv.conv2d
    conv2d_constant = conv.conv2d_constant
    conv2d_backward_data = conv.conv2d_backward_data
    conv2d_backward_weights = conv.conv2d_backward_weights
    depthwise_conv2d = conv.depthwise_conv2d
    depthwise_conv2d_backward_data = conv.depthwise_conv2d_backward_data
    depthwise_conv2d_backward_weights = conv.depthwise_conv2d_backward_weights
    channels_last = eltwise.channels_last
    max_pool = pool.max_pool
    max_pool_backward = pool.max_pool_backward
    avg_pool = pool.avg_pool
    avg_pool_backward = pool.avg_pool_backward
    batch_norm = normalise.batch_norm
    batch_norm_train = normalise.batch_norm_train
    batch_norm_backward = normalise.batch_norm_backward
    l2_norm = normalise.l2_norm
    l2_norm_backward = normalise.l2_norm_backward
    layer_norm = normalise.layer_norm
    layer_norm_backward = normalise.layer_norm_backward
    lrn = normalise.lrn
    lrn_backward = normalise.lrn_backward
    lstm_layer = recurrent.lstm_layer
    lstm_layer_backward = recurrent.lstm_layer_backward
    gru_layer = recurrent.gru_layer
    gru_layer_backward = recurrent.gru_layer_backward
    elman_layer = recurrent.elman_layer
    elman_layer_backward = recurrent.elman_layer_backward
