"""Parts of the nets for tables, whose inputs are a row's categories and its measures."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.errors import ShapeError
from singanet.layers import (
    Activation,
    Concat,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPooling1D,
    Input,
    Permute,
    Scale,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models.blocks import HE
from singanet.net import FeedForwardNet
from singanet.types import Shape

__all__ = ["deep_part", "row_inputs", "sum_over_columns", "table_net"]


def row_inputs(model: str, input_shape: Shape) -> tuple[Symbol, Symbol]:
    """The inputs "categorical" (C,) and "numeric" (D,) of rows of shape (C, D)."""
    if len(input_shape) != 2:
        raise ShapeError(
            f"model {model}",
            expected="the shape (C, D) of rows with C categorical and D numeric columns",
            received=f"{input_shape}",
            advice="pass for example input_shape=(8, 6)",
        )
    columns, measures = input_shape
    return Input("categorical", (columns,)), Input("numeric", (measures,))


def sum_over_columns(x: Symbol, name: str) -> Symbol:
    """(C, K) → (K,), the sum of the C vectors."""
    columns = x.shape[0]
    mean = GlobalAvgPooling1D(f"{name}_mean")(Permute(f"{name}_turned", (2, 1))(x))
    total: Symbol = Scale(f"{name}_sum", float(columns))(mean)
    return total


def deep_part(
    vectors: Symbol, numeric: Symbol, hidden: Sequence[int], dropout: float, num_classes: int
) -> Symbol:
    """Scores by dense layers from the embedded categories and the measures together."""
    x = Concat("deep", 1)(Flatten("deep_flat")(vectors), numeric)
    for k, size in enumerate(hidden, start=1):
        x = Activation(f"deep_relu{k}")(Dense(f"deep_fc{k}", size, W_specs=HE)(x))
        x = Dropout(f"deep_drop{k}", dropout)(x)
    scores: Symbol = Dense("deep_scores", num_classes)(x)
    return scores


def table_net(inputs: Sequence[Symbol], scores: Symbol, seed: int | None) -> FeedForwardNet:
    """The net from both inputs to ``scores``, with softmax cross-entropy and accuracy."""
    return FeedForwardNet(
        SoftmaxCrossEntropy(), Accuracy(), inputs=inputs, outputs=scores, seed=seed
    )
