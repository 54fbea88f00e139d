"""An LSTM that reads a sample step by step and then names its class."""

from __future__ import annotations

from singanet.errors import ShapeError
from singanet.layers import LSTM, Dense, Dropout, Input, Permute, Reshape
from singanet.layers.symbol import Symbol
from singanet.models.blocks import classifier
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: int = 128,
    stacks: int = 1,
    bidirectional: bool = True,
    dropout: float = 0.3,
) -> FeedForwardNet:
    """Scores from the last states of a bidirectional LSTM.

    A sample is a sequence (T, F); an image (C, H, W), which is read row by row; or a vector
    (D,), read number by number.
    """
    sample = Input("sample", input_shape)
    x = LSTM("lstm", hidden, dropout, stacks, bidirectional=bidirectional, return_sequences=False)(
        _as_sequence(sample)
    )
    return classifier(sample, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)


def _as_sequence(x: Symbol) -> Symbol:
    """``x`` as (T, F)."""
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
