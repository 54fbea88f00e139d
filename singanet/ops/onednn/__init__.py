"""Kernels by the oneDNN library, through its C interface."""

from __future__ import annotations

from singanet.ops.onednn.affine_constant import OneDnnConstantProducts
from singanet.ops.onednn.combine import OneDnnCombining
from singanet.ops.onednn.conv_constant import OneDnnConstantConvolution
from singanet.ops.onednn.elman import OneDnnElman
from singanet.ops.onednn.gru import OneDnnGRU
from singanet.ops.onednn.images import OneDnnImages
from singanet.ops.onednn.library import Library, find_library, load_library
from singanet.ops.onednn.lrn import OneDnnLocalResponse
from singanet.ops.onednn.lstm import OneDnnLSTM
from singanet.ops.onednn.normalise_relu import OneDnnNormalisationRelu
from singanet.ops.onednn.pool import OneDnnPooling
from singanet.ops.onednn.softmax import OneDnnSoftmax
from singanet.ops.threads import set_threads

__all__ = ["Library", "OneDnnOps", "find_library", "load_library", "set_threads"]


class OneDnnOps(
    OneDnnImages,
    OneDnnConstantConvolution,
    OneDnnConstantProducts,
    OneDnnPooling,
    OneDnnNormalisationRelu,
    OneDnnSoftmax,
    OneDnnCombining,
    OneDnnLocalResponse,
    OneDnnLSTM,
    OneDnnGRU,
    OneDnnElman,
):
    """`NumpyOps` with oneDNN's kernels where they are faster.

    Arrays stay plain NumPy arrays in channels-last memory: no layout of oneDNN's own is kept from
    one kernel to the next. float64, empty and tiny arrays, small matrix products and ragged batches
    are NumPy's.
    """
