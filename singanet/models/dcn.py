"""Deep and cross network: Wang et al., 2021 (DCN-V2), parallel structure."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import Add, Concat, Dense, Embedding, Flatten, Multiply
from singanet.layers.symbol import Symbol
from singanet.models.table_parts import deep_part, row_inputs, table_net
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    vocabulary_size: int = 1000,
    embedding: int = 8,
    cross: int = 2,
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.2,
) -> FeedForwardNet:
    """``cross`` layers that multiply features with each other, beside dense layers.

    Inputs as in `singanet.models.wide_deep`. After k cross layers there are products of up to k + 1
    features. The scores of both parts are added, which is one dense layer over both together.
    """
    categorical, numeric = row_inputs("dcn", input_shape)
    vectors = Embedding("embedding", vocabulary_size, embedding)(categorical)
    x = Concat("cross_in", 1)(Flatten("cross_flat")(vectors), numeric)
    products = Dense("cross_scores", num_classes, use_bias=False)(crossed(x, cross))
    deep = deep_part(vectors, numeric, hidden, dropout, num_classes)
    return table_net([categorical, numeric], Add("scores")(products, deep), seed)


def crossed(first: Symbol, depth: int) -> Symbol:
    """x_{k+1} = x_0 ∘ (W_k x_k + b_k) + x_k, (d,) → (d,), ``depth`` times from x_0 = ``first``."""
    x = first
    for k in range(1, depth + 1):
        factor = Dense(f"cross{k}", first.shape[0])(x)
        x = Add(f"cross{k}_sum")(Multiply(f"cross{k}_product")(first, factor), x)
    return x
