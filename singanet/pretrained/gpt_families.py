"""Decoders with layer norms and units of two layers, as GPT-2: the settings in their configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from singanet.base.arguments import is_int
from singanet.layers import Alibi, LayerNorm, RotaryEmbedding
from singanet.pretrained.config import Config, rotary
from singanet.pretrained.decoders import DecoderSettings, Modules, decoder_family, read_sizes
from singanet.pretrained.drawing import Family

_GPT2 = Modules(
    base="transformer.",
    table="wte",
    positions="wpe",
    block="h.{}",
    norms=("ln_1", "", "ln_2", ""),
    joined="attn.c_attn",
    output="attn.c_proj",
    gate="",
    up="mlp.c_fc",
    down="mlp.c_proj",
    norm="ln_f",
)
_GPT2_KEYS = {
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "kv_heads": "",
    "head_size": "",
    "hidden": "n_inner",
    "longest": "n_positions",
    "activation": "activation_function",
    "of_weights": "attn_pdrop",
}


def _norm(c: Config, key: str = "layer_norm_epsilon") -> partial[LayerNorm]:
    """Return what makes the norms, with the epsilon of the config."""
    return partial(LayerNorm, epsilon=c.number(key, 1e-5))


def _gpt2_like(c: Config, activation: str, kv_heads: int | None = None) -> DecoderSettings:
    """Return the settings of a decoder with GPT-2's keys and modules."""
    made = read_sizes(
        c,
        _GPT2,
        _norm(c),
        _GPT2_KEYS,
        kv_heads=kv_heads,
        ratio=4,
        longest=1024,
        activation=activation,
        of_weights=0.1,
        tied=True,
    )
    made.pads, made.biases, made.hidden_bias = False, True, True
    made.dropout, made.table_dropout = c.share("resid_pdrop", 0.1), c.share("embd_pdrop", 0.1)
    c.only(scale_attn_weights=True, add_cross_attention=False)
    _skip_summary(c)
    return made


def _gpt2(c: Config) -> DecoderSettings:
    made = _gpt2_like(c, "gelu_new")
    made.transposed = False
    c.only(scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False)
    return made


def _gpt_bigcode(c: Config) -> DecoderSettings:
    one = c.flag("multi_query", True)
    made = _gpt2_like(c, "gelu_pytorch_tanh", 1 if one else None)
    made.groups = made.kv_heads
    # Older versions of transformers wrote settings of kernels.
    c.skip("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads")
    c.skip("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length")
    c.skip("pre_allocate_kv_cache", "validate_runner_input", "attn_pdrop")
    return made


def _skip_summary(c: Config) -> None:
    c.skip("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout")
    c.skip("summary_proj_to_labels")


_GPT_NEO = replace(
    _GPT2,
    joined="",
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
)


def _gpt_neo(c: Config) -> DecoderSettings:
    keys = _GPT2_KEYS | {
        "width": "hidden_size",
        "depth": "num_layers",
        "heads": "num_heads",
        "hidden": "intermediate_size",
        "longest": "max_position_embeddings",
        "of_weights": "attention_dropout",
    }
    made = read_sizes(c, _GPT_NEO, _norm(c), keys, ratio=4, activation="gelu_new", tied=True)
    made.pads, made.hidden_bias, made.biases, made.scale = False, True, ("output",), 1.0
    made.dropout, made.table_dropout = c.share("resid_dropout"), c.share("embed_dropout")
    window = c.count("window_size", 256)
    kinds = [*_repeated(c, c.take("attention_types", [[["global", "local"], 12]]))]
    listed = c.take("attention_layers", kinds)
    if len(kinds) != made.depth or {*kinds} - {"global", "local"} or listed != kinds:
        expected = f"'global' or 'local' for each of {made.depth} blocks, as in attention_layers"
        raise c.refused("attention_types", expected, c.take("attention_types"))
    made.windows = [window if kind == "local" else None for kind in kinds]
    c.skip("classifier_dropout")
    _skip_summary(c)
    return made


def _repeated(c: Config, types: Any) -> Iterator[str]:
    """Yield the attention types of blocks, each list of them as often as the config has it."""
    for pair in types if isinstance(types, list) else [None]:
        kinds, times = pair if isinstance(pair, list) and len(pair) == 2 else (None, 0)
        if not isinstance(kinds, list) or not is_int(times) or times * len(kinds) > c.arrays:
            raise c.refused("attention_types", "a list of [types, times]", types)
        yield from map(str, kinds * times)


