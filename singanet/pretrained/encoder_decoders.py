"""Published encoder-decoders: T5 and mT5, BART and its relatives, and Whisper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from singanet.layers import (
    Conv1D,
    Embedding,
    GatedUnit,
    Input,
    MultiHeadAttention,
    Permute,
    PositionEmbedding,
    RelativePositions,
    RMSNorm,
    Scale,
    SinusoidalPosition,
)
from singanet.layers.symbol import Symbol
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing

_ENCODERS = ("T5EncoderModel", "MT5EncoderModel")


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
    newer = c.values["model_type"] == "mt5"
    how = c.take("feed_forward_proj", "gated-gelu" if newer else "relu")
    gate, _, function = how.rpartition("-") if isinstance(how, str) else ("", "", "")
    function = "gelu_new" if how == "gated-gelu" else function
    if gate not in ("", "gated") or function not in ACTIVATIONS:
        raise c.refused("feed_forward_proj", "a function such as 'relu', or 'gated-gelu'", how)
    # Derived keys that transformers writes.
    c.only(is_gated_act=gate == "gated", dense_act_fn=function, is_decoder=False)
    c.skip("is_encoder_decoder", "n_positions")
    depth = c.blocks("num_layers", 8 if newer else 6)
    return T5Settings(
        vocabulary=c.count("vocab_size", 250112 if newer else 32128),
        width=c.count("d_model", 512),
        depth=depth,
        decoder_depth=c.blocks("num_decoder_layers", depth),
        heads=c.count("num_heads", 6 if newer else 8),
        head_size=c.count("d_kv", 64),
        hidden=c.count("d_ff", 1024 if newer else 2048),
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
    if c.values["model_type"] == "mt5":
        scaled = False
    else:
        scaled = c.flag("scale_decoder_outputs", tied)
    alone = d.architecture in _ENCODERS
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


_IDLE = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)


@dataclass(kw_only=True)
class BartSettings:
    """The sizes of both stacks of a BART.

    ``first``: norms precede attention and units, and each stack ends in one (mBART). Positions
    start at the row ``row`` of their tables. With ``sines`` they are not trained, and computed
    unless the files have them. ``embedding_norm`` is whether one follows embeddings, ``key_bias``
    whether keys have a bias.
    """

    vocabulary: int
    width: int
    depth: tuple[int, int]
    heads: tuple[int, int]
    hidden: tuple[int, int]
    longest: tuple[int, int]
    activation: str
    first: bool
    dropout: float
    of_weights: float
    of_units: float
    padding: int | None
    scale: float = 1.0
    row: int = 2
    sines: bool = False
    embedding_norm: bool = True
    key_bias: bool = True


def _read_bart(d: ModelDrawing) -> BartSettings:
    c, kind = d.config, d.config.values["model_type"]
    first, sines = kind in ("mbart", "pegasus"), kind in ("marian", "pegasus")
    c.only(add_bias_logits=False, add_final_layer_norm=first, normalize_before=first)
    c.only(normalize_embedding=not sines, static_position_embeddings=sines)
    c.only(share_encoder_decoder_embeddings=True)
    if sines:
        c.skip("extra_pos_embeddings", "decoder_vocab_size")  # unused in transformers
    else:
        c.only(extra_pos_embeddings=2)
    longest = c.count("max_position_embeddings", 1024)
    c.skip("classif_dropout")
    # The arguments of net.generate.
    c.skip("early_stopping", "num_beams", "no_repeat_ngram_size", "min_length", "length_penalty")
    c.skip("bad_words_ids")
    words, padding = {"marian": (58101, 58100), "pegasus": (50265, 0)}.get(kind, (50265, 1))
    made = _stacks(d, words, 1024, 12, 16, 4096, 0.1, (longest, longest), padding)
    made.first, made.sines, made.embedding_norm = first, sines, not sines
    made.row = 0 if sines else 2
    made.scale = made.width**0.5 if c.flag("scale_embedding", False) else 1.0
    return made


def _read_whisper(d: ModelDrawing) -> BartSettings:
    c = d.config
    c.only(scale_embedding=False, apply_spec_augment=False, use_weighted_layer_sum=False)
    c.skip("mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob")
    c.skip("mask_feature_length", "mask_feature_min_masks", "median_filter_width")
    c.skip("classifier_proj_size", "suppress_tokens", "begin_suppress_tokens")
    c.skip("forced_decoder_ids", "num_beams")
    longest = c.count("max_source_positions", 1500), c.count("max_target_positions", 448)
    made = _stacks(d, 51865, 384, 4, 6, 1536, 0.0, longest, padding=50256)
    made.first, made.row, made.embedding_norm, made.key_bias = True, 0, False, False
    return made


def _stacks(
    d: ModelDrawing,
    words: int,
    width: int,
    depth: int,
    heads: int,
    hidden: int,
    dropout: float,
    longest: tuple[int, int],
    padding: int = 1,
) -> BartSettings:
    """Return the settings of both stacks, with the family's defaults."""
    c = d.config
    c.only(is_decoder=False)
    for part in ("encoder", "decoder"):
        left_out = c.share(f"{part}_layerdrop")
        if left_out:
            raise c.refused(f"{part}_layerdrop", "0, as no layer is left out", left_out)
    # The ids are read by net.generate.
    c.skip("forced_bos_token_id", "forced_eos_token_id", "force_bos_token_to_be_generated")
    c.skip("is_encoder_decoder", "init_std", "num_hidden_layers")
    vocabulary = c.count("vocab_size", words)
    return BartSettings(
        vocabulary=vocabulary,
        width=c.count("d_model", width),
        depth=(c.blocks("encoder_layers", depth), c.blocks("decoder_layers", depth)),
        heads=(
            c.count("encoder_attention_heads", heads),
            c.count("decoder_attention_heads", heads),
        ),
        hidden=(c.count("encoder_ffn_dim", hidden), c.count("decoder_ffn_dim", hidden)),
        longest=longest,
        activation=c.choice("activation_function", ACTIVATIONS, "gelu"),
        first=False,
        dropout=c.share("dropout", dropout),
        of_weights=c.share("attention_dropout"),
        of_units=c.share("activation_dropout"),
        padding=d.padding(vocabulary, padding),
    )


