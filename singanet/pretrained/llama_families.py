"""Decoders with Llama's modules: the settings in their configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from singanet.layers import LayerNorm, QueryKeyNorm, RMSNorm, RotaryEmbedding
from singanet.pretrained.config import Config, rotary
from singanet.pretrained.decoders import DecoderSettings, Modules, decoder_family, read_sizes
from singanet.pretrained.drawing import ACTIVATIONS, Family

FULL, SLIDING = "full_attention", "sliding_attention"
_LLAMA = Modules()
_POST_NORMS = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
_ALL_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def llama_like(
    c: Config,
    modules: Modules = _LLAMA,
    *,
    epsilon: float = 1e-6,
    offset: float = 0.0,
    thetas: Mapping[str, float] | None = None,
    **defaults: Any,
) -> DecoderSettings:
    """Return the settings of a decoder with RMS norms and rotary positions.

    ``thetas`` are the defaults of theta, by type of attention; ``defaults`` are arguments of
    `read_sizes`.
    """
    norm = partial(RMSNorm, epsilon=c.number("rms_norm_eps", epsilon), offset=offset)
    made = read_sizes(c, modules, norm, **defaults)
    turns = rotary(c, made.longest, thetas or {FULL: 10000.0})
    made.turns = [turns[FULL]] * made.depth
    return made


def _with_layer_norms(
    c: Config,
    modules: Modules,
    key: str,
    *,
    center: bool = True,
    theta: float = 10000.0,
    fraction: float = 1.0,
    interleaved: bool = False,
    keys: Mapping[str, str] | None = None,
    **defaults: Any,
) -> DecoderSettings:
    """Return the settings of a decoder with layer norms; ``key`` is the key of their epsilon.

    ``center`` is whether the norms have a bias; ``fraction`` and ``interleaved`` are of the rotary
    positions, the others are arguments of `read_sizes`.
    """
    norm = partial(LayerNorm, epsilon=c.number(key, 1e-5), center=center)
    made = read_sizes(c, modules, norm, keys, **defaults)
    turns = rotary(c, made.longest, {FULL: theta}, fraction, interleaved)
    made.turns = [turns[FULL]] * made.depth
    return made


def _llama(c: Config) -> DecoderSettings:
    c.only(rope_interleaved=False)
    made = llama_like(c)
    made.biases, made.hidden_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    return made


def granite(c: Config) -> DecoderSettings:
    """Return the settings of a Llama with four factors."""
    made = _llama(c)
    made.embedding_scale = c.number("embedding_multiplier", 1.0)
    made.residual_scale = c.number("residual_multiplier", 1.0)
    made.scale = c.number("attention_multiplier", 1.0, least=1e-6)
    made.head_scale = 1.0 / c.number("logits_scaling", 1.0, least=1e-6)
    return made


def _smollm3(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=4, longest=32768, thetas={FULL: 2e6}, tied=True)
    made.biases, made.hidden_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    made.padding = 128004
    every = c.count("no_rope_layer_interval", 4)
    turned = c.take("no_rope_layers", [int((k + 1) % every != 0) for k in range(made.depth)])
    if not isinstance(turned, list) or len(turned) != made.depth or {*turned} - {0, 1}:
        raise c.refused("no_rope_layers", f"a list of {made.depth} numbers, 0 or 1", turned)
    window = c.count_or_none("sliding_window")
    window = window if c.flag("use_sliding_window", False) else None
    late = FULL if window is None else SLIDING
    kinds = attention_kinds(c, [FULL if turns else late for turns in turned], window)
    made.windows = [window if kind == SLIDING else None for kind in kinds]
    pairs = zip(made.turns, turned, strict=True)
    made.turns = [turn if turns else None for turn, turns in pairs]
    c.skip("max_window_layers")
    return made


def _mistral(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=8, longest=4096 * 32)
    made.windows = [c.count_or_none("sliding_window", 4096)] * made.depth
    return made


def _phi3(c: Config) -> DecoderSettings:
    joined = replace(_LLAMA, joined="self_attn.qkv_proj", joined_gate="mlp.gate_up_proj")
    made = llama_like(c, joined, longest=4096, epsilon=1e-5)
    made.windows = [c.count_or_none("sliding_window")] * made.depth
    made.dropout = c.share("resid_pdrop")
    c.only(attention_bias=False, mlp_bias=False, lm_head_bias=False)
    c.skip("embd_pdrop", "full_attn_mod", "interpolate_factor")  # unused in transformers
    return made


def _qwen2(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=32, longest=32768)
    made.biases = ("query", "key", "value")
    c.only(use_mrope=False)
    _slide_late(c, made)
    return made


def _qwen3(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=32, longest=32768, head_size=128)
    made.biases = c.flag("attention_bias", False)
    made.norm = QueryKeyNorm(c.number("rms_norm_eps", 1e-6))
    _slide_late(c, made)
    return made


def _slide_late(c: Config, made: DecoderSettings) -> None:
    """Set Qwen's sliding window in the blocks from ``max_window_layers`` on, if it is used."""
    window = c.count_or_none("sliding_window", 4096)
    window = window if c.flag("use_sliding_window", False) else None
    first = c.count("max_window_layers", 28, least=0)
    late = SLIDING if window is not None else FULL
    kinds = attention_kinds(c, [FULL if k < first else late for k in range(made.depth)], window)
    made.windows = [window if kind == SLIDING else None for kind in kinds]


