"""Causal transformers for text: Vaswani et al., 2017, normalising first; Radford et al., 2019."""

from __future__ import annotations

from typing import Any

from singanet.errors import UnknownNameError, did_you_mean
from singanet.layers import (
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    PositionEmbedding,
    RotaryEmbedding,
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
    kv_heads: int | None = None,
    positions: str = "learned",
    mode: str = "relu",
    tied: bool = False,
) -> FeedForwardNet:
    """Scores (T, num_classes) of the next character after each of the ids (T,).

    Each of ``depth`` blocks adds causal attention of ``heads`` heads, whose keys and values have
    ``kv_heads``, then two dense layers with four times the ``width`` and the activation ``mode``
    between them; normalisation comes first in both. ``positions`` are "learned" or "rotary". With
    ``tied`` the scores are by the rows of the embedding (Press and Wolf, 2017).
    """
    if positions not in ("learned", "rotary"):
        raise UnknownNameError(
            "model transformer, argument positions",
            expected="'learned' or 'rotary'",
            received=repr(positions),
            advice=did_you_mean(str(positions), ("learned", "rotary"), "leave it out"),
        )
    learned = positions == "learned"
    options: dict[str, Any] = {
        "num_kv_heads": kv_heads,
        "rotary": None if learned else RotaryEmbedding(),
    }
    ids, table = Input("ids", input_shape), Embedding("embedding", num_classes, width)
    x = PositionEmbedding("position")(table(ids)) if learned else table(ids)
    x = Dropout("drop", dropout)(x)
    for block in range(1, depth + 1):
        x = attention(x, f"block{block}_attention", heads, dropout, causal=True, **options)
        x = dense_pair(x, f"block{block}_dense", dropout, mode)
    shared: dict[str, Any] = (
        {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    )
    scores = TimeDistributed("scores", Dense("fc", num_classes, **shared))
    return classifier(ids, scores(LayerNorm("norm")(x)), seed)
