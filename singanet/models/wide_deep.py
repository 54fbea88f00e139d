"""Wide and deep: Cheng et al., 2016."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import Add, Dense, Embedding
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
    """A linear model and dense layers whose scores are added.

    Rows of shape (C, D): the input "categorical" holds C numbers below ``vocabulary_size``, the
    columns counted on one after the other (`TabularDataset.shifted`), "numeric" D measures. The
    wide part has a weight for each category, class and measure; products of columns that it
    should see are columns of the table.
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
