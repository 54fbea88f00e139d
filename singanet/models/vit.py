"""Vision transformer: Dosovitskiy et al., 2021, by default the tiny one of Touvron et al., 2021."""

from __future__ import annotations

from singanet.errors import ShapeError
from singanet.layers import (
    ClassToken,
    Conv2D,
    Dense,
    Dropout,
    Input,
    LayerNorm,
    Permute,
    PositionEmbedding,
    Reshape,
)
from singanet.layers.symbol import Symbol
from singanet.models.blocks import classifier, is_small
from singanet.models.encoder import attention, dense_pair
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
    patch: int | None = None,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Square patches as a sequence behind a class token, whose output gives the scores.

    A ``patch`` is 16 pixels wide, 4 in images below 64 pixels, 2 in those below 16.
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
    """The patches of (C, H, W) in rows as (T, width)."""
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
