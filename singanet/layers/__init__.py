"""The layers, one file for each family, each imported when it is first used.

`layer` has the base class, `context` and `kv_cache` the state of a pass, `symbol` the result of
calling a layer on another. `geometry` has the windows of one, two and three axes, `cells` the
steps of recurrent layers. Each other file has the classes of one family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.layers.activations import GLU, Activation, GatedUnit, LogSoftmax, PReLU, Softmax
    from singanet.layers.batchwise import Einsum, Rearrange
    from singanet.layers.context import Context
    from singanet.layers.convolution import (
        Conv1D,
        Conv1DTranspose,
        Conv2D,
        Conv2DTranspose,
        Conv3D,
        Conv3DTranspose,
        Cropping,
        DepthwiseConv1D,
        DepthwiseConv2D,
        EndPadding,
        Pad,
        SeparableConv1D,
        SeparableConv2D,
    )
    from singanet.layers.dense import Dense, Weight
    from singanet.layers.distances import ByDistance
    from singanet.layers.dropout import (
        AlphaDropout,
        Dropout,
        GaussianNoise,
        Masking,
        SpatialDropout,
    )
    from singanet.layers.elementwise import (
        Clip,
        Compare,
        Index,
        MatMul,
        Operation,
        Power,
        Scale,
        Where,
    )
    from singanet.layers.embedding import (
        Cache,
        ClassToken,
        Embedding,
        PositionEmbedding,
        Positions,
        SinusoidalPosition,
    )
    from singanet.layers.experts import MixtureOfExperts
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
    from singanet.layers.layer import Layer
    from singanet.layers.multi_head_attention import MultiHeadAttention, QueryKeyNorm
    from singanet.layers.normalization import (
        LRN,
        BatchNormalization,
        GroupNorm,
        InstanceNorm,
        L2Norm,
        LayerNorm,
        RMSNorm,
    )
    from singanet.layers.normalization import LayerNorm as LayerNormalization
    from singanet.layers.pooling import (
        AdaptiveAvgPooling1D,
        AdaptiveAvgPooling2D,
        AdaptiveAvgPooling3D,
        AdaptiveMaxPooling1D,
        AdaptiveMaxPooling2D,
        AdaptiveMaxPooling3D,
        AvgPooling1D,
        AvgPooling2D,
        AvgPooling3D,
        GlobalAvgPooling1D,
        GlobalAvgPooling2D,
        GlobalAvgPooling3D,
        GlobalMaxPooling1D,
        GlobalMaxPooling2D,
        GlobalMaxPooling3D,
        MaxPooling1D,
        MaxPooling2D,
        MaxPooling3D,
        Resize,
        Upsampling2D,
    )
    from singanet.layers.pooling import AvgPooling1D as AveragePooling1D
    from singanet.layers.pooling import AvgPooling2D as AveragePooling2D
    from singanet.layers.pooling import AvgPooling3D as AveragePooling3D
    from singanet.layers.pooling import GlobalAvgPooling1D as GlobalAveragePooling1D
    from singanet.layers.pooling import GlobalAvgPooling2D as GlobalAveragePooling2D
    from singanet.layers.pooling import GlobalAvgPooling3D as GlobalAveragePooling3D
    from singanet.layers.reducing import Expand, Gather, Reduce, RepeatVector, TopIndices
    from singanet.layers.relative import Alibi, RelativePositions
    from singanet.layers.rnn import (
        GRU,
        LSTM,
        RNN,
        SimpleRNN,
        StepList,
        TimeDistributed,
        padded_to_steps,
        steps_to_padded,
    )
    from singanet.layers.rotary import RotaryEmbedding
    from singanet.layers.shapes import (
        Cast,
        Concat,
        Dummy,
        Flatten,
        Input,
        Permute,
        Reshape,
        Slice,
        Split,
        StopGradient,
    )
    from singanet.layers.shapes import Concat as Concatenate
    from singanet.types import Traits

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
    "Alibi",
    "AlphaDropout",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPooling1D",
    "AvgPooling2D",
    "AvgPooling3D",
    "BatchNormalization",
    "ByDistance",
    "Cache",
    "Cast",
    "ClassToken",
    "Clip",
    "Compare",
    "Concat",
    "Concatenate",
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
    "Einsum",
    "Embedding",
    "EndPadding",
    "Expand",
    "Flatten",
    "GatedUnit",
    "Gather",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
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
    "LayerNormalization",
    "LogSoftmax",
    "Masking",
    "MatMul",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Merge",
    "Minimum",
    "MixtureOfExperts",
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
    "Rearrange",
    "Reduce",
    "RelativePositions",
    "RepeatVector",
    "Reshape",
    "Resize",
    "RotaryEmbedding",
    "Scale",
    "SeparableConv1D",
    "SeparableConv2D",
    "SimpleRNN",
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
