"""Published encoders and T5: BERT and its relatives, ViT and DeiT."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from singanet.base.arguments import is_int
from singanet.layers import (
    Average,
    ClassToken,
    Conv2D,
    Embedding,
    GatedUnit,
    Input,
    MultiHeadAttention,
    Permute,
    PositionEmbedding,
    Positions,
    RelativePositions,
    Reshape,
    RMSNorm,
    Scale,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.params.param import Param
from singanet.pretrained.config import Config
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
    """A family's config reader, its module names, and its heads for words and classes."""

    read: Callable[[ModelDrawing], EncoderSettings]
    base: str
    modules: Mapping[str, str]
    words: _Head
    classes: _Head


def draw(d: ModelDrawing) -> Symbol:
    """Build an encoder: ``last_hidden_state``, ``logits`` or ``sentence_embedding``."""
    kind = _KINDS[d.config.values["model_type"]]
    m = kind.read(d)
    d.most_steps = m.longest - (0 if m.counts_from is None else m.counts_from + 1)
    # A single token type needs no input.
    more = ("attention_mask", "token_type_ids") if m.types > 1 else ("attention_mask",)
    inputs = d.ids(("input_ids",), more)
    base = d.prefix(kind.base)
    for_words = d.architecture.endswith("ForMaskedLM")
    table = Embedding(
        "word_embeddings", m.vocabulary, m.width, padding_index=m.padding, sparse=for_words
    )
    x = _embedded(d, m, inputs, table, f"{base}embeddings")
    mask = inputs.get("attention_mask")
    for k in range(m.depth):
        last = d.is_bare and d.sentence is None and k == m.depth - 1
        own = f"{base}{kind.modules['block'].format(k)}."
        names = {part: own + module for part, module in kind.modules.items()}
        x = _block(d, m, x, mask, f"layers/{k}", names, "last_hidden_state" if last else "")
    if d.is_bare:
        d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
        return x if d.sentence is None else d.sentence.draw(x, mask)
    head = kind.words if for_words else kind.classes
    return head(d, m, base, x, table)


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


def _bert_classes(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.dense(x[:, 0], "pooler", m.width, f"{base}pooler.dense")
    y = d.dropout(d.activation(y, "pooler_act", "tanh"), "pooler_drop", d.class_dropout(m.dropout))
    return d.dense(y, "logits", d.expect_classes(), "classifier")


def _roberta_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.activation(d.dense(x, "transform", m.width, "lm_head.dense"), "transform_act", "gelu")
    y = d.layer_norm(y, "transform_norm", m.epsilon, "lm_head.layer_norm")
    d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "lm_head.decoder.weight", tied, "lm_head.bias")


