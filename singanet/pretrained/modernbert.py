"""Published encoders with rotary positions and local attention: ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from singanet.layers import Embedding, GatedUnit, MultiHeadAttention, RotaryEmbedding
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config, rotary
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(kw_only=True)
class ModernBertSettings:
    """The settings of a ModernBERT.

    ``kinds`` is the type of attention of each block; it selects its ``turns``, and a sliding one
    sees the keys less than ``window`` steps away.
    """

    vocabulary: int
    width: int
    heads: int
    hidden: int
    activation: str
    epsilon: float
    norm_bias: bool
    attention_bias: bool
    hidden_bias: bool
    of_embeddings: float
    of_attention: float
    of_units: float
    kinds: Sequence[str]
    turns: Mapping[str, RotaryEmbedding]
    window: int


def _read(c: Config, longest: int) -> ModernBertSettings:
    depth = c.blocks("num_hidden_layers", 22)
    every = c.count("global_attn_every_n_layers", 3)
    usual = [_SLIDING if k % every else _FULL for k in range(depth)]
    kinds = c.texts("layer_types", depth) or usual
    if not {_FULL, _SLIDING} >= set(kinds):
        raise c.refused("layer_types", f"{_FULL!r} and {_SLIDING!r}", kinds)
    thetas = {
        _FULL: c.number("global_rope_theta", 160000.0),
        _SLIDING: c.number("local_rope_theta", 10000.0),
    }
    c.only(position_embedding_type="absolute")
    c.skip("deterministic_flash_attn", "initializer_cutoff_factor", "reference_compile")
    c.skip("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index")
    c.skip("classifier_pooling", "classifier_bias", "classifier_activation", "layer_norm_eps")
    c.skip("decoder_bias")
    return ModernBertSettings(
        vocabulary=c.count("vocab_size", 50368),
        width=c.count("hidden_size", 768),
        heads=c.count("num_attention_heads", 12),
        hidden=c.count("intermediate_size", 1152),
        activation=c.choice("hidden_activation", ACTIVATIONS, "gelu"),
        epsilon=c.number("norm_eps", 1e-5),
        norm_bias=c.flag("norm_bias", False),
        attention_bias=c.flag("attention_bias", False),
        hidden_bias=c.flag("mlp_bias", False),
        of_embeddings=c.share("embedding_dropout"),
        of_attention=c.share("attention_dropout"),
        of_units=c.share("mlp_dropout"),
        kinds=kinds,
        turns=rotary(c, longest, thetas),
        # The width counts both sides, and the last key of each is seen too.
        window=c.count("local_attention", 128) // 2 + 1,
    )


def draw(d: ModelDrawing) -> Symbol:
    """Build a ModernBERT: ``last_hidden_state``, or ``logits`` of words."""
    c = d.config
    d.most_steps = c.count("max_position_embeddings", 8192)
    m, tied = _read(c, d.most_steps), c.flag("tie_word_embeddings", True)
    inputs = d.ids(("input_ids",), ("attention_mask",))
    base = d.prefix("model.")
    padding, sparse = d.padding(m.vocabulary, 50283), tied and not d.is_bare
    table = Embedding("tok_embeddings", m.vocabulary, m.width, padding_index=padding, sparse=sparse)
    x = d.embedding(inputs["input_ids"], table, f"{base}embeddings.tok_embeddings")
    x = _norm(d, m, x, "embeddings_norm", f"{base}embeddings.norm")
    x = d.dropout(x, "embeddings_drop", m.of_embeddings)
    for k, kind in enumerate(m.kinds):
        x = _block(d, m, x, inputs.get("attention_mask"), k, kind, f"{base}layers.{k}")
    name = "last_hidden_state" if d.is_bare else "norm"
    x = _norm(d, m, x, name, f"{base}final_norm")
    if d.is_bare:
        return x
    x = d.dense(x, "transform", m.width, "head.dense", c.flag("classifier_bias", False))
    mode = c.choice("classifier_activation", ACTIVATIONS, "gelu")
    x = _norm(d, m, d.activation(x, "transform_act", mode), "transform_norm", "head.norm")
    d.expect_words()
    bias = "decoder.bias" if c.flag("decoder_bias", True) else ""
    matrix = table.params["weight"] if tied else None
    return d.head(x, m.vocabulary, "decoder.weight", matrix, bias)


def _block(
    d: ModelDrawing,
    m: ModernBertSettings,
    x: Symbol,
    mask: Symbol | None,
    k: int,
    kind: str,
    own: str,
) -> Symbol:
    """Add a pre-norm block; the first one has no norm before its attention."""
    name = f"layers/{k}"
    layer = MultiHeadAttention(
        f"{name}/attention",
        m.heads,
        dropout=m.of_attention,
        use_bias=m.attention_bias,
        mask=None if mask is None else "boolean",
        rotary=m.turns[kind],
        window=m.window if kind == _SLIDING else None,
    )
    y = _norm(d, m, x, f"{name}/attention_norm", f"{own}.attn_norm") if k else x
    places = {}
    for suffix in ("weight", "bias"):
        places[f"output_{suffix}"] = ArrayPlace(f"{own}.attn.Wo.{suffix}", suffix == "weight")
        for order, part in enumerate(("query", "key", "value")):
            place = ArrayPlace(f"{own}.attn.Wqkv.{suffix}", suffix == "weight", order)
            places[f"{part}_{suffix}"] = place
    y = d.put(layer, y if mask is None else [y, mask], **places)
    x = d.add(f"{name}/attention_add", x, d.dropout(y, f"{name}/attention_drop", m.of_attention))
    y = _norm(d, m, x, f"{name}/unit_norm", f"{own}.mlp_norm")
    places = {
        f"{part}_{suffix}": ArrayPlace(f"{own}.mlp.Wi.{suffix}", suffix == "weight", order)
        for suffix in ("weight", "bias")
        for order, part in enumerate(("gate", "up"))
    }
    unit = GatedUnit(f"{name}/unit", m.hidden, mode=m.activation, use_bias=m.hidden_bias)
    y = d.dropout(d.put(unit, y, **places), f"{name}/unit_drop", m.of_units)
    y = d.dense(y, f"{name}/down", m.width, f"{own}.mlp.Wo", m.hidden_bias)
    return d.add(f"{name}/unit_add", x, y)


def _norm(d: ModelDrawing, m: ModernBertSettings, x: Symbol, name: str, theirs: str) -> Symbol:
    return d.layer_norm(x, name, m.epsilon, theirs, m.norm_bias)


FAMILIES: Mapping[str, Family] = {
    "modernbert": Family(
        draw, ("ModernBertModel", "ModernBertForMaskedLM"), bare=("ModernBertModel",)
    ),
}
