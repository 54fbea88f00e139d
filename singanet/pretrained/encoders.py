"""Published encoders: BERT and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from singanet.layers import Embedding, MultiHeadAttention, PositionEmbedding, Positions, Weight
from singanet.layers.symbol import Symbol
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing


@dataclass(kw_only=True)
class EncoderSettings:
    """The sizes of a BERT-like model.

    ``longest`` is the number of rows of the position embedding. With ``counts_from`` positions
    start after this index and skip padding.
    """

    vocabulary: int
    width: int
    depth: int
    heads: int
    hidden: int
    longest: int
    types: int
    activation: str
    epsilon: float
    dropout: float
    of_weights: float
    padding: int | None
    counts_from: int | None = None


def _bert(d: ModelDrawing, padding: int = 0) -> EncoderSettings:
    c = d.config
    c.only(add_cross_attention=False, is_decoder=False, position_embedding_type="absolute")
    c.only(tie_word_embeddings=True)
    c.skip("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type")
    c.skip("pooler_num_fc_layers", "pooler_size_per_head")
    vocabulary = c.count("vocab_size", 30522)
    return EncoderSettings(
        vocabulary=vocabulary,
        width=c.count("hidden_size", 768),
        depth=c.blocks("num_hidden_layers", 12),
        heads=c.count("num_attention_heads", 12),
        hidden=c.count("intermediate_size", 3072),
        longest=c.count("max_position_embeddings", 512),
        types=c.count("type_vocab_size", 2),
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=c.number("layer_norm_eps", 1e-12),
        dropout=c.share("hidden_dropout_prob", 0.1),
        of_weights=c.share("attention_probs_dropout_prob", 0.1),
        padding=d.padding(vocabulary, padding),
    )


def _roberta(d: ModelDrawing) -> EncoderSettings:
    """Return BERT's settings, with positions that start after the padding id and skip padding."""
    made = _bert(d, padding=1)
    if made.padding is None or made.longest <= made.padding + 1:
        raise d.config.refused("pad_token_id", "an id, after which positions start", made.padding)
    made.counts_from = made.padding
    return made


def _distilbert(d: ModelDrawing) -> EncoderSettings:
    c = d.config
    c.only(sinusoidal_pos_embds=False, tie_word_embeddings=True, tie_weights_=True)
    c.skip("seq_classif_dropout")
    vocabulary = c.count("vocab_size", 30522)
    return EncoderSettings(
        vocabulary=vocabulary,
        width=c.count("dim", 768),
        depth=c.blocks("n_layers", 6),
        heads=c.count("n_heads", 12),
        hidden=c.count("hidden_dim", 4 * 768),
        longest=c.count("max_position_embeddings", 512),
        types=0,
        activation=c.choice("activation", ACTIVATIONS, "gelu"),
        epsilon=1e-12,
        dropout=c.share("dropout", 0.1),
        of_weights=c.share("attention_dropout", 0.1),
        padding=d.padding(vocabulary, 0),
    )


_OF_BERT = {
    "block": "encoder.layer.{}",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "unit_norm": "output.LayerNorm",
}
_OF_DISTILBERT = {
    "block": "transformer.layer.{}",
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "unit_norm": "output_layer_norm",
}


_Head: TypeAlias = Callable[[ModelDrawing, EncoderSettings, str, Symbol, Embedding], Symbol]


@dataclass(frozen=True)
class _Kind:
    """A family's config reader, its module names, and its head for words."""

    read: Callable[[ModelDrawing], EncoderSettings]
    base: str
    modules: Mapping[str, str]
    words: _Head


def draw(d: ModelDrawing) -> Symbol:
    """Build an encoder: ``last_hidden_state``, or ``logits`` of words."""
    kind = _KINDS[d.config.values["model_type"]]
    m = kind.read(d)
    d.most_steps = m.longest - (0 if m.counts_from is None else m.counts_from + 1)
    # A single token type needs no input.
    more = ("attention_mask", "token_type_ids") if m.types > 1 else ("attention_mask",)
    inputs = d.ids(("input_ids",), more)
    base = d.prefix(kind.base)
    table = Embedding(
        "word_embeddings", m.vocabulary, m.width, padding_index=m.padding, sparse=not d.is_bare
    )
    x = _embedded(d, m, inputs, table, f"{base}embeddings")
    mask = inputs.get("attention_mask")
    for k in range(m.depth):
        last = d.is_bare and k == m.depth - 1
        own = f"{base}{kind.modules['block'].format(k)}."
        names = {part: own + module for part, module in kind.modules.items()}
        x = _block(d, m, x, mask, f"layers/{k}", names, "last_hidden_state" if last else "")
    if d.is_bare:
        d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
        return x
    return kind.words(d, m, base, x, table)


