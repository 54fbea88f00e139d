"""Llama and its relatives: causal transformers with rotary positions and gated units."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.layers import Embedding, GatedUnit, MultiHeadAttention, RMSNorm, Scale
from singanet.layers.symbol import Symbol
from singanet.pretrained.decoder import READ, SLIDING, DecoderSettings
from singanet.pretrained.drawing import ModelDrawing
from singanet.pretrained.family import Family
from singanet.pretrained.places import ArrayPlace


def draw(d: ModelDrawing) -> Symbol:
    """The net of a config of one of `READ`: ``logits``, or ``last_hidden_state``."""
    m = READ[d.config.values["model_type"]](d.config)
    # Under dynamic scaling a config tells the original length alone.
    d.most_steps = max(m.longest, *(turn.reach for turn in m.turns.values()))
    inputs = d.ids(("input_ids",), others=("attention_mask", "segments"))
    base = d.prefix("model.")
    padding = d.padding(m.vocabulary)
    headed = m.tied and not d.is_bare
    table = Embedding("embed_tokens", m.vocabulary, m.width, padding_index=padding, sparse=headed)
    x = d.embedding(inputs["input_ids"], table, f"{base}embed_tokens")
    if m.embedding_scale != 1.0:
        x = Scale("embed_scale", m.embedding_scale)(x)
    names = ("segments", "attention_mask")
    beside: dict[str, Symbol] = {name: inputs[name] for name in names if name in inputs}
    for k in range(m.depth):
        x = _Block(d, m, k, f"{base}layers.{k}").draw(x, beside)
    x = _norm(d, m, x, "last_hidden_state" if d.is_bare else "norm", f"{base}norm")
    if d.is_bare:
        return x
    d.expect_words()
    tied = table.params["weight"] if headed else None
    return d.head(x, m.vocabulary, "lm_head.weight", tied, softcap=m.final_softcap)


class _Block:
    """One block: attention and a gated unit, each added to the stream."""

    def __init__(self, d: ModelDrawing, m: DecoderSettings, k: int, theirs: str) -> None:
        self.d, self.m, self.kind = d, m, m.kinds[k]
        self.name, self.theirs = f"layers/{k}", theirs

    def draw(self, x: Symbol, beside: Mapping[str, Symbol]) -> Symbol:
        """The stream ``x`` with what the block adds to it; ``beside`` says what attention sees."""
        names = _NORMS[self.m.norms]
        y = self._norm(x, "attention_norm", names[0])
        y = self._attention(y, beside)
        y = self._norm(y, "attention_post_norm", names[1])
        y = self.d.dropout(y, f"{self.name}/attention_drop", self.m.dropout)
        x = self.d.add(f"{self.name}/attention_add", x, y)
        y = self._norm(x, "unit_norm", names[2])
        y = self._unit(y)
        y = self._norm(y, "unit_post_norm", names[3])
        y = self.d.dropout(y, f"{self.name}/unit_drop", self.m.dropout)
        return self.d.add(f"{self.name}/unit_add", x, y)

    def _norm(self, x: Symbol, name: str, theirs: str) -> Symbol:
        if not theirs:
            return x
        return _norm(self.d, self.m, x, f"{self.name}/{name}", f"{self.theirs}.{theirs}")

    def _attention(self, x: Symbol, beside: Mapping[str, Symbol]) -> Symbol:
        m, own = self.m, f"{self.theirs}.self_attn"
        layer = MultiHeadAttention(
            f"{self.name}/attention",
            m.heads,
            m.head_size,
            dropout=m.of_weights,
            use_bias=m.biases,
            causal=True,
            num_kv_heads=m.kv_heads,
            mask="boolean" if "attention_mask" in beside else None,
            segments="segments" in beside,
            rotary=m.turns[self.kind],
            norm=m.norm,
            scale=m.scale,
            softcap=m.softcap,
            window=m.window if self.kind == SLIDING else None,
        )
        places = {}
        for order, part in enumerate(("query", "key", "value")):
            if m.joined:
                places[f"{part}_weight"] = ArrayPlace(f"{own}.qkv_proj.weight", True, order)
            else:
                places[f"{part}_weight"] = ArrayPlace(f"{own}.{part[0]}_proj.weight", True)
            places[f"{part}_bias"] = ArrayPlace(f"{own}.{part[0]}_proj.bias")
            places[f"{part}_gamma"] = ArrayPlace(f"{own}.{part[0]}_norm.weight")
        places["output_weight"] = ArrayPlace(f"{own}.o_proj.weight", True)
        places["output_bias"] = ArrayPlace(f"{own}.o_proj.bias")
        return self.d.put(layer, [x, *beside.values()] if beside else x, **places)

    def _unit(self, x: Symbol) -> Symbol:
        m, own = self.m, f"{self.theirs}.mlp"
        layer = GatedUnit(f"{self.name}/unit", m.hidden, m.width, m.activation, m.hidden_bias)
        places = {}
        for order, part in enumerate(("gate", "up")):
            joined = f"{own}.gate_up_proj.weight"
            weight = joined if m.joined else f"{own}.{part}_proj.weight"
            places[f"{part}_weight"] = ArrayPlace(weight, True, order)
            places[f"{part}_bias"] = ArrayPlace(f"{own}.{part}_proj.bias")
        places["down_weight"] = ArrayPlace(f"{own}.down_proj.weight", True)
        places["down_bias"] = ArrayPlace(f"{own}.down_proj.bias")
        return self.d.put(layer, x, **places)


_NORMS = {
    "pre": ("input_layernorm", "", "post_attention_layernorm", ""),
    "post": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "both": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
"""The norms before and behind attention and unit, by their names in the files."""


def _norm(d: ModelDrawing, m: DecoderSettings, x: Symbol, name: str, theirs: str) -> Symbol:
    layer = RMSNorm(name, epsilon=m.epsilon, offset=m.offset)
    return d.put(layer, x, gamma=ArrayPlace(f"{theirs}.weight"))


_NAMES = {
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "llama": "Llama",
    "mistral": "Mistral",
    "olmo2": "Olmo2",
    "phi3": "Phi3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
}

FAMILIES: Mapping[str, Family] = {
    kind: Family(
        draw,
        (f"{name}ForCausalLM", bare),
        bare=(bare,),
        idle=(r".*rotary_emb\.inv_freq",),
    )
    for kind, name in _NAMES.items()
    for bare in (f"{name}TextModel" if kind == "gemma3_text" else f"{name}Model",)
}