_GPTJ = replace(
    _GPT2,
    positions="",
    norms=("ln_1", "", "", ""),
    joined="",
    query="attn.q_proj",
    key="attn.k_proj",
    value="attn.v_proj",
    output="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)


def _gptj(c: Config) -> DecoderSettings:
    made = read_sizes(c, _GPTJ, _norm(c), _GPT2_KEYS, ratio=4, activation="gelu_new")
    made.pads, made.parallel, made.hidden_bias, made.head_bias = False, True, True, True
    made.dropout, made.table_dropout = c.share("resid_pdrop"), c.share("embd_pdrop")
    turned = c.count("rotary_dim", 64)
    turn = RotaryEmbedding(interleaved=True, fraction=min(turned / made.head_size, 1.0))
    if turn.features(made.head_size) != turned:
        raise c.refused("rotary_dim", f"at most {made.head_size} features", turned)
    made.turns = [turn] * made.depth
    c.only(rotary=True, scale_attn_weights=True)
    _skip_summary(c)
    return made


def _codegen(c: Config) -> DecoderSettings:
    made = _gptj(c)
    made.modules = replace(made.modules, joined="attn.qkv_proj")
    # The array is in four parts, as it was trained on as many devices.
    made.groups, made.order = 4, ("query", "value", "key")
    return made


_MPT = replace(
    _GPT2,
    positions="",
    block="blocks.{}",
    norms=("norm_1", "", "norm_2", ""),
    joined="attn.Wqkv",
    output="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
    norm="norm_f",
)


def _mpt(c: Config) -> DecoderSettings:
    keys = {"width": "d_model", "depth": "n_layers", "heads": "n_heads", "longest": "max_seq_len"}
    keys |= dict.fromkeys(("kv_heads", "head_size", "hidden", "activation", "of_weights"), "")
    norm = partial(LayerNorm, epsilon=c.number("layer_norm_epsilon", 1e-5), center=False)
    made = read_sizes(c, _MPT, norm, keys, ratio=4, activation="gelu", tied=True)
    made.pads, made.relative = False, Alibi()
    attention = c.section("attn_config")
    if attention is not None:
        attention.only(attn_type="multihead_attention", alibi=True, alibi_bias_max=8)
        attention.only(clip_qkv=None, prefix_lm=False, qk_ln=False, attn_uses_sequence_id=False)
        made.scale = attention.number_or_none("softmax_scale")
        made.of_weights = made.dropout = attention.share("attn_pdrop")
        attention.skip("attn_impl", "is_encoder_decoder")
        attention.end()
    # Unused in transformers.
    c.skip("emb_pdrop", "embedding_fraction", "expansion_ratio", "init_config", "init_device")
    c.skip("learned_pos_emb", "logit_scale", "no_bias", "norm_type", "resid_pdrop", "verbose")
    c.skip("tokenizer_name")
    return made


_GPT_NEOX = Modules(
    base="gpt_neox.",
    table="embed_in",
    norms=("input_layernorm", "", "post_attention_layernorm", ""),
    joined="attention.query_key_value",
    output="attention.dense",
    gate="",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="final_layer_norm",
    head="embed_out",
)


def _gpt_neox(c: Config) -> DecoderSettings:
    keys = {"kv_heads": "", "head_size": ""}
    made = read_sizes(c, _GPT_NEOX, _norm(c, "layer_norm_eps"), keys, activation="gelu")
    made.parallel, made.groups = c.flag("use_parallel_residual", True), made.kv_heads
    made.pads = False
    made.biases, made.hidden_bias = c.flag("attention_bias", True), True
    made.dropout = made.table_dropout = c.share("hidden_dropout")
    theta, fraction = c.number("rotary_emb_base", 10000.0), c.number("rotary_pct", 0.25)
    for key, value in (("rope_theta", theta), ("partial_rotary_factor", fraction)):
        if c.number(key, value) != value:
            raise c.refused(key, f"{value:g}, which the model's older key has", c.take(key))
    turns = rotary(c, made.longest, {"": theta}, fraction)
    made.turns = [turns[""]] * made.depth
    c.skip("classifier_dropout", "is_decoder")
    c.skip("attention_probs_dropout_prob", "hidden_dropout_prob")  # unused in transformers
    return made


_BLOOM = replace(
    _GPT_NEOX,
    base="transformer.",
    table="word_embeddings",
    table_norm="word_embeddings_layernorm",
    block="h.{}",
    joined="self_attention.query_key_value",
    output="self_attention.dense",
    norm="ln_f",
    head="lm_head",
)


def _bloom(c: Config) -> DecoderSettings:
    keys = {
        "width": c.either("n_embed", "hidden_size"),
        "depth": c.either("n_layer", "num_hidden_layers"),
        "heads": c.either("n_head", "num_attention_heads"),
    }
    # Any number of steps is computed; the key has the number in training.
    keys |= dict.fromkeys(("kv_heads", "head_size", "hidden", "activation"), "")
    keys["longest"] = "seq_length"
    made = read_sizes(c, _BLOOM, _norm(c), keys, ratio=4, activation="gelu_new", tied=True)
    made.biases, made.hidden_bias = True, True
    made.groups, made.pads, made.relative = made.kv_heads, False, Alibi()
    made.dropout = c.share("hidden_dropout")
    c.only(apply_residual_connection_post_layernorm=False)
    c.skip("slow_but_exact", "unk_token_id")
    # Unused in transformers.
    c.skip("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "n_inner")
    c.skip("offset_alibi", "skip_bias_add", "skip_bias_add_qkv")
    return made


def _falcon(c: Config) -> DecoderSettings:
    c.only(alibi=False, hidden_dropout=0.0, attention_dropout=0.0)
    newer = c.flag("new_decoder_architecture", False)
    parallel, one = c.flag("parallel_attn", True), c.flag("multi_query", True)
    heads = c.count("num_attention_heads")
    groups = c.count("num_kv_heads", heads)
    norms = ("input_layernorm", "", "" if parallel else "post_attention_layernorm", "")
    if newer:
        c.only(parallel_attn=True)
        if c.count("num_ln_in_parallel_attn", 2, most=2) == 2:
            norms = ("ln_attn", "", "ln_mlp", "")
    elif c.take("num_ln_in_parallel_attn", 1) != 1:
        raise c.refused("num_ln_in_parallel_attn", "1, or the newer architecture", 2)
    keys = {
        "kv_heads": "",
        "head_size": "",
        "hidden": "ffn_hidden_size",
        "activation": "activation",
    }
    made = read_sizes(
        c,
        replace(_BLOOM, table_norm="", norms=norms),
        _norm(c),
        keys,
        kv_heads=groups if newer else 1 if one else heads,
        ratio=4,
        activation="gelu",
        tied=True,
    )
    made.parallel, made.groups, made.pads = parallel, made.kv_heads, False
    made.biases = made.hidden_bias = c.flag("bias", False)
    made.turns = [rotary(c, made.longest, {"": 10000.0})[""]] * made.depth
    c.skip("apply_residual_connection_post_layernorm")  # unused in transformers
    return made


_OPT = Modules(
    table="decoder.embed_tokens",
    positions="decoder.embed_positions",
    block="decoder.layers.{}",
    norms=("self_attn_layer_norm", "", "final_layer_norm", ""),
    output="self_attn.out_proj",
    gate="",
    up="fc1",
    down="fc2",
    norm="decoder.final_layer_norm",
)


def _opt(c: Config) -> DecoderSettings:
    keys = {
        "kv_heads": "",
        "head_size": "",
        "hidden": "ffn_dim",
        "activation": "activation_function",
    }
    affine = c.flag("layer_norm_elementwise_affine", True)
    norm = partial(LayerNorm, epsilon=1e-5, affine=affine)
    made = read_sizes(c, _OPT, norm, keys, activation="relu", tied=True)
    made.biases = made.hidden_bias = c.flag("enable_bias", True)
    made.dropout, made.first_position, made.padding = c.share("dropout", 0.1), 2, 1
    if not c.flag("do_layer_norm_before", True):
        made.after_add = True
        after = ("", "self_attn_layer_norm", "", "final_layer_norm")
        made.modules = replace(made.modules, norms=after, norm="")
    elif c.flag("_remove_final_layer_norm", False):
        made.modules = replace(made.modules, norm="")
    c.skip("_remove_final_layer_norm")
    made.table_width = c.count("word_embed_proj_dim", made.width)
    if made.table_width != made.width:
        made.modules = replace(
            made.modules, widen="decoder.project_in", narrow="decoder.project_out"
        )
    c.only(layerdrop=0.0)
    c.skip("activation_dropout", "init_std")  # unused in transformers
    return made


FAMILIES: Mapping[str, Family] = {
    "bloom": decoder_family(_bloom, "Bloom"),
    "codegen": decoder_family(_codegen, "CodeGen"),
    "falcon": decoder_family(_falcon, "Falcon"),
    "gpt2": decoder_family(_gpt2, "GPT2", causal="LMHeadModel"),
    "gpt_bigcode": decoder_family(_gpt_bigcode, "GPTBigCode"),
    "gpt_neo": decoder_family(_gpt_neo, "GPTNeo"),
    "gpt_neox": decoder_family(_gpt_neox, "GPTNeoX", others=((r"^lm_head\.", "embed_out."),)),
    "gptj": decoder_family(_gptj, "GPTJ"),
    "mpt": decoder_family(_mpt, "Mpt", older=("MPTForCausalLM",)),
    "opt": decoder_family(_opt, "OPT"),
}
