"""Llama and its relatives: causal transformers with rotary positions and gated units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from singanet.layers import Embedding, MultiHeadAttention, Multiply, RMSNorm, RotaryEmbedding
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, Drawing
from singanet.pretrained.family import Family
from singanet.pretrained.places import Place
from singanet.pretrained.rope import rotary


@dataclass(kw_only=True)
class Decoder:
    """The sizes of a model of this kind, and what sets its family apart."""

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
    dropout: float
    turns: RotaryEmbedding
    bias: bool = False
    hidden_bias: bool = False


def _plain(c: Config, kv_heads: int | None = None, longest: int = 2048) -> Decoder:
    """What all of the families say under the same keys."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    longest = c.count("max_position_embeddings", longest)
    return Decoder(
        width=width,
        depth=c.blocks("num_hidden_layers"),
        heads=heads,
        kv_heads=c.count("num_key_value_heads", kv_heads or heads),
        head_size=c.count("head_dim", max(width // heads, 1)),
        hidden=c.count("intermediate_size"),
        vocabulary=c.count("vocab_size"),
        longest=longest,
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"),
        epsilon=c.number("rms_norm_eps", 1e-6),
        tied=c.flag("tie_word_embeddings", False),
        dropout=c.share("attention_dropout"),
        turns=rotary(c, longest),
    )


def _llama(c: Config) -> Decoder:
    made = _plain(c)
    made.bias, made.hidden_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    return made


def _mistral(c: Config) -> Decoder:
    made = _plain(c, kv_heads=8, longest=4096 * 32)
    c.only(sliding_window=None)
    return made


READ: Mapping[str, Callable[[Config], Decoder]] = {"llama": _llama, "mistral": _mistral}
"""What is read of a config, by its ``model_type``."""


def draw(d: Drawing) -> Symbol:
    """The net of a config of one of `READ`: ``logits``, or ``last_hidden_state``."""
    m = READ[d.config.values["model_type"]](d.config)
    d.most_steps = m.longest
    inputs = d.causal_ids()
    base = d.prefix("model.")
    padding = d.padding(m.vocabulary)
    table = Embedding("embed_tokens", m.vocabulary, m.width, padding_index=padding)
    x = d.embedding(inputs["input_ids"], table, f"{base}embed_tokens")
    mask = inputs.get("attention_mask")
    for k in range(m.depth):
        x = _block(d, m, x, mask, f"layers/{k}", f"{base}layers.{k}")
    x = _norm(d, m, x, "last_hidden_state" if d.is_bare else "norm", f"{base}norm")
    if d.is_bare:
        return x
    d.expect_words()
    return d.head(x, m.vocabulary, "lm_head.weight", table.params["weight"] if m.tied else None)


def _block(
    d: Drawing, m: Decoder, x: Symbol, mask: Symbol | None, name: str, theirs: str
) -> Symbol:
    """The stream ``x`` with what attention and the gated unit add to it."""
    y = _norm(d, m, x, f"{name}/attention_norm", f"{theirs}.input_layernorm")
    x = d.add(f"{name}/attention_add", x, _attention(d, m, y, mask, name, theirs))
    y = _norm(d, m, x, f"{name}/unit_norm", f"{theirs}.post_attention_layernorm")
    return d.add(f"{name}/unit_add", x, _unit(d, m, y, name, theirs))


def _attention(
    d: Drawing, m: Decoder, x: Symbol, mask: Symbol | None, name: str, theirs: str
) -> Symbol:
    layer = MultiHeadAttention(
        f"{name}/attention",
        m.heads,
        m.head_size,
        dropout=m.dropout,
        use_bias=m.bias,
        causal=True,
        num_kv_heads=m.kv_heads,
        mask=None if mask is None else "boolean",
        rotary=m.turns,
    )
    own = f"{theirs}.self_attn"
    parts = {part: f"{own}.{part[0]}_proj" for part in ("query", "key", "value", "output")}
    return d.attention(layer, [x] if mask is None else [x, mask], parts)


def _unit(d: Drawing, m: Decoder, x: Symbol, name: str, theirs: str) -> Symbol:
    """W (f(G x) · U x)."""
    own, bias = f"{theirs}.mlp", m.hidden_bias
    gate = d.dense(x, f"{name}/gate", m.hidden, f"{own}.gate_proj", bias)
    up = d.dense(x, f"{name}/up", m.hidden, f"{own}.up_proj", bias)
    gated = Multiply(f"{name}/gated")(d.activation(gate, f"{name}/gate_act", m.activation), up)
    return d.dense(gated, f"{name}/down", m.width, f"{own}.down_proj", bias)


def _norm(d: Drawing, m: Decoder, x: Symbol, name: str, theirs: str) -> Symbol:
    return d.put(RMSNorm(name, epsilon=m.epsilon), x, gamma=Place(f"{theirs}.weight"))


FAMILIES: Mapping[str, Family] = {
    kind: Family(
        draw,
        (f"{name}ForCausalLM", f"{name}Model"),
        bare=(f"{name}Model",),
        idle=(r".*rotary_emb\.inv_freq",),
    )
    for kind, name in (("llama", "Llama"), ("mistral", "Mistral"))
}
