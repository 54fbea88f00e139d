"""GPT-2: Radford et al., 2019."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.layers import Embedding, MultiHeadAttention, PositionEmbedding
from singanet.layers.symbol import Symbol
from singanet.pretrained.drawing import ACTIVATIONS, ModelDrawing
from singanet.pretrained.family import Family
from singanet.pretrained.places import ArrayPlace


def draw(d: ModelDrawing) -> Symbol:
    """``logits``, or ``last_hidden_state``."""
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
        y = d.dense(y, f"{name}/up", hidden, f"{own}.mlp.c_fc", turned=False)
        y = d.activation(y, f"{name}/act", mode)
        y = d.dense(y, f"{name}/down", width, f"{own}.mlp.c_proj", turned=False)
        y = d.dropout(y, f"{name}/unit_drop", dropout)
        x = d.add(f"{name}/unit_add", x, y)
    x = d.layer_norm(x, "last_hidden_state" if d.is_bare else "norm", epsilon, f"{base}ln_f")
    if d.is_bare:
        return x
    d.expect_words()
    return d.head(x, vocabulary, "lm_head.weight", table.params["weight"] if tied else None)


def _places(own: str) -> dict[str, ArrayPlace]:
    """Queries, keys and values stand side by side in one matrix (in, 3 out)."""
    found = {
        "output_weight": ArrayPlace(f"{own}.c_proj.weight"),
        "output_bias": ArrayPlace(f"{own}.c_proj.bias"),
    }
    for order, part in enumerate(("query", "key", "value")):
        found[f"{part}_weight"] = ArrayPlace(f"{own}.c_attn.weight", order=order, axis=1)
        found[f"{part}_bias"] = ArrayPlace(f"{own}.c_attn.bias", order=order)
    return found


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        draw,
        ("GPT2LMHeadModel", "GPT2Model"),
        bare=("GPT2Model",),
        idle=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
    )
}
