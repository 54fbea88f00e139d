"""The closed table of Keras classes, and what each becomes here."""

from __future__ import annotations

from collections.abc import Callable

from singanet.keras.described import DescribedLayer
from singanet.keras.plain import PLAIN
from singanet.keras.recurrent import RECURRENT
from singanet.keras.spatial import SPATIAL
from singanet.layers.layer import Layer

TABLE: dict[str, Callable[[DescribedLayer], list[Layer]]] = {**PLAIN, **SPATIAL, **RECURRENT}

MASKED = frozenset(
    {
        *RECURRENT,
        *("Activation", "Add", "AlphaDropout", "Average", "BatchNormalization", "Concatenate"),
        *("Dense", "Dropout", "ELU", "Embedding", "GaussianNoise", "GlobalAveragePooling1D"),
        *("GroupNormalization", "LayerNormalization", "LeakyReLU", "Masking", "Maximum", "Minimum"),
        *("MultiHeadAttention", "Multiply", "PReLU", "RMSNormalization", "ReLU", "Softmax"),
        *("SpatialDropout1D", "Subtract", "TimeDistributed"),
    }
)
"""Classes that hand a mask of steps on or go by it in Keras, where all others drop it."""

MERGES = frozenset({"Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"})
"""Those that hand it on only where all their inputs have one."""

FILLED = frozenset(
    {
        *("Maximum", "Minimum", "MultiHeadAttention", "Multiply"),
        *("Bidirectional", "GRU", "LSTM", "SimpleRNN"),
    }
)
"""Those that yield something of their own at steps that are not there."""
