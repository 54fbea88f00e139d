"""Published encoders with disentangled attention: DeBERTa-v2 and v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.layers import (
    ByDistance,
    Cast,
    Dense,
    Embedding,
    MatMul,
    Permute,
    PositionEmbedding,
    Reshape,
    Scale,
    Softmax,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing
from singanet.pretrained.encoders import EncoderSettings, draw_bert_words

_LOWEST = 1e9
"""What a masked key's score is lowered by."""


def _read(d: ModelDrawing) -> EncoderSettings:
    c = d.config
    c.only(relative_attention=True, share_att_key=True, conv_kernel_size=0, is_decoder=False)
    c.only(tie_word_embeddings=True, norm_rel_ebd="layer_norm", type_vocab_size=0)
    kinds: Any = c.take("pos_att_type", [])
    listed = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if not isinstance(listed, list) or {str(kind).strip() for kind in listed} != {"c2p", "p2c"}:
        raise c.refused("pos_att_type", "'p2c|c2p', both types", kinds)
    c.skip("pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "cls_dropout")
    vocabulary, width = c.count("vocab_size", 128100), c.count("hidden_size", 1536)
    c.only(embedding_size=width)
    return EncoderSettings(
        vocabulary=vocabulary,
        width=width,
        depth=c.blocks("num_hidden_layers", 24),
        heads=c.count("num_attention_heads", 24),
        hidden=c.count("intermediate_size", 6144),
        longest=c.count("max_position_embeddings", 512),
        types=0,
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=c.number("layer_norm_eps", 1e-7),
        dropout=c.share("hidden_dropout_prob", 0.1),
        of_weights=c.share("attention_probs_dropout_prob", 0.1),
        padding=d.padding(vocabulary, 0),
    )


def _range(c: Config, longest: int) -> tuple[int, int]:
    """Return the number of buckets of one direction, and the distance at which the last starts."""
    most = c.count("max_relative_positions", -1, least=-1)
    return c.count("position_buckets", -1, least=2), longest if most < 1 else most


def draw(d: ModelDrawing) -> Symbol:
    """Build a DeBERTa-v2: ``last_hidden_state``, or ``logits`` of words."""
    c, m = d.config, _read(d)
    buckets, most = _range(c, m.longest)
    d.most_steps = m.longest
    inputs = d.ids(("input_ids",), ("attention_mask",))
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    base = d.prefix("deberta.")
    own = f"{base}embeddings"
    table = Embedding(
        "word_embeddings", m.vocabulary, m.width, padding_index=m.padding, sparse=not d.is_bare
    )
    x = d.embedding(ids, table, f"{own}.word_embeddings")
    if c.flag("position_biased_input", True):
        place = ArrayPlace(f"{own}.position_embeddings.weight")
        x = d.put(PositionEmbedding("position_embeddings", m.longest), x, weight=place)
    else:
        d.keep(f"{own}.position_embeddings.weight")
    x = d.layer_norm(x, "embeddings_norm", m.epsilon, f"{own}.LayerNorm")
    x = d.dropout(x, "embeddings_drop", m.dropout)
    place = ArrayPlace(f"{base}encoder.rel_embeddings.weight")
    distances = d.put(Weight("distances", (2 * buckets, m.width)), ids, weight=place)
    norm = f"{base}encoder.LayerNorm"
    distances = d.layer_norm(distances, "distances_norm", m.epsilon, norm)
    lowered = None if mask is None else _lowered(mask)
    for k in range(m.depth):
        name, theirs = f"layers/{k}", f"{base}encoder.layer.{k}"
        y = _attention(d, m, x, distances, lowered, (buckets, most), f"{name}/attention", theirs)
        x = d.add(f"{name}/attention_add", y, x)
        norm = f"{theirs}.attention.output.LayerNorm"
        x = d.layer_norm(x, f"{name}/attention_norm", m.epsilon, norm)
        y = d.dense(x, f"{name}/up", m.hidden, f"{theirs}.intermediate.dense")
        y = d.activation(y, f"{name}/act", m.activation)
        y = d.dense(y, f"{name}/down", m.width, f"{theirs}.output.dense")
        y = d.dropout(y, f"{name}/unit_drop", m.dropout)
        x = d.add(f"{name}/unit_add", y, x)
        last = "last_hidden_state" if d.is_bare and k == m.depth - 1 else f"{name}/unit_norm"
        x = d.layer_norm(x, last, m.epsilon, f"{theirs}.output.LayerNorm")
    # Of the training of version 3, and of its classifiers.
    heads = ("pooler.", "lm_predictions.", "mask_predictions.", "cls.")
    if d.is_bare:
        d.keep(*(name for name in d.names or () if name.startswith(heads)))
        c.skip("legacy")
        return x
    c.only(legacy=True)
    d.keep(*(name for name in d.names or () if name.startswith(heads[:-1])))
    return draw_bert_words(d, m, base, x, table)


def _lowered(mask: Symbol) -> Symbol:
    """Return the summand (1, 1, T) of scores: 0, and far below for a masked key."""
    y: Symbol = Scale("mask_scores", _LOWEST, -_LOWEST)(Cast("mask_numbers", "float")(mask))
    y = Reshape("mask_of_keys", (1, 1, -1))(y)
    return y


def _attention(
    d: ModelDrawing,
    m: EncoderSettings,
    x: Symbol,
    distances: Symbol,
    lowered: Symbol | None,
    span: tuple[int, int],
    name: str,
    theirs: str,
) -> Symbol:
    """Add attention by contents, by queries and distances, and by keys and distances.

    The projections of contents serve the distances too.
    """
    size, own = m.width // m.heads, f"{theirs}.attention.self"

    projections: dict[str, Dense] = {}

    def heads(y: Symbol, part: str, of: str) -> Symbol:
        found = projections.get(part)
        specs = {} if found is None else found.params
        layer = Dense(
            f"{name}/{of}", m.width, W_specs=specs.get("weight"), b_specs=specs.get("bias")
        )
        weight = ArrayPlace(f"{own}.{part}_proj.weight", True)
        y = d.put(layer, y, weight=weight, bias=ArrayPlace(f"{own}.{part}_proj.bias"))
        projections.setdefault(part, layer)
        y = Reshape(f"{name}/{of}_split", (-1, m.heads, size))(y)
        z: Symbol = Permute(f"{name}/{of}_heads", (2, 1, 3))(y)
        return z

    def product(a: Symbol, b: Symbol, of: str) -> Symbol:
        y: Symbol = MatMul(f"{name}/{of}", transpose_b=True)(a, b)
        return y

    far = d.dropout(distances, f"{name}/distances_drop", m.dropout)
    query, key = heads(x, "query", "query"), heads(x, "key", "key")
    by_query = product(query, heads(far, "key", "far_key"), "query_scores")
    by_key = product(key, heads(far, "query", "far_query"), "key_scores")
    scores = d.add(
        f"{name}/sum",
        product(query, key, "scores"),
        ByDistance(f"{name}/by_query", *span)(by_query),
        ByDistance(f"{name}/by_key", *span, of_keys=True)(by_key),
    )
    scores = Scale(f"{name}/scaled", (3 * size) ** -0.5)(scores)
    if lowered is not None:
        scores = d.add(f"{name}/seen", scores, lowered)
    weights = d.dropout(Softmax(f"{name}/weights", -1)(scores), f"{name}/drop", m.of_weights)
    y: Symbol = MatMul(f"{name}/means")(weights, heads(x, "value", "value"))
    y = Reshape(f"{name}/merged", (-1, m.width))(Permute(f"{name}/joined", (2, 1, 3))(y))
    y = d.dense(y, f"{name}/output", m.width, f"{theirs}.attention.output.dense")
    return d.dropout(y, f"{name}/out_drop", m.dropout)


FAMILIES: Mapping[str, Family] = {
    "deberta-v2": Family(
        draw,
        ("DebertaV2Model", "DebertaV2ForMaskedLM"),
        bare=("DebertaV2Model",),
        idle=(r"(.*\.)?embeddings\.position_ids",),
    ),
}
