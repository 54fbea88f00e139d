"""A small causal transformer for characters: Vaswani et al., 2017, normalising first."""

from __future__ import annotations

from singanet.layers import (
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    PositionEmbedding,
    TimeDistributed,
)
from singanet.models.blocks import classifier
from singanet.models.encoder import attention, dense_pair
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
        x = attention(x, f"block{block}_attention", heads, dropout, causal=True)
        x = dense_pair(x, f"block{block}_dense", dropout)
    x = LayerNorm("norm")(x)
    return classifier(ids, TimeDistributed("scores", Dense("fc", num_classes))(x), seed)
