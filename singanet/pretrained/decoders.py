"""Published decoders: causal language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from singanet.layers import (
    Embedding,
    GatedUnit,
    MultiHeadAttention,
    PositionEmbedding,
    QueryKeyNorm,
    RMSNorm,
    RotaryEmbedding,
    Scale,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config, rotary
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing

_FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(kw_only=True)
class DecoderSettings:
    """The settings of a causal transformer with rotary positions, grouped heads and gated units.

    ``norms`` is the place of a block's norms relative to attention and unit: "pre" (Llama), "post"
    (OLMo 2) or "both" (Gemma). ``offset`` is added to every gamma. ``joined``: the files have one
    array for queries, keys and values, and one for the gate and the up projection (Phi-3).
    ``kinds`` is the attention type of each block, which selects its ``turns`` and ``window``.
    """

    width: int
    depth: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    longest: int
    activation: str
    epsilon: float
    tied: bool
    of_weights: float
    turns: Mapping[str, RotaryEmbedding]
    kinds: Sequence[str]
    window: int | None = None
    biases: bool | Sequence[str] = False
    hidden_bias: bool = False
    norms: str = "pre"
    offset: float = 0.0
    norm: QueryKeyNorm | None = None
    dropout: float = 0.0
    joined: bool = False
    embedding_scale: float = 1.0
    scale: float | None = None
    softcap: float | None = None
    final_softcap: float | None = None


def _plain(
    c: Config,
    kv_heads: int | None = None,
    longest: int = 2048,
    epsilon: float = 1e-6,
    tied: bool = False,
    head_size: int | None = None,
    activation: str = "hidden_act",
    thetas: Mapping[str, float] | None = None,
) -> DecoderSettings:
    """Return the settings that all families share, up to defaults."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    depth, longest = c.blocks("num_hidden_layers"), c.count("max_position_embeddings", longest)
    return DecoderSettings(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=c.count("num_key_value_heads", kv_heads or heads),
        head_size=c.count("head_dim", head_size or max(width // heads, 1)),
        hidden=c.count("intermediate_size"),
        vocabulary=c.count("vocab_size"),
        longest=longest,
        activation=c.choice(activation, ACTIVATIONS, "silu"),
        epsilon=c.number("rms_norm_eps", epsilon),
        tied=c.flag("tie_word_embeddings", tied),
        of_weights=c.share("attention_dropout"),
        turns=rotary(c, longest, thetas or {_FULL: 10000.0}),
        kinds=[_FULL] * depth,
    )


def _llama(c: Config) -> DecoderSettings:
    c.only(rope_interleaved=False)
    made = _plain(c)
    made.biases, made.hidden_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    return made


def _mistral(c: Config) -> DecoderSettings:
    made = _plain(c, kv_heads=8, longest=4096 * 32)
    made.window = c.count_or_none("sliding_window", 4096)
    if made.window is not None:
        made.turns, made.kinds = {SLIDING: made.turns[_FULL]}, [SLIDING] * made.depth
    return made


def _phi3(c: Config) -> DecoderSettings:
    made = _plain(c, longest=4096, epsilon=1e-5)
    made.window = c.count_or_none("sliding_window")
    if made.window is not None:
        made.turns, made.kinds = {SLIDING: made.turns[_FULL]}, [SLIDING] * made.depth
    made.joined, made.dropout = True, c.share("resid_pdrop")
    c.only(attention_bias=False, mlp_bias=False, lm_head_bias=False)
    c.skip("embd_pdrop", "full_attn_mod", "interpolate_factor")  # unused in transformers
    return made


def _qwen2(c: Config) -> DecoderSettings:
    made = _plain(c, kv_heads=32, longest=32768)
    made.biases = ("query", "key", "value")
    c.only(use_mrope=False)
    _by_kind(c, made, c.flag("use_sliding_window", False))
    return made


def _qwen3(c: Config) -> DecoderSettings:
    made = _plain(c, kv_heads=32, longest=32768, head_size=128)
    made.biases = c.flag("attention_bias", False)
    made.norm = QueryKeyNorm(made.epsilon)
    _by_kind(c, made, c.flag("use_sliding_window", False))
    return made


def _by_kind(c: Config, made: DecoderSettings, slides: bool) -> None:
    """Set Qwen's sliding window in the blocks from ``max_window_layers`` on, if it is used."""
    window = c.count_or_none("sliding_window", 4096)
    first = c.count("max_window_layers", 28, least=0)
    made.window = window if slides else None
    late = SLIDING if made.window is not None else _FULL
    made.kinds = _kinds(c, [_FULL if k < first else late for k in range(made.depth)], made.window)
    made.turns = dict.fromkeys((_FULL, SLIDING), made.turns[_FULL])


def _kinds(c: Config, usual: list[str], window: int | None) -> list[str]:
    """Return the attention types by block: the config's list, or ``usual``."""
    kinds = c.texts("layer_types", len(usual)) or usual
    if not {_FULL, SLIDING} >= set(kinds):
        raise c.refused("layer_types", f"{_FULL!r} and {SLIDING!r}", kinds)
    if window is None and SLIDING in kinds:
        raise c.refused("sliding_window", f"a width, since layer_types has {SLIDING!r}", None)
    return kinds


def _olmo2(c: Config) -> DecoderSettings:
    made = _plain(c, epsilon=1e-5)
    made.biases = c.flag("attention_bias", False)
    made.norms, made.norm = "post", QueryKeyNorm(made.epsilon, joint=True)
    return made


def _gemma2(c: Config) -> DecoderSettings:
    made = _gemma(c, {_FULL: 10000.0})
    made.kinds = _kinds(c, [(SLIDING, _FULL)[k % 2] for k in range(made.depth)], made.window)
    made.turns = dict.fromkeys((_FULL, SLIDING), made.turns[_FULL])
    made.softcap = c.number_or_none("attn_logit_softcapping", 50.0)
    made.final_softcap = c.number_or_none("final_logit_softcapping", 30.0)
    return made


def _gemma3(c: Config) -> DecoderSettings:
    local = c.number("rope_local_base_freq", 10000.0)
    made = _gemma(c, {_FULL: 1e6, SLIDING: local})
    every = c.count("sliding_window_pattern", c.count("_sliding_window_pattern", 6))
    usual = [_FULL if (k + 1) % every == 0 else SLIDING for k in range(made.depth)]
    made.kinds = _kinds(c, usual, made.window)
    made.norm = QueryKeyNorm(made.epsilon, offset=1.0)
    made.softcap = c.number_or_none("attn_logit_softcapping")
    made.final_softcap = c.number_or_none("final_logit_softcapping")
    return made


def _gemma(c: Config, thetas: Mapping[str, float]) -> DecoderSettings:
    """Return the settings that Gemma 2 and 3 share."""
    made = _plain(
        c,
        kv_heads=4,
        longest=8192 if len(thetas) == 1 else 131072,
        tied=True,
        head_size=256,
        activation="hidden_activation",
        thetas=thetas,
    )
    c.only(use_bidirectional_attention=False)
    c.skip("hidden_act", "cache_implementation")  # hidden_activation takes precedence
    made.biases, made.norms, made.offset = c.flag("attention_bias", False), "both", 1.0
    made.window = c.count_or_none("sliding_window", 4096)
    made.embedding_scale = made.width**0.5
    made.scale = c.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5
    return made


READ: Mapping[str, Callable[[Config], DecoderSettings]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "llama": _llama,
    "mistral": _mistral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
"""The readers of configs, by ``model_type``."""


def draw(d: ModelDrawing) -> Symbol:
    """Build the net of a config of `READ`: ``logits``, or ``last_hidden_state``."""
    m = READ[d.config.values["model_type"]](d.config)
    # With dynamic scaling a config contains the original length alone.
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
    masks: dict[str, Symbol] = {name: inputs[name] for name in names if name in inputs}
    for k in range(m.depth):
        x = _Block(d, m, k, f"{base}layers.{k}").draw(x, masks)
    x = _norm(d, m, x, "last_hidden_state" if d.is_bare else "norm", f"{base}norm")
    if d.is_bare:
        return x
    d.expect_words()
    tied = table.params["weight"] if headed else None
    return d.head(x, m.vocabulary, "lm_head.weight", tied, softcap=m.final_softcap)


class _Block:
    """A block: attention and a gated unit, each with a residual connection."""

    def __init__(self, d: ModelDrawing, m: DecoderSettings, k: int, theirs: str) -> None:
        self.d, self.m, self.kind = d, m, m.kinds[k]
        self.name, self.theirs = f"layers/{k}", theirs

    def draw(self, x: Symbol, masks: Mapping[str, Symbol]) -> Symbol:
        """Add the block to the residual stream ``x``; ``masks`` are the masks of attention."""
        names = _NORMS[self.m.norms]
        y = self._norm(x, "attention_norm", names[0])
        y = self._attention(y, masks)
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

    def _attention(self, x: Symbol, masks: Mapping[str, Symbol]) -> Symbol:
        m, own = self.m, f"{self.theirs}.self_attn"
        layer = MultiHeadAttention(
            f"{self.name}/attention",
            m.heads,
            m.head_size,
            dropout=m.of_weights,
            use_bias=m.biases,
            causal=True,
            num_kv_heads=m.kv_heads,
            mask="boolean" if "attention_mask" in masks else None,
            segments="segments" in masks,
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
        return self.d.put(layer, [x, *masks.values()] if masks else x, **places)

    def _unit(self, x: Symbol) -> Symbol:
        m, own = self.m, f"{self.theirs}.mlp"
        layer = GatedUnit(
            f"{self.name}/unit", m.hidden, m.width, mode=m.activation, use_bias=m.hidden_bias
        )
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
"""The names in the files of the norms before and after attention and unit."""


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


def draw_gpt2(d: ModelDrawing) -> Symbol:
    """Build the net of a GPT-2 config: ``logits``, or ``last_hidden_state``."""
    c = d.config
    width, heads = c.count("n_embd"), c.count("n_head")
    vocabulary, longest = c.count("vocab_size"), c.count("n_positions", 1024)
    hidden = c.count("n_inner", 4 * width)
    mode = c.choice("activation_function", ACTIVATIONS, "gelu_new")
    epsilon = c.number("layer_norm_epsilon", 1e-5)
    dropout, of_weights = c.share("resid_pdrop", 0.1), c.share("attn_pdrop", 0.1)
    c.only(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )
    c.skip("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout")
    c.skip("summary_proj_to_labels")
    d.most_steps = longest
    inputs = d.ids(("input_ids",), others=("attention_mask",))
    base, mask = d.prefix("transformer."), inputs.get("attention_mask")
    tied = c.flag("tie_word_embeddings", True)
    table = Embedding("wte", vocabulary, width, sparse=tied and not d.is_bare)
    x = d.embedding(inputs["input_ids"], table, f"{base}wte")
    x = d.put(PositionEmbedding("wpe", longest), x, weight=ArrayPlace(f"{base}wpe.weight"))
    x = d.dropout(x, "drop", c.share("embd_pdrop", 0.1))
    for k in range(c.blocks("n_layer")):
        name, own = f"layers/{k}", f"{base}h.{k}"
        y = d.layer_norm(x, f"{name}/attention_norm", epsilon, f"{own}.ln_1")
        attention = MultiHeadAttention(
            f"{name}/attention",
            heads,
            dropout=of_weights,
            causal=True,
            mask=None if mask is None else "boolean",
        )
        places = _places(f"{own}.attn")
        y = d.put(attention, y if mask is None else [y, mask], **places)
        y = d.dropout(y, f"{name}/attention_drop", dropout)
        x = d.add(f"{name}/attention_add", x, y)
        y = d.layer_norm(x, f"{name}/unit_norm", epsilon, f"{own}.ln_2")
        y = d.dense(y, f"{name}/up", hidden, f"{own}.mlp.c_fc", transposed=False)
        y = d.activation(y, f"{name}/act", mode)
        y = d.dense(y, f"{name}/down", width, f"{own}.mlp.c_proj", transposed=False)
        y = d.dropout(y, f"{name}/unit_drop", dropout)
        x = d.add(f"{name}/unit_add", x, y)
    x = d.layer_norm(x, "last_hidden_state" if d.is_bare else "norm", epsilon, f"{base}ln_f")
    if d.is_bare:
        return x
    d.expect_words()
    return d.head(x, vocabulary, "lm_head.weight", table.params["weight"] if tied else None)


def _places(own: str) -> dict[str, ArrayPlace]:
    """Return the places of the arrays; queries, keys and values are one matrix (in, 3 out)."""
    found = {
        "output_weight": ArrayPlace(f"{own}.c_proj.weight"),
        "output_bias": ArrayPlace(f"{own}.c_proj.bias"),
    }
    for order, part in enumerate(("query", "key", "value")):
        found[f"{part}_weight"] = ArrayPlace(f"{own}.c_attn.weight", order=order, axis=1)
        found[f"{part}_bias"] = ArrayPlace(f"{own}.c_attn.bias", order=order)
    return found


GPT2: Mapping[str, Family] = {
    "gpt2": Family(
        draw_gpt2,
        ("GPT2LMHeadModel", "GPT2Model"),
        bare=("GPT2Model",),
        idle=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
    )
}
