"""Kernels written over an array module, so that they serve NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

from singanet.ops.numpy.activation import Activations
from singanet.ops.numpy.attention import Attention
from singanet.ops.numpy.channelwise import Channelwise
from singanet.ops.numpy.combine import Combining
from singanet.ops.numpy.conv_data import ConvolutionData
from singanet.ops.numpy.depthwise import DepthwiseConvolution
from singanet.ops.numpy.elementwise import Elementwise
from singanet.ops.numpy.global_pool import GlobalPooling
from singanet.ops.numpy.linear import Linear
from singanet.ops.numpy.loss import Losses
from singanet.ops.numpy.lrn import LocalResponse
from singanet.ops.numpy.normalise_relu import NormalisationRelu
from singanet.ops.numpy.pad import Padding
from singanet.ops.numpy.pool import Pooling
from singanet.ops.numpy.random import Random
from singanet.ops.numpy.recurrent import Recurrent
from singanet.ops.numpy.softmax import Softmax
from singanet.ops.numpy.standardise import Standardisation
from singanet.ops.numpy.table import Tables
from singanet.ops.numpy.upsample import Upsampling

__all__ = ["NumpyOps"]


class NumpyOps(
    Elementwise,
    Linear,
    Softmax,
    Activations,
    ConvolutionData,
    Pooling,
    NormalisationRelu,
    Random,
    Losses,
    Tables,
    Recurrent,
    Attention,
    GlobalPooling,
    Combining,
    Padding,
    Standardisation,
    LocalResponse,
    Channelwise,
    DepthwiseConvolution,
    Upsampling,
):
    """The kernel interface, and its implementation over ``xp`` (numpy or cupy).

    Every kernel takes arrays of one float type and returns that type; ``out=`` names the array
    to fill. A faster backend overrides what it does better.
    """

    name = "numpy"

    def __init__(self, xp: Any) -> None:
        super().__init__(xp)
