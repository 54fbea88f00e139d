"""A small causal transformer for characters: Vaswani et al., 2017, normalising first."""

from __future__ import annotations

from singanet.layers import (
    Activation,
    Add,
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    MultiHeadAttention,
    PositionEmbedding,
    TimeDistributed,
)
from singanet.layers.symbol import Symbol
from singanet.models.blocks import classifier
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    width: int = 128,
    depth: int = 3,
    heads: int = 4,
    dropout: float = 0.1,
) -> FeedForwardNet:
    """Scores (T, num_classes) of the next character after each of the ids (T,).

    Each of ``depth`` blocks adds causal attention of ``heads`` heads, then two dense layers with
    four times the ``width`` between them; normalisation comes first in both.
    """
    ids = Input("ids", input_shape)
    x = Embedding("embedding", num_classes, width)(ids)
    x = Dropout("drop", dropout)(PositionEmbedding("position")(x))
    for block in range(1, depth + 1):
        x = _attention(x, f"block{block}_attention", heads, dropout)
        x = _dense_pair(x, f"block{block}_dense", width, dropout)
    x = LayerNorm("norm")(x)
    return classifier(ids, TimeDistributed("scores", Dense("fc", num_classes))(x), seed)


def _attention(x: Symbol, name: str, heads: int, dropout: float) -> Symbol:
    y = LayerNorm(f"{name}_norm")(x)
    y = MultiHeadAttention(name, heads, dropout=dropout, causal=True)(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total


def _dense_pair(x: Symbol, name: str, width: int, dropout: float) -> Symbol:
    y = LayerNorm(f"{name}_norm")(x)
    y = TimeDistributed(f"{name}_steps1", Dense(f"{name}1", 4 * width))(y)
    y = Activation(f"{name}_relu")(y)
    y = TimeDistributed(f"{name}_steps2", Dense(f"{name}2", width))(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total