def draw_bart(d: ModelDrawing) -> Symbol:
    """Build a BART: ``logits`` at the steps of ``decoder_input_ids``, or ``last_hidden_state``."""
    m = _read_bart(d)
    tied = d.config.flag("tie_word_embeddings", True)
    d.most_steps = m.longest[1]
    words = ("input_ids", "decoder_input_ids")
    inputs = d.ids(words, ("attention_mask",), ("decoder_attention_mask",))
    base = d.prefix("model.")
    headed = not d.is_bare and (tied or (d.names is not None and "lm_head.weight" not in d.names))
    table = Embedding("shared", m.vocabulary, m.width, padding_index=m.padding, sparse=headed)
    x = d.embedding(inputs["input_ids"], table, f"{base}shared")
    copies = (f"{base}{part}.embed_tokens.weight" for part in ("encoder", "decoder"))
    d.copies(table.params["weight"], *copies)
    mask = inputs.get("attention_mask")
    x = _BartStack(d, m, base, 0).draw(x, mask, "")
    y = d.embedding(inputs["decoder_input_ids"], table, f"{base}shared")
    own = inputs.get("decoder_attention_mask")
    y = _BartStack(d, m, base, 1, x, mask).draw(y, own, "last_hidden_state" if d.is_bare else "")
    if d.is_bare:
        return y
    d.expect_words()
    bias = "final_logits_bias"
    there = d.names is None or bias in d.names
    place = ArrayPlace(bias, shape=(1, m.vocabulary)) if there else ""
    matrix = table.params["weight"] if headed else None
    return d.head(y, m.vocabulary, "lm_head.weight", matrix, place)


def draw_whisper(d: ModelDrawing) -> Symbol:
    """Build a Whisper: ``logits`` at the steps of ``decoder_input_ids``, or the hidden states.

    ``input_features`` (bins, frames) are log-mel spectra of 30 seconds.
    """
    c = d.config
    m, tied = _read_whisper(d), d.config.flag("tie_word_embeddings", True)
    d.most_steps = m.longest[1]
    wanted = d.wanted
    d.wanted = None if wanted is None else [name for name in wanted if name != "input_features"]
    inputs = d.ids(("decoder_input_ids",), (), ("decoder_attention_mask",))
    base, bins = d.prefix("model."), c.count("num_mel_bins", 80)
    x: Symbol = Input("input_features", (bins, 2 * m.longest[0]))
    d.inputs = [x, *d.inputs]
    for k, channels in ((1, bins), (2, m.width)):
        own = f"{base}encoder.conv{k}"
        weight = ArrayPlace(f"{own}.weight", shape=(m.width, channels, 3))
        conv = Conv1D(f"encoder/conv{k}", m.width, 3, k, 1)
        x = d.put(conv, x, weight=weight, bias=ArrayPlace(f"{own}.bias"))
        x = d.activation(x, f"encoder/conv{k}_act", "gelu")
    x = _BartStack(d, m, base, 0).draw(Permute("encoder/steps", (2, 1))(x), None, "")
    # The encoder's positions are sines, which are not trained.
    d.places["encoder/positions/weight"][0].trainable = False
    headed = not d.is_bare and (tied or (d.names is not None and "proj_out.weight" not in d.names))
    table = Embedding("embed_tokens", m.vocabulary, m.width, padding_index=m.padding, sparse=headed)
    y = d.embedding(inputs["decoder_input_ids"], table, f"{base}decoder.embed_tokens")
    own_mask = inputs.get("decoder_attention_mask")
    name = "last_hidden_state" if d.is_bare else ""
    y = _BartStack(d, m, base, 1, x).draw(y, own_mask, name)
    if d.is_bare:
        return y
    d.expect_words()
    matrix = table.params["weight"] if headed else None
    return d.head(y, m.vocabulary, "proj_out.weight", matrix)