def _roberta_classes(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    dropout = d.class_dropout(m.dropout)
    y = d.dropout(x[:, 0], "pooler_drop", dropout)
    y = d.activation(d.dense(y, "pooler", m.width, "classifier.dense"), "pooler_act", "tanh")
    y = d.dropout(y, "classes_drop", dropout)
    return d.dense(y, "logits", d.expect_classes(), "classifier.out_proj")


def _distilbert_words(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.dense(x, "transform", m.width, "vocab_transform")
    y = d.activation(y, "transform_act", m.activation)
    y = d.layer_norm(y, "transform_norm", 1e-12, "vocab_layer_norm")
    d.expect_words()
    tied = table.params["weight"]
    return d.head(y, m.vocabulary, "vocab_projector.weight", tied, "vocab_projector.bias")


def _distilbert_classes(
    d: ModelDrawing, m: EncoderSettings, base: str, x: Symbol, table: Embedding
) -> Symbol:
    y = d.activation(d.dense(x[:, 0], "pooler", m.width, "pre_classifier"), "pooler_act", "relu")
    y = d.dropout(y, "pooler_drop", d.config.share("seq_classif_dropout", 0.2))
    return d.dense(y, "logits", d.expect_classes(), "classifier")


_KINDS: Mapping[str, _Kind] = {
    "bert": _Kind(_bert, "bert.", _OF_BERT, _bert_words, _bert_classes),
    "distilbert": _Kind(
        _distilbert, "distilbert.", _OF_DISTILBERT, _distilbert_words, _distilbert_classes
    ),
    "roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words, _roberta_classes),
    "xlm-roberta": _Kind(_roberta, "roberta.", _OF_BERT, _roberta_words, _roberta_classes),
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
        (f"{name}Model", f"{name}ForMaskedLM", f"{name}ForSequenceClassification"),
        bare=(f"{name}Model",),
        others=_OLDER,
        idle=(r".*embeddings\.(position_ids|token_type_ids)",),
    )
    for kind, name in _NAMES.items()
}


def draw_vit(d: ModelDrawing) -> Symbol:
    """Build a ViT or DeiT over ``pixel_values``: ``last_hidden_state``, or ``logits``."""
    c = d.config
    kind = c.values["model_type"]
    width, heads = c.count("hidden_size", 768), c.count("num_attention_heads", 12)
    hidden = c.count("intermediate_size", 3072)
    mode, epsilon = c.choice("hidden_act", ACTIVATIONS, "gelu"), c.number("layer_norm_eps", 1e-12)
    dropout = c.share("hidden_dropout_prob")
    of_weights = c.share("attention_probs_dropout_prob")
    c.only(qkv_bias=True)
    c.skip("pooler_act", "pooler_output_size")
    base = d.prefix(f"{kind}.")
    x = _patches(d, width, f"{base}embeddings")
    x = d.dropout(x, "embeddings_drop", dropout)
    for k in range(c.blocks("num_hidden_layers", 12)):
        name, own = f"layers/{k}", f"{base}encoder.layer.{k}"
        y = d.layer_norm(x, f"{name}/attention_norm", epsilon, f"{own}.layernorm_before")
        attention = MultiHeadAttention(f"{name}/attention", heads, dropout=of_weights)
        parts = {each: f"{own}.attention.attention.{each}" for each in ("query", "key", "value")}
        y = d.attention(attention, [y], {**parts, "output": f"{own}.attention.output.dense"})
        y = d.dropout(y, f"{name}/attention_drop", dropout)
        x = d.add(f"{name}/attention_add", y, x)
        y = d.layer_norm(x, f"{name}/unit_norm", epsilon, f"{own}.layernorm_after")
        y = d.dense(y, f"{name}/up", hidden, f"{own}.intermediate.dense")
        y = d.activation(y, f"{name}/act", mode)
        y = d.dense(y, f"{name}/down", width, f"{own}.output.dense")
        y = d.dropout(y, f"{name}/unit_drop", dropout)
        x = d.add(f"{name}/unit_add", y, x)
    x = d.layer_norm(x, "last_hidden_state" if d.is_bare else "norm", epsilon, f"{base}layernorm")
    d.keep(f"{base}embeddings.mask_token")
    return _head(d, x, base)


def _patches(d: ModelDrawing, width: int, own: str) -> Symbol:
    """Add the patch embedding, the class tokens and the positions."""
    c = d.config
    (high, wide), (rows, columns) = _sides(c, "image_size", 224), _sides(c, "patch_size", 16)
    image = Input("pixel_values", (c.count("num_channels", 3), high, wide))
    d.inputs = [image]
    projection = f"{own}.patch_embeddings.projection"
    weight = ArrayPlace(f"{projection}.weight", shape=(width, image.shape[0], rows, columns))
    bias = ArrayPlace(f"{projection}.bias")
    patches = Conv2D("patches", width, (rows, columns), (rows, columns), "valid")
    x = d.put(patches, image, weight=weight, bias=bias)
    x = Reshape("sequence", (width, x.shape[1] * x.shape[2]))(x)
    x = Permute("steps", (2, 1))(x)
    if c.values["model_type"] == "deit":
        x = _token(d, x, "distillation_token", own)
    x = _token(d, x, "cls_token", own)
    place = ArrayPlace(f"{own}.position_embeddings", shape=(1, *x.shape))
    return d.put(PositionEmbedding("position_embeddings"), x, weight=place)


def _token(d: ModelDrawing, x: Symbol, name: str, own: str) -> Symbol:
    return d.put(ClassToken(name), x, weight=ArrayPlace(f"{own}.{name}", shape=(1, 1, x.shape[1])))


def _head(d: ModelDrawing, x: Symbol, base: str) -> Symbol:
    if d.is_bare:
        d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
        return x
    classes = d.expect_classes()
    if not d.architecture.endswith("WithTeacher"):
        return d.dense(x[:, 0], "logits", classes, "classifier")
    both = [
        d.dense(x[:, k], f"{name}_logits", classes, f"{name}_classifier")
        for k, name in enumerate(("cls", "distillation"))
    ]
    y: Symbol = Average("logits")(*both)
    return y


def _sides(c: Config, key: str, default: int) -> tuple[int, int]:
    """Return height and width; one number sets both."""
    value: Any = c.take(key, default)
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(is_int(side) and side < 1 << 20 for side in sides):
        raise c.refused(key, "an integer number of pixels, or [height, width]", value)
    return sides[0], sides[1]


_PARTS = {"q": "query", "k": "key", "v": "value"}


def _part(found: re.Match[str]) -> str:
    return f".attention.attention.{_PARTS[found[1]]}."


_NEWER = (
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    (r"\.attention\.([qkv])_proj\.", _part),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


VIT: Mapping[str, Family] = {
    "vit": Family(
        draw_vit, ("ViTModel", "ViTForImageClassification"), bare=("ViTModel",), others=_NEWER
    ),
    "deit": Family(
        draw_vit,
        ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        bare=("DeiTModel",),
        others=_NEWER,
    ),
}


_ENCODER = "T5EncoderModel"


@dataclass(kw_only=True)
class T5Settings:
    """The sizes of both stacks of a T5."""

    vocabulary: int
    width: int
    depth: int
    decoder_depth: int
    heads: int
    head_size: int
    hidden: int
    buckets: int
    max_distance: int
    activation: str
    gated: bool
    epsilon: float
    dropout: float


def _read(c: Config) -> T5Settings:
    how = c.take("feed_forward_proj", "relu")
    gate, _, function = how.rpartition("-") if isinstance(how, str) else ("", "", "")
    function = "gelu_new" if how == "gated-gelu" else function
    if gate not in ("", "gated") or function not in ACTIVATIONS:
        raise c.refused("feed_forward_proj", "a function such as 'relu', or 'gated-gelu'", how)
    # Derived keys that transformers writes.
    c.only(is_gated_act=gate == "gated", dense_act_fn=function, is_decoder=False)
    c.skip("is_encoder_decoder", "n_positions")
    depth = c.blocks("num_layers", 6)
    return T5Settings(
        vocabulary=c.count("vocab_size", 32128),
        width=c.count("d_model", 512),
        depth=depth,
        decoder_depth=c.blocks("num_decoder_layers", depth),
        heads=c.count("num_heads", 8),
        head_size=c.count("d_kv", 64),
        hidden=c.count("d_ff", 2048),
        buckets=c.count("relative_attention_num_buckets", 32),
        max_distance=c.count("relative_attention_max_distance", 128),
        activation=ACTIVATIONS[function],
        gated=gate == "gated",
        epsilon=c.number("layer_norm_epsilon", 1e-6),
        dropout=c.share("dropout_rate", 0.1),
    )


def draw_t5(d: ModelDrawing) -> Symbol:
    """Build a T5: ``logits`` at the steps of ``decoder_input_ids``, or ``last_hidden_state``."""
    c = d.config
    m = _read(c)
    tied = c.flag("tie_word_embeddings", True)
    scaled = c.flag("scale_decoder_outputs", tied)
    alone = d.architecture == _ENCODER
    words = ("input_ids",) if alone else ("input_ids", "decoder_input_ids")
    inputs = d.ids(words, ("attention_mask",), () if alone else ("decoder_attention_mask",))
    apart = not tied and (d.names is None or "lm_head.weight" in d.names)
    headed = not (apart or alone or d.is_bare)
    table = Embedding("shared", m.vocabulary, m.width, sparse=headed)
    x = d.embedding(inputs["input_ids"], table, "shared")
    d.copies(table.params["weight"], "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    mask = inputs.get("attention_mask")
    x = _Stack(d, m, "encoder", m.depth).draw(x, mask, "last_hidden_state" if alone else "")
    if alone:
        return x
    y = d.embedding(inputs["decoder_input_ids"], table, "shared")
    stack = _Stack(d, m, "decoder", m.decoder_depth, x, mask)
    y = stack.draw(
        y, inputs.get("decoder_attention_mask"), "last_hidden_state" if d.is_bare else ""
    )
    if d.is_bare:
        return y
    if scaled:
        y = Scale("logits_scale", m.width**-0.5)(y)
    d.expect_words()
    return d.head(y, m.vocabulary, "lm_head.weight", table.params["weight"] if headed else None)


class _Stack:
    """The encoder, or the decoder with cross-attention to ``encoded``."""

    def __init__(
        self,
        d: ModelDrawing,
        m: T5Settings,
        name: str,
        depth: int,
        encoded: Symbol | None = None,
        encoded_mask: Symbol | None = None,
    ) -> None:
        self.d, self.m, self.name, self.depth = d, m, name, depth
        self.encoded, self.encoded_mask = encoded, encoded_mask
        self.positions: Param | None = None

    def draw(self, x: Symbol, mask: Symbol | None, called: str) -> Symbol:
        """Add the stack to embedded words; ``called`` is the name of its output."""
        d, m = self.d, self.m
        x = d.dropout(x, f"{self.name}/drop", m.dropout)
        for k in range(self.depth):
            name, own = f"{self.name}/{k}", f"{self.name}.block.{k}.layer"
            x = self._attention(x, None, mask, f"{name}/attention", f"{own}.0")
            if self.encoded is not None:
                cross = f"{name}/cross_attention"
                x = self._attention(x, self.encoded, self.encoded_mask, cross, f"{own}.1")
            x = self._unit(x, f"{name}/unit", f"{own}.{1 if self.encoded is None else 2}")
        norm = f"{self.name}.final_layer_norm"
        last = m.dropout == 0.0
        x = self._norm(x, called if called and last else f"{self.name}/norm", norm)
        return d.dropout(x, called or f"{self.name}/norm_drop", m.dropout)

    def _attention(
        self, x: Symbol, encoded: Symbol | None, mask: Symbol | None, name: str, theirs: str
    ) -> Symbol:
        d, m = self.d, self.m
        decodes = self.encoded is not None
        own = encoded is None
        relative = RelativePositions(m.buckets, m.max_distance, not decodes) if own else None
        layer = MultiHeadAttention(
            name,
            m.heads,
            m.head_size,
            dropout=m.dropout,
            use_bias=False,
            causal=own and decodes,
            mask=None if mask is None else "boolean",
            scale=1.0,
            relative=relative,
            relative_specs=self.positions if own else None,
            output_dim=m.width,
        )
        y = self._norm(x, f"{name}_norm", f"{theirs}.layer_norm")
        place = f"{theirs}.{'SelfAttention' if own else 'EncDecAttention'}"
        places = {
            f"{part}_weight": ArrayPlace(f"{place}.{part[0]}.weight", True)
            for part in ("query", "key", "value", "output")
        }
        places["relative_weight"] = ArrayPlace(f"{place}.relative_attention_bias.weight")
        given = [each for each in (y, encoded, mask) if each is not None]
        y = d.put(layer, given if len(given) > 1 else y, **places)
        if own:
            # All blocks of a stack share the relative positions of the first.
            self.positions = layer.params["relative_weight"]
        return d.add(f"{name}_add", x, d.dropout(y, f"{name}_drop", m.dropout))

    def _unit(self, x: Symbol, name: str, theirs: str) -> Symbol:
        d, m, own = self.d, self.m, f"{theirs}.DenseReluDense"
        y = self._norm(x, f"{name}_norm", f"{theirs}.layer_norm")
        if m.gated:
            gate, up = (ArrayPlace(f"{own}.wi_{k}.weight", True) for k in (0, 1))
            unit = GatedUnit(name, m.hidden, mode=m.activation)
            y = d.put(unit, y, gate_weight=gate, up_weight=up)
        else:
            y = d.dense(y, name, m.hidden, f"{own}.wi", bias=False)
            y = d.activation(y, f"{name}_act", m.activation)
        y = d.dropout(y, f"{name}_inner_drop", m.dropout)
        y = d.dense(y, f"{name}_down", m.width, f"{own}.wo", bias=False)
        return d.add(f"{name}_add", x, d.dropout(y, f"{name}_drop", m.dropout))

    def _norm(self, x: Symbol, name: str, theirs: str) -> Symbol:
        layer = RMSNorm(name, epsilon=self.m.epsilon)
        return self.d.put(layer, x, gamma=ArrayPlace(f"{theirs}.weight"))


T5: Mapping[str, Family] = {
    "t5": Family(
        draw_t5,
        ("T5ForConditionalGeneration", "T5Model", _ENCODER),
        bare=("T5Model", _ENCODER),
        idle=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )
}