def attention_kinds(c: Config, usual: list[str], window: int | None) -> list[str]:
    """Return the attention types by block: the config's list, or ``usual``."""
    kinds = c.texts("layer_types", len(usual)) or usual
    if not {FULL, SLIDING} >= set(kinds):
        raise c.refused("layer_types", f"{FULL!r} and {SLIDING!r}", kinds)
    if window is None and SLIDING in kinds:
        raise c.refused("sliding_window", f"a width, since layer_types has {SLIDING!r}", None)
    return kinds


def _alternate(
    c: Config,
    made: DecoderSettings,
    every: int,
    turns: Mapping[str, RotaryEmbedding | None],
) -> None:
    """Set sliding windows in all blocks but every ``every``-th, and ``turns`` by type."""
    window = c.count_or_none("sliding_window", 4096)
    usual = [SLIDING if (k + 1) % every else FULL for k in range(made.depth)]
    kinds = attention_kinds(c, usual, window)
    made.windows = [window if kind == SLIDING else None for kind in kinds]
    made.turns = [turns[kind] for kind in kinds]


def _olmo(c: Config) -> DecoderSettings:
    made = read_sizes(c, _LLAMA, partial(LayerNorm, epsilon=1e-5, affine=False))
    made.turns = [rotary(c, made.longest, {FULL: 10000.0})[FULL]] * made.depth
    made.biases, made.padding = c.flag("attention_bias", False), 1
    c.only(clip_qkv=None)
    return made


def _olmo2(c: Config, thetas: Mapping[str, float] | None = None) -> DecoderSettings:
    made = llama_like(c, replace(_LLAMA, norms=_POST_NORMS), epsilon=1e-5, thetas=thetas)
    made.biases, made.padding = c.flag("attention_bias", False), 1
    made.norm = QueryKeyNorm(c.number("rms_norm_eps", 1e-5), joint=True)
    return made


def _olmo3(c: Config) -> DecoderSettings:
    thetas = {FULL: 5e5, SLIDING: 5e5}
    made = _olmo2(c, thetas)
    _alternate(c, made, 4, rotary(c, made.longest, thetas))
    return made


def _gemma(c: Config) -> DecoderSettings:
    c.only(hidden_activation="gelu_pytorch_tanh")
    made = _gemma_like(c, _LLAMA, "hidden_act", {FULL: 10000.0})
    if c.take("hidden_act") == "gelu":  # an older name of the same
        made.activation = ACTIVATIONS["gelu_pytorch_tanh"]
    return made


def _gemma2(c: Config) -> DecoderSettings:
    made = _later_gemma(c, {FULL: 10000.0}, kv_heads=4)
    turns = dict.fromkeys((FULL, SLIDING), made.turns[0])
    _alternate(c, made, 2, turns)
    made.softcap = c.number_or_none("attn_logit_softcapping", 50.0)
    made.final_softcap = c.number_or_none("final_logit_softcapping", 30.0)
    return made


def _gemma3(c: Config) -> DecoderSettings:
    local = c.number("rope_local_base_freq", 10000.0)
    thetas = {FULL: 1e6, SLIDING: local}
    made = _later_gemma(c, thetas, kv_heads=4, longest=131072)
    every = c.count("sliding_window_pattern", c.count("_sliding_window_pattern", 6))
    _alternate(c, made, every, rotary(c, made.longest, thetas))
    made.norm = QueryKeyNorm(c.number("rms_norm_eps", 1e-6), offset=1.0)
    made.softcap = c.number_or_none("attn_logit_softcapping")
    made.final_softcap = c.number_or_none("final_logit_softcapping")
    return made


def _later_gemma(c: Config, thetas: Mapping[str, float], **defaults: Any) -> DecoderSettings:
    """Return the settings that Gemma 2 and 3 share."""
    modules = replace(_LLAMA, norms=_ALL_NORMS)
    made = _gemma_like(c, modules, "hidden_activation", thetas, **defaults)
    c.skip("hidden_act", "cache_implementation")  # hidden_activation takes precedence
    made.scale = c.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5
    return made


