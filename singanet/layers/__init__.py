"""The layers, one a file or one family a file, each imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.lazy import names_when_asked

if TYPE_CHECKING:
    from singanet.layers.activation import Activation
    from singanet.layers.adaptive_pooling import (
        AdaptiveAvgPooling1D,
        AdaptiveAvgPooling2D,
        AdaptiveAvgPooling3D,
        AdaptiveMaxPooling1D,
        AdaptiveMaxPooling2D,
        AdaptiveMaxPooling3D,
    )
    from singanet.layers.arithmetic import Clip, Index, Power
    from singanet.layers.batch_normalization import BatchNormalization
    from singanet.layers.cache import Cache
    from singanet.layers.cast import Cast
    from singanet.layers.class_token import ClassToken
    from singanet.layers.concat import Concat
    from singanet.layers.context import Context
    from singanet.layers.conv import Conv1D, Conv2D, Conv3D
    from singanet.layers.conv_transpose import Conv1DTranspose, Conv2DTranspose, Conv3DTranspose
    from singanet.layers.dense import Dense
    from singanet.layers.depthwise_conv import DepthwiseConv1D, DepthwiseConv2D
    from singanet.layers.dropout import AlphaDropout, Dropout, GaussianNoise, SpatialDropout
    from singanet.layers.dummy import Dummy, Input
    from singanet.layers.embedding import Embedding
    from singanet.layers.gated_unit import GatedUnit
    from singanet.layers.gather import Gather
    from singanet.layers.global_pooling import (
        GlobalAvgPooling1D,
        GlobalAvgPooling2D,
        GlobalAvgPooling3D,
        GlobalMaxPooling1D,
        GlobalMaxPooling2D,
        GlobalMaxPooling3D,
    )
    from singanet.layers.glu import GLU
    from singanet.layers.group_norm import GroupNorm, InstanceNorm
    from singanet.layers.joins import (
        Add,
        Average,
        Divide,
        Dot,
        Maximum,
        Merge,
        Minimum,
        Multiply,
        Subtract,
    )
    from singanet.layers.l2_norm import L2Norm
    from singanet.layers.layer import Layer, Traits
    from singanet.layers.layer_norm import LayerNorm, RMSNorm
    from singanet.layers.lrn import LRN
    from singanet.layers.masking import Masking
    from singanet.layers.matmul import MatMul
    from singanet.layers.multi_head_attention import MultiHeadAttention
    from singanet.layers.operation import Operation
    from singanet.layers.pad import Cropping, EndPadding, Pad
    from singanet.layers.pooling import (
        AvgPooling1D,
        AvgPooling2D,
        AvgPooling3D,
        MaxPooling1D,
        MaxPooling2D,
        MaxPooling3D,
    )
    from singanet.layers.positions import PositionEmbedding, Positions, SinusoidalPosition
    from singanet.layers.prelu import PReLU
    from singanet.layers.query_key_norm import QueryKeyNorm
    from singanet.layers.reduce import Expand, Reduce, RepeatVector
    from singanet.layers.relative import RelativePositions
    from singanet.layers.reshape import Flatten, Permute, Reshape
    from singanet.layers.rnn import GRU, LSTM, RNN
    from singanet.layers.rotary import RotaryEmbedding
    from singanet.layers.scale import Scale
    from singanet.layers.separable_conv import SeparableConv1D, SeparableConv2D
    from singanet.layers.slice import Slice
    from singanet.layers.softmax import LogSoftmax, Softmax
    from singanet.layers.split import Split
    from singanet.layers.step_list import StepList, padded_to_steps, steps_to_padded
    from singanet.layers.stop_gradient import StopGradient
    from singanet.layers.time_distributed import TimeDistributed
    from singanet.layers.top_indices import TopIndices
    from singanet.layers.upsampling2d import Upsampling2D
    from singanet.layers.weight import Weight
    from singanet.layers.where import Compare, Where

__all__ = [
    "GLU",
    "GRU",
    "LRN",
    "LSTM",
    "RNN",
    "Activation",
    "AdaptiveAvgPooling1D",
    "AdaptiveAvgPooling2D",
    "AdaptiveAvgPooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AlphaDropout",
    "Average",
    "AvgPooling1D",
    "AvgPooling2D",
    "AvgPooling3D",
    "BatchNormalization",
    "Cache",
    "Cast",
    "ClassToken",
    "Clip",
    "Compare",
    "Concat",
    "Context",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Cropping",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Divide",
    "Dot",
    "Dropout",
    "Dummy",
    "Embedding",
    "EndPadding",
    "Expand",
    "Flatten",
    "GatedUnit",
    "Gather",
    "GaussianNoise",
    "GlobalAvgPooling1D",
    "GlobalAvgPooling2D",
    "GlobalAvgPooling3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNorm",
    "Index",
    "Input",
    "InstanceNorm",
    "L2Norm",
    "Layer",
    "LayerNorm",
    "LogSoftmax",
    "Masking",
    "MatMul",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Merge",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Operation",
    "PReLU",
    "Pad",
    "Permute",
    "PositionEmbedding",
    "Positions",
    "Power",
    "QueryKeyNorm",
    "RMSNorm",
    "Reduce",
    "RelativePositions",
    "RepeatVector",
    "Reshape",
    "RotaryEmbedding",
    "Scale",
    "SeparableConv1D",
    "SeparableConv2D",
    "SinusoidalPosition",
    "Slice",
    "Softmax",
    "SpatialDropout",
    "Split",
    "StepList",
    "StopGradient",
    "Subtract",
    "TimeDistributed",
    "TopIndices",
    "Traits",
    "Upsampling2D",
    "Weight",
    "Where",
    "padded_to_steps",
    "steps_to_padded",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
