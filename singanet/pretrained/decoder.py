"""What configs of Llama's relatives say: sizes, and what sets a family apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from singanet.layers import QueryKeyNorm, RotaryEmbedding
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS
from singanet.pretrained.rope import rotary

_FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(kw_only=True)
class DecoderSettings:
    """A causal transformer with rotary positions, grouped heads and gated units.

    ``norms`` are those of a block, each before or behind attention and the unit: "pre" (Llama),
    "post" (OLMo 2) or "both" (Gemma). ``offset`` is added to every gamma. ``joined`` are
    queries, keys and values in one array, and the gate with what it gates (Phi-3). ``kinds`` has
    the type of each block's attention, which ``turns`` and ``window`` go by.
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
    """What all of the families say under the same keys, or nearly so."""
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
    c.skip("embd_pdrop", "full_attn_mod", "interpolate_factor")  # nobody uses them
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
    """Blocks from ``max_window_layers`` on have the window of Qwen, where it is used."""
    window = c.count_or_none("sliding_window", 4096)
    first = c.count("max_window_layers", 28, least=0)
    made.window = window if slides else None
    late = SLIDING if made.window is not None else _FULL
    made.kinds = _kinds(c, [_FULL if k < first else late for k in range(made.depth)], made.window)
    made.turns = dict.fromkeys((_FULL, SLIDING), made.turns[_FULL])


def _kinds(c: Config, usual: list[str], window: int | None) -> list[str]:
    """The types of attention by block, as the config lists them, or the usual ones."""
    kinds = c.texts("layer_types", len(usual)) or usual
    if not {_FULL, SLIDING} >= set(kinds):
        raise c.refused("layer_types", f"texts {_FULL!r} and {SLIDING!r}", kinds)
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
    """The common part of Gemma 2 and 3."""
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
    c.skip("hidden_act", "cache_implementation")  # hidden_activation goes before
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
"""What is read of a config, by its ``model_type``."""
