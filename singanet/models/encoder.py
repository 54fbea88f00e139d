"""The two halves of a transformer's block, normalising first: Vaswani et al., 2017."""

from __future__ import annotations

from typing import Any

from singanet.layers import (
    Activation,
    Add,
    Dense,
    Dropout,
    LayerNorm,
    MultiHeadAttention,
)
from singanet.layers.symbol import Symbol

__all__ = ["attention", "dense_pair"]


def attention(x: Symbol, name: str, heads: int, dropout: float, **options: Any) -> Symbol:
    """``x`` (T, E) plus what its steps make of each other; ``options`` of the attention."""
    y = LayerNorm(f"{name}_norm")(x)
    y = MultiHeadAttention(name, heads, dropout=dropout, **options)(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total


def dense_pair(x: Symbol, name: str, dropout: float, mode: str = "relu") -> Symbol:
    """``x`` (T, E) plus two dense layers of each step, with 4 E units between them."""
    width = x.shape[1]
    y = LayerNorm(f"{name}_norm")(x)
    y = Activation(f"{name}_{mode}", mode)(Dense(f"{name}1", 4 * width)(y))
    y = Dense(f"{name}2", width)(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total
