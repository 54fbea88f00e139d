"""Nets over sequences and image patches."""

from __future__ import annotations

from typing import Any

from singanet.errors import ShapeError, UnknownNameError, brief, did_you_mean
from singanet.layers import (
    LSTM,
    Activation,
    Add,
    ClassToken,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    MultiHeadAttention,
    Permute,
    PositionEmbedding,
    Reshape,
    RotaryEmbedding,
    TimeDistributed,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models.blocks import classifier, is_small
from singanet.net import FeedForwardNet
from singanet.types import Shape


def char_rnn(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: int = 256,
    stacks: int = 1,
    embedding: int = 64,
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Build an LSTM language model: scores (T, num_classes) of the next of the ids (T,).

    ``num_classes`` is the size of the vocabulary. Dropout precedes and follows the LSTM layers.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Embedding("embedding", num_classes, embedding, input_shape=input_shape))
    net.add(Dropout("drop1", dropout))
    between = dropout if stacks > 1 else 0.0
    net.add(LSTM("lstm", hidden, dropout=between, num_layers=stacks))
    net.add(Dropout("drop2", dropout))
    net.add(TimeDistributed("scores", Dense("fc", num_classes)))
    return net


def lstm(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: int = 128,
    stacks: int = 1,
    bidirectional: bool = True,
    dropout: float = 0.3,
) -> FeedForwardNet:
    """Build a classifier on the last states of a bidirectional LSTM.

    A sample is a sequence (T, F), an image (C, H, W) read row by row, or a vector (D,) read element
    by element.
    """
    sample = Input("sample", input_shape)
    x = LSTM(
        "lstm",
        hidden,
        dropout=dropout if stacks > 1 else 0.0,
        num_layers=stacks,
        bidirectional=bidirectional,
        return_sequences=False,
    )(_as_sequence(sample))
    return classifier(sample, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)


def _as_sequence(x: Symbol) -> Symbol:
    """Reshape ``x`` to (T, F)."""
    if len(x.shape) == 3:
        rows: Symbol = Permute("rows", (2, 1, 3))(x)
        x = Reshape("sequence", (x.shape[1], x.shape[0] * x.shape[2]))(rows)
    elif len(x.shape) == 1:
        x = Reshape("sequence", (*x.shape, 1))(x)
    elif len(x.shape) != 2:
        raise ShapeError(
            "model lstm",
            expected="samples of shape (T, F), (C, H, W) or (D,)",
            received=f"{x.shape}",
            advice="reshape the samples",
        )
    return x


def attention(x: Symbol, name: str, heads: int, dropout: float, **options: Any) -> Symbol:
    """Add a pre-norm attention block to ``x`` (T, E); ``options`` go to the attention layer."""
    y = LayerNorm(f"{name}_norm")(x)
    y = MultiHeadAttention(name, heads, dropout=dropout, **options)(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total


def dense_pair(x: Symbol, name: str, dropout: float, mode: str = "relu") -> Symbol:
    """Add a pre-norm feed-forward block to ``x`` (T, E), with 4 E hidden units."""
    width = x.shape[1]
    y = LayerNorm(f"{name}_norm")(x)
    y = Activation(f"{name}_{mode}", mode)(Dense(f"{name}1", 4 * width)(y))
    y = Dense(f"{name}2", width)(y)
    total: Symbol = Add(f"{name}_add")(x, Dropout(f"{name}_drop", dropout)(y))
    return total


def transformer(
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
    """Build a causal transformer: scores (T, num_classes) of the next of the ids (T,).

    Each of ``depth`` pre-norm blocks has causal attention with ``heads`` query heads and
    ``kv_heads`` key and value heads, and two dense layers with 4 ``width`` hidden units and the
    activation ``mode``. ``positions`` is "learned" or "rotary". ``tied`` shares the embedding
    matrix with the output layer (Press and Wolf, 2017).
    """
    if positions not in ("learned", "rotary"):
        raise UnknownNameError(
            "model transformer, argument positions",
            expected="'learned' or 'rotary'",
            received=brief(positions),
            advice=did_you_mean(str(positions), ("learned", "rotary"), "omit it"),
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


def vit(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
    patch: int | None = None,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Build a vision transformer: square patches and a class token, whose output is classified.

    ``patch`` defaults to 16 pixels, 4 for images below 64 pixels and 2 below 16.
    """
    image = Input("image", input_shape)
    if patch is None:
        patch = (2 if min(image.shape[1:]) < 16 else 4) if is_small(image) else 16
    x = PositionEmbedding("position")(ClassToken("token")(patches(image, width, patch)))
    x = Dropout("drop", dropout)(x)
    for block in range(1, depth + 1):
        x = attention(x, f"block{block}_attention", heads, dropout)
        x = dense_pair(x, f"block{block}_dense", dropout, "gelu")
    return classifier(image, Dense("fc", num_classes)(LayerNorm("norm")(x)[:, 0]), seed)


def patches(image: Symbol, width: int, patch: int) -> Symbol:
    """Embed the patches of (C, H, W), row by row, as (T, width)."""
    if any(size % patch for size in image.shape[1:]):
        raise ShapeError(
            "model vit",
            expected=f"images whose sides are multiples of {patch}, the side of a patch",
            received=f"{image.shape}",
            advice="pass another patch=, or put Pad or a resize before it",
        )
    x = Conv2D("patches", width, patch, patch, "valid")(image)
    x = Reshape("sequence", (width, x.shape[1] * x.shape[2]))(x)
    steps: Symbol = Permute("steps", (2, 1))(x)
    return steps
