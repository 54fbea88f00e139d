"""Nets over categorical and numeric columns."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.errors import ShapeError
from singanet.layers import (
    Activation,
    Add,
    Concat,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    GlobalAvgPooling1D,
    Input,
    Multiply,
    Permute,
    Scale,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models.blocks import HE
from singanet.net import FeedForwardNet
from singanet.types import Shape


def row_inputs(model: str, input_shape: Shape) -> tuple[Symbol, Symbol]:
    """Return the inputs "categorical" (C,) and "numeric" (D,) of rows of shape (C, D)."""
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
    """Sum C vectors: (C, K) → (K,)."""
    columns = x.shape[0]
    mean = GlobalAvgPooling1D(f"{name}_mean")(Permute(f"{name}_turned", (2, 1))(x))
    total: Symbol = Scale(f"{name}_sum", float(columns))(mean)
    return total


def deep_part(
    vectors: Symbol, numeric: Symbol, hidden: Sequence[int], dropout: float, num_classes: int
) -> Symbol:
    """Add dense layers over the embedded categories and the numeric columns; return scores."""
    x = Concat("deep", 1)(Flatten("deep_flat")(vectors), numeric)
    for k, size in enumerate(hidden, start=1):
        x = Activation(f"deep_relu{k}")(Dense(f"deep_fc{k}", size, W_specs=HE)(x))
        x = Dropout(f"deep_drop{k}", dropout)(x)
    scores: Symbol = Dense("deep_scores", num_classes)(x)
    return scores


def table_net(inputs: Sequence[Symbol], scores: Symbol, seed: int | None) -> FeedForwardNet:
    """Return the net from both inputs to ``scores``, with softmax cross-entropy and accuracy."""
    return FeedForwardNet(
        SoftmaxCrossEntropy(), Accuracy(), inputs=inputs, outputs=scores, seed=seed
    )


def dcn(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    vocabulary_size: int = 1000,
    embedding: int = 8,
    cross: int = 2,
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Build a deep and cross network: ``cross`` layers of feature products, and dense layers.

    The inputs are described at `wide_deep`. After k cross layers there are products of up to k + 1
    features. The scores of both parts are added, which equals one dense layer over both.
    """
    categorical, numeric = row_inputs("dcn", input_shape)
    vectors = Embedding("embedding", vocabulary_size, embedding)(categorical)
    x = Concat("cross_in", 1)(Flatten("cross_flat")(vectors), numeric)
    products = Dense("cross_scores", num_classes, use_bias=False)(crossed(x, cross))
    deep = deep_part(vectors, numeric, hidden, dropout, num_classes)
    return table_net([categorical, numeric], Add("scores")(products, deep), seed)


def crossed(first: Symbol, depth: int) -> Symbol:
    """Apply x_{k+1} = x_0 ∘ (W_k x_k + b_k) + x_k ``depth`` times, with x_0 = ``first`` (d,)."""
    x = first
    for k in range(1, depth + 1):
        factor = Dense(f"cross{k}", first.shape[0])(x)
        x = Add(f"cross{k}_sum")(Multiply(f"cross{k}_product")(first, factor), x)
    return x


def deepfm(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    vocabulary_size: int = 1000,
    embedding: int = 8,
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Build a factorisation machine and dense layers with shared embeddings; scores are added.

    The inputs are described at `wide_deep`. The paper's single score sums the products of all pairs
    of vectors; here each class weighs the elements of that sum.
    """
    categorical, numeric = row_inputs("deepfm", input_shape)
    weights = Embedding(
        "linear", vocabulary_size, num_classes, W_specs={"init": "constant", "value": 0.0}
    )(categorical)
    first = sum_over_columns(weights, "linear")
    vectors = Embedding("embedding", vocabulary_size, embedding)(categorical)
    second = Dense("pair_scores", num_classes, use_bias=False)(pairs(vectors))
    deep = deep_part(vectors, numeric, hidden, dropout, num_classes)
    return table_net([categorical, numeric], Add("scores")(first, second, deep), seed)


def pairs(vectors: Symbol) -> Symbol:
    """Return Σ over i < j of v_i ∘ v_j = ½ ((Σ v)² − Σ v²), (C, K) → (K,); Rendle, 2010."""
    total = sum_over_columns(vectors, "pair")
    squares = sum_over_columns(Multiply("square")(vectors, vectors), "square")
    square_of_sum = Multiply("pair_square")(total, total)
    difference = Add("pair_difference")(square_of_sum, Scale("square_minus", -1.0)(squares))
    half: Symbol = Scale("pair_half", 0.5)(difference)
    return half


def wide_deep(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    vocabulary_size: int = 1000,
    embedding: int = 8,
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Build a linear model and dense layers whose scores are added.

    Rows have shape (C, D). The input "categorical" has C ids below ``vocabulary_size``, with
    disjoint ranges for the columns (`TabularDataset.shifted`). The input "numeric" has D numbers.
    The wide part has a weight for each category and class, and for each numeric column and class.
    Feature crosses for it must be columns of the table.
    """
    categorical, numeric = row_inputs("wide_deep", input_shape)
    weights = Embedding(
        "wide", vocabulary_size, num_classes, W_specs={"init": "constant", "value": 0.0}
    )(categorical)
    wide = sum_over_columns(weights, "wide")
    linear = Dense("wide_numeric", num_classes, use_bias=False)(numeric)
    vectors = Embedding("embedding", vocabulary_size, embedding)(categorical)
    deep = deep_part(vectors, numeric, hidden, dropout, num_classes)
    return table_net([categorical, numeric], Add("scores")(wide, linear, deep), seed)


def mlp(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: Sequence[int] = (256, 128),
) -> FeedForwardNet:
    """Build dense layers with ReLU between them, for samples of any shape."""
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Flatten("flat", input_shape=input_shape))
    for k, size in enumerate(hidden, start=1):
        net.add(Dense(f"fc{k}", size, W_specs={"init": "msra"}))
        net.add(Activation(f"relu{k}"))
    net.add(Dense(f"fc{len(hidden) + 1}", num_classes))
    return net
