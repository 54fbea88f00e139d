"""Published encoder-decoders: T5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from singanet.layers import (
    Embedding,
    GatedUnit,
    MultiHeadAttention,
    RelativePositions,
    RMSNorm,
    Scale,
)
from singanet.layers.symbol import Symbol
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing

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


FAMILIES: Mapping[str, Family] = {
    "t5": Family(
        draw_t5,
        ("T5ForConditionalGeneration", "T5Model", _ENCODER),
        bare=("T5Model", _ENCODER),
        idle=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )
}