def _gemma_like(
    c: Config, modules: Modules, activation: str, thetas: Mapping[str, float], **defaults: Any
) -> DecoderSettings:
    """Return the settings that all Gemmas share; ``activation`` is the key of the activation."""
    given = {"longest": 8192, "tied": True, "head_size": 256, **defaults}
    given |= {"keys": {"activation": activation}, "activation": "gelu_pytorch_tanh"}
    made = llama_like(c, modules, offset=1.0, thetas=thetas, **given)
    c.only(use_bidirectional_attention=False)
    made.biases, made.padding = c.flag("attention_bias", False), 0
    made.embedding_scale = made.width**0.5
    return made


def _stablelm(c: Config) -> DecoderSettings:
    parallel = c.flag("use_parallel_residual", False)
    modules = replace(_LLAMA, norms=("input_layernorm", "", "", "")) if parallel else _LLAMA
    made = _with_layer_norms(c, modules, "layer_norm_eps", fraction=0.25, kv_heads=32, longest=4096)
    made.parallel = parallel
    made.biases = ("query", "key", "value") if c.flag("use_qkv_bias", False) else False
    c.only(qk_layernorm=False, hidden_dropout=0.0)
    return made


_STARCODER2 = replace(_LLAMA, gate="", up="mlp.c_fc", down="mlp.c_proj")


def _starcoder2(c: Config) -> DecoderSettings:
    made = _with_layer_norms(
        c,
        _STARCODER2,
        "norm_epsilon",
        kv_heads=2,
        longest=4096,
        activation="gelu_pytorch_tanh",
        tied=True,
    )
    made.biases = made.hidden_bias = c.flag("use_bias", True)
    made.windows = [c.count_or_none("sliding_window")] * made.depth
    made.dropout, made.table_dropout = c.share("residual_dropout"), c.share("embedding_dropout")
    c.only(mlp_type="default", norm_type="layer_norm")
    # Of the StarCoder before, unused in transformers.
    c.skip("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon")
    c.skip("scale_attention_softmax_in_fp32", "scale_attn_weights")
    return made


_PHI = replace(
    _LLAMA,
    norms=("input_layernorm", "", "", ""),
    output="self_attn.dense",
    gate="",
    up="mlp.fc1",
    down="mlp.fc2",
    norm="final_layernorm",
)


def _phi(c: Config) -> DecoderSettings:
    made = _with_layer_norms(c, _PHI, "layer_norm_eps", fraction=0.5, activation="gelu_new")
    made.parallel = made.biases = made.hidden_bias = made.head_bias = True
    made.dropout, made.table_dropout = c.share("resid_pdrop"), c.share("embd_pdrop")
    c.only(qk_layernorm=False)
    return made


def _cohere(c: Config, theta: float = 5e5) -> DecoderSettings:
    made = _with_layer_norms(
        c,
        replace(_LLAMA, norms=("input_layernorm", "", "", "")),
        "layer_norm_eps",
        center=False,
        theta=theta,
        interleaved=True,
        keys={"head_size": ""},
        longest=8192,
        tied=True,
    )
    made.parallel, made.padding = True, 0
    made.biases = c.flag("attention_bias", False)
    made.head_scale = c.number("logit_scale", 0.0625)
    c.only(use_qk_norm=False)
    c.skip("head_dim", "model_max_length")  # unused in transformers
    return made


def _cohere2(c: Config) -> DecoderSettings:
    made = _cohere(c, theta=10000.0)
    # Blocks that see all keys have no positions.
    turns = {FULL: None, SLIDING: made.turns[0]}
    _alternate(c, made, c.count("sliding_window_pattern", 4), turns)
    c.only(order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj")
    c.only(rotary_pct=1.0, use_gated_activation=True, use_parallel_block=True)
    c.skip("cache_implementation", "layer_switch")
    c.skip("use_embedding_sharing", "use_parallel_embedding")
    return made


FAMILIES: Mapping[str, Family] = {
    "cohere": decoder_family(_cohere, "Cohere"),
    "cohere2": decoder_family(_cohere2, "Cohere2"),
    "gemma": decoder_family(_gemma, "Gemma"),
    "gemma2": decoder_family(_gemma2, "Gemma2"),
    "gemma3_text": decoder_family(_gemma3, "Gemma3", bare="TextModel"),
    "granite": decoder_family(granite, "Granite"),
    "llama": decoder_family(_llama, "Llama"),
    "mistral": decoder_family(_mistral, "Mistral"),
    "olmo": decoder_family(_olmo, "Olmo"),
    "olmo2": decoder_family(_olmo2, "Olmo2"),
    "olmo3": decoder_family(_olmo3, "Olmo3"),
    "phi": decoder_family(_phi, "Phi"),
    "phi3": decoder_family(_phi3, "Phi3"),
    "qwen2": decoder_family(_qwen2, "Qwen2"),
    "qwen3": decoder_family(_qwen3, "Qwen3"),
    "smollm3": decoder_family(_smollm3, "SmolLM3"),
    "stablelm": decoder_family(_stablelm, "StableLm"),
    "starcoder2": decoder_family(_starcoder2, "Starcoder2"),
}