class _BartStack:
    """BART's encoder (``k`` 0), or its decoder (1) with cross-attention to ``encoded``."""

    def __init__(
        self,
        d: ModelDrawing,
        m: BartSettings,
        base: str,
        k: int,
        encoded: Symbol | None = None,
        encoded_mask: Symbol | None = None,
    ) -> None:
        self.d, self.m, self.k = d, m, k
        self.name = ("encoder", "decoder")[k]
        self.base = f"{base}{self.name}"
        self.encoded, self.encoded_mask = encoded, encoded_mask

    def draw(self, x: Symbol, mask: Symbol | None, called: str) -> Symbol:
        """Add the stack to embedded words; ``called`` is the name of its output."""
        d, m = self.d, self.m
        if m.scale != 1.0:
            x = Scale(f"{self.name}/scale", m.scale)(x)
        place = ArrayPlace(f"{self.base}.embed_positions.weight")
        name = f"{self.name}/positions"
        if m.sines and place.name not in (d.names or ()):
            x = SinusoidalPosition(name, halves=True)(x)
        else:
            positions = PositionEmbedding(name, m.longest[self.k], first=m.row)
            x = d.put(positions, x, weight=place)
            positions.params["weight"].trainable = not m.sines
        if m.embedding_norm:
            own = f"{self.base}.layernorm_embedding"
            x = d.layer_norm(x, f"{self.name}/embedding_norm", 1e-5, own)
        x = d.dropout(x, f"{self.name}/drop", m.dropout)
        for n in range(m.depth[self.k]):
            name, own = f"{self.name}/{n}", f"{self.base}.layers.{n}"
            last = called if n == m.depth[self.k] - 1 and not m.first else ""
            x = self._attention(x, None, mask, f"{name}/attention", f"{own}.self_attn")
            if self.encoded is not None:
                cross, at = f"{name}/cross_attention", f"{own}.encoder_attn"
                x = self._attention(x, self.encoded, self.encoded_mask, cross, at)
            x = self._unit(x, f"{name}/unit", own, last)
        if not m.first:
            return x
        return d.layer_norm(x, called or f"{self.name}/norm", 1e-5, f"{self.base}.layer_norm")

    def _attention(
        self, x: Symbol, encoded: Symbol | None, mask: Symbol | None, name: str, theirs: str
    ) -> Symbol:
        d, m = self.d, self.m
        layer = MultiHeadAttention(
            name,
            m.heads[self.k],
            dropout=m.of_weights,
            use_bias=True if m.key_bias else ("query", "value", "output"),
            causal=encoded is None and self.encoded is not None,
            mask=None if mask is None else "boolean",
        )
        modules = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
        parts = {part: f"{theirs}.{module}" for part, module in modules.items()}
        y = self._norm(x, name, f"{theirs}_layer_norm") if m.first else x
        y = d.attention(layer, [each for each in (y, encoded, mask) if each is not None], parts)
        y = d.add(f"{name}_add", x, d.dropout(y, f"{name}_drop", m.dropout))
        return y if m.first else self._norm(y, name, f"{theirs}_layer_norm")

    def _unit(self, x: Symbol, name: str, theirs: str, called: str) -> Symbol:
        d, m, norm = self.d, self.m, f"{theirs}.final_layer_norm"
        y = self._norm(x, name, norm) if m.first else x
        y = d.activation(
            d.dense(y, name, m.hidden[self.k], f"{theirs}.fc1"), f"{name}_act", m.activation
        )
        y = d.dropout(y, f"{name}_inner_drop", m.of_units)
        y = d.dense(y, f"{name}_down", m.width, f"{theirs}.fc2")
        y = d.add(f"{name}_add", x, d.dropout(y, f"{name}_drop", m.dropout))
        return y if m.first else self._norm(y, name, norm, called)

    def _norm(self, x: Symbol, name: str, theirs: str, called: str = "") -> Symbol:
        return self.d.layer_norm(x, called or f"{name}_norm", 1e-5, theirs)


def _t5(name: str) -> Family:
    encoder = f"{name}EncoderModel"
    classes = (f"{name}ForConditionalGeneration", f"{name}Model", encoder)
    return Family(draw_t5, classes, bare=classes[1:], idle=_IDLE)


def _bart(name: str, head: str = "ForConditionalGeneration", **generation: int) -> Family:
    classes = (f"{name}{head}", f"{name}Model")
    generation = {"bos_token_id": 0, "forced_eos_token_id": 2, **generation}
    return Family(draw_bart, classes, bare=classes[1:], generation=generation)


FAMILIES: Mapping[str, Family] = {
    "t5": _t5("T5"),
    "mt5": _t5("MT5"),
    "bart": _bart("Bart", decoder_start_token_id=2),
    "mbart": _bart("MBart"),
    "marian": _bart("Marian", "MTModel", forced_eos_token_id=0),
    "pegasus": _bart("Pegasus", decoder_start_token_id=0, forced_eos_token_id=1),
    "whisper": Family(
        draw_whisper, ("WhisperForConditionalGeneration", "WhisperModel"), bare=("WhisperModel",)
    ),
}