def _embedded(
    d: ModelDrawing, m: EncoderSettings, inputs: Mapping[str, Symbol], table: Embedding, own: str
) -> Symbol:
    """Add embeddings of words, positions and token types, with normalisation."""
    ids = inputs["input_ids"]
    x = d.embedding(ids, table, f"{own}.word_embeddings")
    place = ArrayPlace(f"{own}.token_type_embeddings.weight")
    if "token_type_ids" in inputs:
        types = Embedding("token_type_embeddings", m.types, m.width, sparse=False)
        x = d.add("types_add", x, d.put(types, inputs["token_type_ids"], weight=place))
    elif m.types:
        # Without an input all steps have the first type.
        first = d.put(Weight("token_type_embeddings", (m.types, m.width)), ids, weight=place)
        x = d.add("types_add", x, first[:, 0:1])
    place = ArrayPlace(f"{own}.position_embeddings.weight")
    if m.counts_from is None:
        x = d.put(PositionEmbedding("position_embeddings", m.longest), x, weight=place)
    else:
        rows = Embedding(
            "position_embeddings",
            m.longest,
            m.width,
            padding_index=m.counts_from,
            sparse=False,
        )
        positions = Positions("positions", m.counts_from)(ids)
        x = d.add("positions_add", x, d.put(rows, positions, weight=place))
    x = d.layer_norm(x, "embeddings_norm", m.epsilon, f"{own}.LayerNorm")
    return d.dropout(x, "embeddings_drop", m.dropout)


def _block(
    d: ModelDrawing,
    m: EncoderSettings,
    x: Symbol,
    mask: Symbol | None,
    name: str,
    theirs: dict[str, str],
    called: str,
) -> Symbol:
    """Add a post-norm block: attention and two dense layers."""
    layer = MultiHeadAttention(
        f"{name}/attention",
        m.heads,
        dropout=m.of_weights,
        mask=None if mask is None else "boolean",
    )
    parts = {part: theirs[part] for part in ("query", "key", "value", "output")}
    y = d.attention(layer, [x] if mask is None else [x, mask], parts)
    y = d.dropout(y, f"{name}/attention_drop", m.dropout)
    x = d.add(f"{name}/attention_add", y, x)
    x = d.layer_norm(x, f"{name}/attention_norm", m.epsilon, theirs["attention_norm"])
    y = d.dense(x, f"{name}/up", m.hidden, theirs["up"])
    y = d.activation(y, f"{name}/act", m.activation)
    y = d.dense(y, f"{name}/down", m.width, theirs["down"])
    y = d.dropout(y, f"{name}/unit_drop", m.dropout)
    x = d.add(f"{name}/unit_add", y, x)
    return d.layer_norm(x, called or f"{name}/unit_norm", m.epsilon, theirs["unit_norm"])


# -- heads ------------------------------------------------------------------------------------


def _bert_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    """Add BERT's masked language model head."""
    own = "cls.predictions"
    y = d.dense(x, "transform", m.width, f"{own}.transform.dense")
    y = d.activation(y, "transform_act", m.activation)
    y = d.layer_norm(y, "transform_norm", m.epsilon, f"{own}.transform.LayerNorm")
    d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
    d.keep("cls.seq_relationship.weight", "cls.seq_relationship.bias")
    d.expect_words()
    return d.head(y, m.vocabulary, f"{own}.decoder.weight", table.params["weight"], f"{own}.bias")


def _roberta_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.activation(d.dense(x, "transform", m.width, "lm_head.dense"), "transform_act", "gelu")
    y = d.layer_norm(y, "transform_norm", m.epsilon, "lm_head.layer_norm")
    d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "lm_head.decoder.weight", tied, "lm_head.bias")


def _distilbert_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.dense(x, "transform", m.width, "vocab_transform")
    y = d.activation(y, "transform_act", m.activation)
    y = d.layer_norm(y, "transform_norm", 1e-12, "vocab_layer_norm")
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "vocab_projector.weight", tied, "vocab_projector.bias")


_KINDS: Mapping[str, _Kind] = {
    "bert": _Kind(_bert, "bert.", _OF_BERT, _bert_words),
    "distilbert": _Kind(_distilbert, "distilbert.", _OF_DISTILBERT, _distilbert_words),
    "roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words),
    "xlm-roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words),
}
_NAMES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}

_OLDER = ((r"\.LayerNorm\.gamma$", ".LayerNorm.weight"), (r"\.LayerNorm\.beta$", ".LayerNorm.bias"))

FAMILIES: Mapping[str, Family] = {
    kind: Family(
        draw,
        (f"{name}Model", f"{name}ForMaskedLM"),
        bare=(f"{name}Model",),
        others=_OLDER,
        idle=(r".*embeddings\.(position_ids|token_type_ids)",),
    )
    for kind, name in _NAMES.items()
}
