"""DeepFM: Guo et al., 2017."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import Add, Dense, Embedding, Multiply, Scale
from singanet.layers.symbol import Symbol
from singanet.models.table_parts import deep_part, row_inputs, sum_over_columns, table_net
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    vocabulary_size: int = 1000,
    embedding: int = 8,
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.2,
) -> FeedForwardNet:
    """A factorisation machine and dense layers that share their embeddings; scores are added.

    Inputs as for `wide_deep`. The paper's one score is the sum of the products of all pairs of
    vectors; here each class weighs the elements of that sum for itself.
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
    """Σ over i < j of v_i ∘ v_j = ½ ((Σ v)² − Σ v²), (C, K) → (K,); Rendle, 2010."""
    total = sum_over_columns(vectors, "pair")
    squares = sum_over_columns(Multiply("square")(vectors, vectors), "square")
    square_of_sum = Multiply("pair_square")(total, total)
    difference = Add("pair_difference")(square_of_sum, Scale("square_minus", -1.0)(squares))
    half: Symbol = Scale("pair_half", 0.5)(difference)
    return half
