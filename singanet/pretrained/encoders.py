"""Published encoders: BERT and its relatives, up to ALBERT, ELECTRA and MPNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from singanet.layers import (
    Embedding,
    Index,
    MultiHeadAttention,
    PositionEmbedding,
    Positions,
    RelativePositions,
    Scale,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SigmoidCrossEntropy
from singanet.metric import BinaryAccuracy
from singanet.params.param import Param
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing


@dataclass(kw_only=True)
class EncoderSettings:
    """The sizes of a BERT-like model.

    ``longest`` is the number of rows of the position embedding. With ``counts_from`` positions
    start after this index and skip padding. ``embedded`` is the size of embeddings that a layer
    projects to ``width``, 0 without it, and ``of_units`` the dropout behind a block's unit.
    ``groups`` of ``inner`` blocks share their arrays (ALBERT), 0 for none. ``relative``: all blocks
    share a bias of distances, and ``distances`` is its parameter behind the first block.
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
    embedded: int = 0
    of_units: float | None = None
    groups: int = 0
    inner: int = 1
    relative: bool = False
    distances: Param | None = None


_USUAL: Mapping[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip


def _bert(d: ModelDrawing, padding: int = 0, **others: Any) -> EncoderSettings:
    """Return the settings; ``others`` are the family's defaults that are not BERT's."""
    c, usual = d.config, {**_USUAL, **others}
    c.only(add_cross_attention=False, is_decoder=False, position_embedding_type="absolute")
    c.only(tie_word_embeddings=True)
    c.skip("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_type")
    c.skip("pooler_num_fc_layers", "pooler_size_per_head")
    vocabulary = c.count("vocab_size", usual["vocab_size"])
    return EncoderSettings(
        vocabulary=vocabulary,
        width=c.count("hidden_size", usual["hidden_size"]),
        depth=c.blocks("num_hidden_layers", 12),
        heads=c.count("num_attention_heads", usual["num_attention_heads"]),
        hidden=c.count("intermediate_size", usual["intermediate_size"]),
        longest=c.count("max_position_embeddings", 512),
        types=c.count("type_vocab_size", 2),
        activation=c.choice("hidden_act", ACTIVATIONS, usual["hidden_act"]),
        epsilon=c.number("layer_norm_eps", 1e-12),
        dropout=c.share("hidden_dropout_prob", usual["hidden_dropout_prob"]),
        of_weights=c.share("attention_probs_dropout_prob", usual["attention_probs_dropout_prob"]),
        padding=d.padding(vocabulary, padding),
    )


def _roberta(d: ModelDrawing, **others: Any) -> EncoderSettings:
    """Return BERT's settings, with positions that start after the padding id and skip padding."""
    made = _bert(d, padding=1, **others)
    if made.padding is None or made.longest <= made.padding + 1:
        raise d.config.refused("pad_token_id", "an id, after which positions start", made.padding)
    made.counts_from = made.padding
    return made


def _electra(d: ModelDrawing) -> EncoderSettings:
    made = _bert(d, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    d.config.skip("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
    embedded = d.config.count("embedding_size", 128)
    made.embedded = 0 if embedded == made.width else embedded
    return made


def _albert(d: ModelDrawing) -> EncoderSettings:
    c = d.config
    usual: dict[str, Any] = {
        "vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64,
        "intermediate_size": 16384, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    made = _bert(d, **usual)
    c.skip("classifier_dropout_prob", "net_structure_type", "num_memory_blocks", "gap_size")
    c.skip("down_scale_factor", "layers_to_keep")
    made.embedded, made.of_units = c.count("embedding_size", 128), 0.0
    made.groups = c.count("num_hidden_groups", 1, most=made.depth)
    made.inner = c.blocks("inner_group_num", 1)
    return made


def _mpnet(d: ModelDrawing) -> EncoderSettings:
    # Other ids of padding and numbers of distances are ignored in transformers.
    d.config.only(pad_token_id=1, relative_attention_num_buckets=32)
    made = _roberta(d, vocab_size=30527)
    made.types, made.relative = 0, True
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
_OF_ALBERT = {
    "block": "encoder.albert_layer_groups.{}.albert_layers.{}",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "up": "ffn",
    "down": "ffn_output",
    "unit_norm": "full_layer_layer_norm",
}
_OF_MPNET = _OF_BERT | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
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
    """A family's config reader, its module names, and its head for words.

    ``projection`` is the module behind embeddings of another size, ``pooler`` the one that models
    without a head have unused.
    """

    read: Callable[[ModelDrawing], EncoderSettings]
    base: str
    modules: Mapping[str, str]
    words: _Head
    projection: str = ""
    pooler: str = "pooler.dense"


def draw(d: ModelDrawing) -> Symbol:
    """Build an encoder: ``last_hidden_state``, or ``logits`` of words."""
    kind = _KINDS[d.config.values["model_type"]]
    m = kind.read(d)
    d.most_steps = m.longest - (0 if m.counts_from is None else m.counts_from + 1)
    # A single token type needs no input.
    more = ("attention_mask", "token_type_ids") if m.types > 1 else ("attention_mask",)
    inputs = d.ids(("input_ids",), more)
    base = d.prefix(kind.base)
    size = m.embedded or m.width
    table = Embedding(
        "word_embeddings", m.vocabulary, size, padding_index=m.padding, sparse=not d.is_bare
    )
    x = _embedded(d, m, inputs, table, f"{base}embeddings")
    if m.embedded:
        x = d.dense(x, "embeddings_projection", m.width, f"{base}{kind.projection}")
    mask = inputs.get("attention_mask")
    blocks = _blocks(m, kind.modules["block"])
    d.repeats = m.groups > 0
    for k, (name, own) in enumerate(blocks):
        names = {part: f"{base}{own}.{module}" for part, module in kind.modules.items()}
        names["relative"] = f"{base}encoder.relative_attention_bias.weight"
        last = d.is_bare and not m.groups and k == len(blocks) - 1
        x = _block(d, m, x, mask, name, names, "last_hidden_state" if last else "")
    d.repeats = False
    if m.groups and d.is_bare:
        x = Scale("last_hidden_state", 1.0)(x)
    d.keep(f"{base}{kind.pooler}.weight", f"{base}{kind.pooler}.bias")
    return x if d.is_bare else kind.words(d, m, base, x, table)


def _blocks(m: EncoderSettings, module: str) -> list[tuple[str, str]]:
    """Return the blocks in order, each with its name here and in the files."""
    if not m.groups:
        return [(f"layers/{k}", module.format(k)) for k in range(m.depth)]
    found = []
    for k in range(m.depth):
        group = int(k / (m.depth / m.groups))
        found += [(f"groups/{group}/{n}", module.format(group, n)) for n in range(m.inner)]
    return found


def _embedded(
    d: ModelDrawing, m: EncoderSettings, inputs: Mapping[str, Symbol], table: Embedding, own: str
) -> Symbol:
    """Add embeddings of words, positions and token types, with normalisation."""
    ids = inputs["input_ids"]
    x = d.embedding(ids, table, f"{own}.word_embeddings")
    place = ArrayPlace(f"{own}.token_type_embeddings.weight")
    if "token_type_ids" in inputs:
        types = Embedding("token_type_embeddings", m.types, table.output_dim, sparse=False)
        x = d.add("types_add", x, d.put(types, inputs["token_type_ids"], weight=place))
    elif m.types:
        # Without an input all steps have the first type.
        layer = Weight("token_type_embeddings", (m.types, table.output_dim))
        first = d.put(layer, ids, weight=place)
        x = d.add("types_add", x, first[:, 0:1])
    place = ArrayPlace(f"{own}.position_embeddings.weight")
    if m.counts_from is None:
        x = d.put(PositionEmbedding("position_embeddings", m.longest), x, weight=place)
    else:
        rows = Embedding(
            "position_embeddings",
            m.longest,
            table.output_dim,
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
        relative=RelativePositions() if m.relative else None,
        relative_specs=m.distances,
    )
    parts = {part: theirs[part] for part in ("query", "key", "value", "output")}
    more = {"relative_weight": ArrayPlace(theirs["relative"])}
    y = d.attention(layer, [x] if mask is None else [x, mask], parts, **more)
    m.distances = layer.params.get("relative_weight")
    y = d.dropout(y, f"{name}/attention_drop", m.dropout)
    x = d.add(f"{name}/attention_add", y, x)
    x = d.layer_norm(x, f"{name}/attention_norm", m.epsilon, theirs["attention_norm"])
    y = d.dense(x, f"{name}/up", m.hidden, theirs["up"])
    y = d.activation(y, f"{name}/act", m.activation)
    y = d.dense(y, f"{name}/down", m.width, theirs["down"])
    y = d.dropout(y, f"{name}/unit_drop", m.dropout if m.of_units is None else m.of_units)
    x = d.add(f"{name}/unit_add", y, x)
    return d.layer_norm(x, called or f"{name}/unit_norm", m.epsilon, theirs["unit_norm"])


# -- heads ------------------------------------------------------------------------------------


def draw_bert_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    """Add BERT's masked language model head."""
    own = "cls.predictions"
    y = d.dense(x, "transform", m.width, f"{own}.transform.dense")
    y = d.activation(y, "transform_act", m.activation)
    y = d.layer_norm(y, "transform_norm", m.epsilon, f"{own}.transform.LayerNorm")
    d.keep("cls.seq_relationship.weight", "cls.seq_relationship.bias")
    d.expect_words()
    return d.head(y, m.vocabulary, f"{own}.decoder.weight", table.params["weight"], f"{own}.bias")


def _roberta_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.activation(d.dense(x, "transform", m.width, "lm_head.dense"), "transform_act", "gelu")
    y = d.layer_norm(y, "transform_norm", m.epsilon, "lm_head.layer_norm")
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


def _electra_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    """Add ELECTRA's head of its generator, or of the discriminator that tells words apart."""
    if d.architecture == "ElectraForPreTraining":
        own = "discriminator_predictions"
        y = d.dense(x, "transform", m.width, f"{own}.dense")
        y = d.dense(
            d.activation(y, "transform_act", m.activation), "scores", 1, f"{own}.dense_prediction"
        )
        d.loss, d.metric = SigmoidCrossEntropy(), BinaryAccuracy()
        return Index("logits", [(None, None, None), 0])(y)
    own = "generator_predictions"
    y = d.dense(x, "transform", table.output_dim, f"{own}.dense")
    y = d.layer_norm(
        d.activation(y, "transform_act", "gelu"), "transform_norm", m.epsilon, f"{own}.LayerNorm"
    )
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "generator_lm_head.weight", tied, "generator_lm_head.bias")


def _albert_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.dense(x, "transform", table.output_dim, "predictions.dense")
    y = d.activation(y, "transform_act", m.activation)
    y = d.layer_norm(y, "transform_norm", m.epsilon, "predictions.LayerNorm")
    d.keep("sop_classifier.classifier.weight", "sop_classifier.classifier.bias")
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "predictions.decoder.weight", tied, "predictions.bias")


_KINDS: Mapping[str, _Kind] = {
    "albert": _Kind(
        _albert,
        "albert.",
        _OF_ALBERT,
        _albert_words,
        "encoder.embedding_hidden_mapping_in",
        "pooler",
    ),
    "bert": _Kind(_bert, "bert.", _OF_BERT, draw_bert_words),
    "camembert": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words),
    "distilbert": _Kind(_distilbert, "distilbert.", _OF_DISTILBERT, _distilbert_words),
    "electra": _Kind(_electra, "electra.", _OF_BERT, _electra_words, "embeddings_project"),
    "mpnet": _Kind(_mpnet, "mpnet.", _OF_MPNET, _roberta_words),
    "roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words),
    "xlm-roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words),
}
_NAMES = {
    "albert": "Albert",
    "bert": "Bert",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}

_MORE = {"Electra": ("ElectraForPreTraining",)}
"""Further classes of transformers that the family draws."""

_OLDER = ((r"\.LayerNorm\.gamma$", ".LayerNorm.weight"), (r"\.LayerNorm\.beta$", ".LayerNorm.bias"))

FAMILIES: Mapping[str, Family] = {
    kind: Family(
        draw,
        (f"{name}Model", f"{name}ForMaskedLM", *_MORE.get(name, ())),
        bare=(f"{name}Model",),
        others=_OLDER,
        idle=(r".*embeddings\.(position_ids|token_type_ids)",),
    )
    for kind, name in _NAMES.items()
}
